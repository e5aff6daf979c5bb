"""The ledger: model sizes and FLOPs of tables 2, 5 and 6, computed without training."""

from experiments.suites import base


def units(budget: base.Budget) -> list[base.Unit]:
    """Nothing is trained."""
    del budget
    return []


SUITE = base.Suite("flops", "Tables 2, 5 and 6: parameters and FLOPs", units)
