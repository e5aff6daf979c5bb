"""Figures 13 and 14: masks of every layer, and connections of each input dimension."""

from experiments.suites import base


def units(budget: base.Budget) -> list[base.Unit]:
    """RLx2 on Ant; the report reads its first and last masks."""
    task = "Ant"
    lanes = base.lanes(budget, [("rlx2", "rlx2", {})], **base.sparsities(task))
    return [base.Unit(base.unit_name(task), base.settings(budget, task), lanes)]


SUITE = base.Suite("mask_figures", "Figures 13 and 14: visualisation of sparse models", units)
