"""Figures 3 and 8: masks found by RigL and by RLx2, frozen, rewound and retrained."""

from experiments.suites import base

FINDERS = ("rigl", "rlx2")


def units(budget: base.Budget) -> list[base.Unit]:
    """A search, then training with its final masks and its initial weights.

    All retrained lanes use RLx2 without mask evolution, so only their masks differ.
    """
    found = []
    for task in base.tasks(budget):
        settings, sparsities = base.settings(budget, task), base.sparsities(task)
        search = f"{task.lower()}-search"
        names = [(m, seed) for m in FINDERS for seed in budget.seed_range()]
        retrained = tuple(
            base.lane(
                budget,
                "rlx2-ss",
                seed,
                name=f"{method} mask",
                weights=f"../{search}/initial/lane-{i}.npz",
                masks=f"../{search}/final/lane-{i}.npz",
                **sparsities,
            )
            for i, (method, seed) in enumerate(names)
        )
        lanes = base.lanes(budget, [(m, m, {}) for m in FINDERS], **sparsities)
        found += [
            base.Unit(search, settings, lanes),
            base.Unit(f"{task.lower()}-retrain", settings, retrained, needs=(search,)),
        ]
    return found


SUITE = base.Suite("masks", "Figures 3 and 8: masks of RigL and RLx2, retrained", units)
