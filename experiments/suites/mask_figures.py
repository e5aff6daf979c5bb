"""Figures 13 and 14: masks of every layer, and connections of each input dimension."""

from experiments.suites import base


def units(budget: base.Budget) -> list[base.Unit]:
    """RLx2 on Ant; the report reads its first and last masks."""
    task = "Ant"
    settings, variants = base.settings(budget, task), [("rlx2", "rlx2", {})]
    return base.variant_units(
        base.unit_name(task), settings, budget, variants, **base.sparsities(task)
    )


SUITE = base.Suite("mask_figures", "Figures 13 and 14: visualisation of sparse models", units)
