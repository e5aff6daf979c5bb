"""Table 2, its standard deviations (table 7) and the training curves (figures 9 and 10)."""

from experiments.suites import base

METHODS = ("dense", "tiny", "ss", "set", "rigl", "rlx2")


def units(budget: base.Budget) -> list[base.Unit]:
    """Every method on every task, TD3 and SAC, at the paper's sparsities."""
    variants = [(m, m, {}) for m in METHODS]
    return base.task_units(budget, variants, "td3") + base.task_units(budget, variants, "sac")


SUITE = base.Suite("table2", "Table 2: RLx2 and the sparse training baselines", units)
