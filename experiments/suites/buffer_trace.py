"""Figure 4: buffer length and policy distance over training."""

from experiments.suites import base


def units(budget: base.Budget) -> list[base.Unit]:
    """RLx2 with its dynamic buffer and with a fixed one."""
    variants = [("dynamic", "rlx2", {}), ("fixed", "rlx2", {"trim_ratio": 0.0})]
    return base.task_units(budget, variants)


SUITE = base.Suite("buffer_trace", "Figure 4: dynamic buffer and policy inconsistency", units)
