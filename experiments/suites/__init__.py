"""The catalogue: one suite per table or figure of the paper, and a few more."""

from experiments.suites import (
    buffer,
    buffer_trace,
    flops,
    humanoid,
    mask_figures,
    mask_init,
    masks,
    nstep,
    sensitivity,
    sparsity,
    table2,
    tickets,
    topology,
    toy,
)
from experiments.suites.base import BUDGETS, Budget, Suite, Unit, share
from experiments.suites.overrides import overridden

__all__ = ["BUDGETS", "CATALOGUE", "Budget", "Suite", "Unit", "find", "units"]

_MODULES = (
    table2, toy, sparsity, topology, nstep, buffer, sensitivity, masks, tickets, humanoid,
    buffer_trace, mask_figures, flops, mask_init,
)  # fmt: skip
CATALOGUE: dict[str, Suite] = {module.SUITE.name: module.SUITE for module in _MODULES}


def find(names: list[str]) -> list[Suite]:
    """Suites by name; `all` is the whole catalogue."""
    if names == ["all"]:
        return list(CATALOGUE.values())
    unknown = [name for name in names if name not in CATALOGUE]
    if unknown or not names:
        raise ValueError(
            f"unknown suite {', '.join(unknown) or '(none given)'}: use one or more of "
            f"{', '.join(CATALOGUE)}, or all"
        )
    return [CATALOGUE[name] for name in names]


def units(suite: Suite, budget: Budget) -> list[Unit]:
    """A suite's units with the budget's overrides; units of the main table use its directory."""
    found = overridden(suite, budget)
    if suite.name == table2.SUITE.name:
        return found
    return share(found, table2.SUITE.name, overridden(table2.SUITE, budget))
