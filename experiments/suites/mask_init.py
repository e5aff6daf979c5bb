"""Initial masks: random links, or the largest of the random weights. Not in the paper."""

import dataclasses

from experiments.suites import base
from rlx2_jax.sparse import masks

TASK, METHODS = "Hopper", ("rlx2", "ss")


def units(budget: base.Budget) -> list[base.Unit]:
    """RLx2 and static sparse lanes with each kind of initial mask and twice the budget's seeds."""
    group, plain = base.unit_name(TASK), base.settings(budget, TASK)
    found = []
    for init in masks.INITS:
        choices = {} if init == masks.INITS[0] else {"mask_init": init}
        settings = dataclasses.replace(plain, choices=choices)
        for half in range(2):
            first = budget.first_seed + half * budget.seeds
            own = dataclasses.replace(budget, first_seed=first)
            for method in METHODS:
                name = f"{method}, {init}"
                lanes = base.lanes(own, [(name, method, {})], **base.sparsities(TASK))
                unit = f"{group}-{base.slug(name)}-{first}"
                found.append(base.Unit(unit, settings, lanes, group=group))
    return found


SUITE = base.Suite("mask_init", "Initial masks: random or by magnitude", units)
