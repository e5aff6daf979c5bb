"""Figure 2: SS, RigL, RigL+Q* and RLx2 on InvertedPendulum."""

from experiments.suites import base

TASK = "InvertedPendulum"
SPARSITY = {"actor_sparsity": 0.9, "critic_sparsity": 0.85}


def units(budget: base.Budget) -> list[base.Unit]:
    """The dense lanes are the experts: RigL+Q* uses the dense critic of the same seed."""
    settings, group = base.settings(budget, TASK), "inverted-pendulum"
    variants = [(m, m, {}) for m in ("dense", "ss", "rigl", "rlx2")]
    guided = tuple(
        base.lane(
            budget,
            "rigl",
            seed,
            name="rigl+q*",
            expert=f"../{group}-dense-{seed}/final/lane-0.npz",
            **SPARSITY,
        )
        for seed in budget.seed_range()
    )
    experts = tuple(f"{group}-dense-{seed}" for seed in budget.seed_range())
    return [
        *base.variant_units(group, settings, budget, variants, **SPARSITY),
        base.Unit(f"{group}-rigl+qstar", settings, guided, needs=experts, group=group),
    ]


SUITE = base.Suite("toy", "Figure 2: topology evolution and value estimation", units)
