"""Table 2, its standard deviations (table 7) and the training curves (figures 9 and 10)."""

from experiments.suites import base

METHODS = ("dense", "tiny", "ss", "set", "rigl", "rlx2")


def units(budget: base.Budget) -> list[base.Unit]:
    """Every method on every task, TD3 and SAC, at the paper's sparsities."""
    return [
        base.Unit(
            base.unit_name(task, algo),
            base.settings(budget, task, algo),
            base.lanes(budget, [(m, m, {}) for m in METHODS], **base.sparsities(task, algo)),
        )
        for algo in ("td3", "sac")
        for task in base.tasks(budget)
    ]


SUITE = base.Suite("table2", "Table 2: RLx2 and the sparse training baselines", units)
