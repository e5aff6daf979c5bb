"""Figure 5: return against sparsity, for all methods, Hopper and Ant."""

from experiments.suites import base

METHODS = ("tiny", "ss", "set", "rigl", "rlx2")
LEVELS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)  # of both actor and critic


def units(budget: base.Budget) -> list[base.Unit]:
    """A unit for each method: sparsity differs between its lanes."""
    variants = [("dense", "dense", {})] + [
        (m, m, {"actor_sparsity": s, "critic_sparsity": s})
        for m in METHODS
        for s in (LEVELS if budget.name != "smoke" else LEVELS[1:4])
    ]
    return [
        unit
        for task in base.tasks(budget, ("Hopper", "Ant"))
        for unit in base.variant_units(
            base.unit_name(task), base.settings(budget, task), budget, variants
        )
    ]


SUITE = base.Suite("sparsity", "Figure 5: performance under different sparsity", units)
