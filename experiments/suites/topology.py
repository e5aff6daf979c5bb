"""Table 3, left: other topology schemes with RLx2's targets and buffer."""

from experiments.suites import base

METHODS = ("dense", "rlx2-tiny", "rlx2-ss", "rlx2-set", "rlx2")


def units(budget: base.Budget) -> list[base.Unit]:
    """The ablation keeps multi-step targets and the dynamic buffer for every topology."""
    return base.task_units(budget, [(m, m, {}) for m in METHODS])


SUITE = base.Suite("topology", "Table 3, left: ablation of topology evolution", units)
