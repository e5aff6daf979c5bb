"""The registries of extensions."""

import contextlib
from collections.abc import Iterator
from typing import Any

import gymnasium

from rlx2_jax import agents, algorithms, networks, options, trackers
from rlx2_jax.export import exporters
from rlx2_jax.sparse import rules
from rlx2_jax.training import metrics

TABLES: tuple[dict[str, Any], ...] = (
    *(rules.GROW, rules.DROP, networks.ARCHITECTURES, agents.ALGORITHMS, algorithms.NETWORK_USE),
    *(options._INHERITED, metrics.METRICS, exporters.EXPORTERS, trackers.TRACKERS),
    gymnasium.registry,
)


@contextlib.contextmanager
def tables_as_before() -> Iterator[None]:
    """Undoes registrations on exit."""
    before = [dict(table) for table in TABLES]
    yield
    for table, old in zip(TABLES, before):
        table.clear()
        table.update(old)
