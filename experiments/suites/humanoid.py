"""Table 14 and figure 11: Humanoid, 256 and 1024 units wide."""

from experiments import paper
from experiments.suites import base

METHODS = ("dense", "tiny", "ss", "set", "rigl", "rlx2")


def units(budget: base.Budget) -> list[base.Unit]:
    """Every method at both widths, at the table's sparsities."""
    return [
        unit
        for row in paper.load("humanoid_models")
        for unit in base.variant_units(
            f"humanoid-{row['hidden']}",
            base.settings(budget, "Humanoid", hidden=row["hidden"]),
            budget,
            [(m, m, {}) for m in METHODS],
            actor_sparsity=row["actor_sparsity"],
            critic_sparsity=row["critic_sparsity"],
        )
    ]


SUITE = base.Suite("humanoid", "Table 14: Humanoid with 256 and 1024 units", units)
