"""Figures 7 and 12: random, winning and dynamic tickets, under RL and behaviour cloning."""

from experiments import paper
from experiments.suites import base


def sparsities(task: str) -> dict[str, float]:
    """The sparsities in the captions; for Ant, those of the main table."""
    for row in paper.load("ticket_sparsities"):
        if row["env"] == task:
            return {k: float(row[k]) for k in ("actor_sparsity", "critic_sparsity")}
    return base.sparsities(task)


def units(budget: base.Budget) -> list[base.Unit]:
    """Per task: dense, random and dynamic tickets; winning tickets with the dynamic ones' final
    masks and initial weights; and the same four imitating the dense agent of their seed."""
    found = []
    for task in base.tasks(budget):
        settings, common = base.settings(budget, task), sparsities(task)
        rl, winning, clone = (f"{task.lower()}-{x}" for x in ("rl", "winning", "bc"))
        variants = [
            ("dense", "dense", {}),
            ("random ticket", "rlx2-ss", {}),
            ("dynamic ticket", "rlx2", {}),
        ]
        seeds = list(enumerate(budget.seed_range()))

        def ticket(i: int, rl: str = rl) -> dict[str, str]:
            donor = 2 * budget.seeds + i  # the dynamic ticket of that seed
            return {
                "weights": f"../{rl}/initial/lane-{donor}.npz",
                "masks": f"../{rl}/final/lane-{donor}.npz",
            }

        retrained = tuple(
            base.lane(budget, "rlx2-ss", s, name="winning ticket", **ticket(i), **common)
            for i, s in seeds
        )
        clones = tuple(
            base.lane(
                budget,
                method,
                s,
                name=name,
                expert=f"../{rl}/final/lane-{i}.npz",
                **(ticket(i) if name == "winning ticket" else {}),
                **common,
            )
            for name, method in (
                ("dense", "dense"),
                ("random ticket", "ss"),
                ("winning ticket", "ss"),
                ("dynamic ticket", "rlx2"),
            )
            for i, s in seeds
        )
        found += [
            base.Unit(rl, settings, base.lanes(budget, variants, **common)),
            base.Unit(winning, settings, retrained, needs=(rl,)),
            base.Unit(clone, settings, clones, kind="clone", needs=(rl,)),
        ]
    return found


SUITE = base.Suite("tickets", "Figures 7 and 12: lottery tickets under RL and cloning", units)
