"""The catalogue: one suite per table or figure of the paper, one small file each."""

from experiments.suites import (
    buffer,
    buffer_trace,
    flops,
    humanoid,
    mask_figures,
    masks,
    nstep,
    sensitivity,
    sparsity,
    table2,
    tickets,
    topology,
    toy,
)
from experiments.suites.base import BUDGETS, Budget, Suite, Unit

__all__ = ["BUDGETS", "CATALOGUE", "Budget", "Suite", "Unit", "find"]

_MODULES = (
    table2, toy, sparsity, topology, nstep, buffer, sensitivity, masks, tickets, humanoid,
    buffer_trace, mask_figures, flops,
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
