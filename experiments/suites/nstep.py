"""Table 3, right: the length of the multi-step target."""

from experiments.suites import base


def units(budget: base.Budget) -> list[base.Unit]:
    """RLx2 with n from 1 to 5."""
    variants = [("dense", "dense", {}), *((f"{n}-step", "rlx2", {"n": n}) for n in range(1, 6))]
    return base.task_units(budget, variants)


SUITE = base.Suite("nstep", "Table 3, right: ablation of multi-step targets", units)
