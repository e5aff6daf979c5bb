"""The table of all metrics that a run reports of its lanes.

`METRICS` defines the columns of `metrics.csv` and `evaluations.csv`, the TensorBoard tags and
docs/metrics.md. Some are returned by updates; the others are functions in the table. To add one,
register a function:

    rlx2.register_metric("episodes_cut", "truncated episodes so far",
                         lambda lane: lane.state.replay.finals_written)
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax.agents.common import networks_of, switched_n
from rlx2_jax.config import Config, Hyper
from rlx2_jax.networks import convert
from rlx2_jax.training.devices import shared_jit
from rlx2_jax.training.lane import LaneState, Stats
from rlx2_jax.types import Array, Masks, Network


class LaneView(NamedTuple):
    """One lane, for metrics of scope `lane`.

    Attributes:
      state: the lane.
      time: time steps so far: i32[].
      updates: gradient updates so far: i32[].
      hyper: its hyper-parameters.
      config: its configuration, static.
    """

    state: LaneState
    time: Array
    updates: Array
    hyper: Hyper
    config: Config


class NetworkView(NamedTuple):
    """One network of a lane, for metrics of scope `network`.

    Attributes:
      name: its field of the agent's state, for instance `actor`; static.
      network: the network.
      kernels: weight masks bool[in, out] by layer, for instance `q1/Dense_0`.
      initial: the initial weight masks.
      stats: the lane's counters.
    """

    name: str
    network: Network
    kernels: dict[str, Array]
    initial: dict[str, Array]
    stats: Stats


class Metric(NamedTuple):
    """One entry of the table.

    Attributes:
      name: the column, without the network's name if `scope` is `network`.
      meaning: one line for the documentation.
      scope: `lane` or `network`, computed by `compute`; `update`, returned by updates; `run` or
        `evaluation`, computed outside of this table.
      compute: maps a `LaneView` or `NetworkView` to a number, or to a dict of numbers by suffix
        (`name/key`). Traced, for one lane.
      tag: whether TensorBoard shows it.
    """

    name: str
    meaning: str
    scope: str = "lane"
    compute: Callable[[Any], Any] | None = None
    tag: bool = True


def _live(kernels: Mapping[str, Array]) -> Array:
    return jnp.asarray(sum(jnp.sum(m, dtype=jnp.int32) for m in kernels.values()))


def _ever_live(view: NetworkView) -> Array:
    bits = view.stats.ever[view.name]
    counts = [jnp.sum(jax.lax.population_count(x), dtype=jnp.int32) for x in bits]
    return sum(counts, jnp.int32(0))


def _overlap(view: NetworkView) -> Array:
    both = {name: mask & view.initial[name] for name, mask in view.kernels.items()}
    return _live(both) / _live(view.initial)


def _dead_units(view: NetworkView) -> Array:
    members = view.network.members
    heads = [""] if members is None else [f"q{i + 1}/" for i in range(members)]
    dead = jnp.zeros((), jnp.int32)
    for head in heads:
        for into, out in view.network.module.hidden_units():
            live = view.kernels[head + into].any(axis=0) & view.kernels[head + out].any(axis=1)
            dead += jnp.sum(~live, dtype=jnp.int32)
    return dead


def _sparsity(view: NetworkView) -> dict[str, Array]:
    return {k: 1.0 - jnp.mean(m.astype(jnp.float32)) for k, m in view.kernels.items()}


def _n(view: LaneView) -> Array:
    steps = view.time * view.config.num_envs
    return switched_n(steps, view.updates, view.config, view.hyper)


# In column order.
_TABLE = (
    Metric("lane", "number of the lane", "run", tag=False),
    Metric("method", "its method", "run", tag=False),
    Metric("seed", "its seed", "run", tag=False),
    Metric("step", "environment steps so far", "run", tag=False),
    Metric("updates", "gradient updates so far", "lane", lambda lane: lane.updates),
    Metric(
        "alive",
        "0 once a gradient was not finite, which freezes the networks",
        "lane",
        lambda lane: lane.state.stats.alive,
    ),
    Metric("critic_loss", "critic loss, summed over the critics", "update"),
    Metric("actor_loss", "actor loss; 0 at updates without an actor update", "update"),
    Metric("q", "mean Q of the first critic over the batch", "update"),
    Metric("target", "mean of the targets y over the batch", "update"),
    Metric("alpha", "SAC's temperature", "update"),
    Metric("n", "length of n-step targets: 1 until T_0", "lane", _n),
    Metric(
        "buffer_length",
        "transitions in the replay buffer",
        "lane",
        lambda lane: lane.state.replay.length * lane.config.num_envs,
    ),
    Metric(
        "policy_distance",
        "D(B, φ) at the last check of the buffer",
        "lane",
        lambda lane: lane.state.stats.distance,
    ),
    Metric(
        "trims", "checks that shortened the buffer", "lane", lambda lane: lane.state.stats.trims
    ),
    Metric(
        "evolutions", "mask updates so far", "network", lambda net: net.stats.evolutions[net.name]
    ),
    Metric(
        "links_changed",
        "links replaced by the last mask update",
        "network",
        lambda net: net.network.moved,
    ),
    Metric("links_ever_live", "links that were live at any time", "network", _ever_live),
    Metric("overlap_with_initial", "share of initial links that are live", "network", _overlap),
    Metric("dead_units", "hidden units without incoming or outgoing links", "network", _dead_units),
    Metric("sparsity", "sparsity of each layer", "network", _sparsity),
    Metric("train_flops", "FLOPs of all updates so far, by the ledger", "run"),
    Metric("mean_return", "mean return of the evaluation episodes", "evaluation"),
    Metric("std_return", "its standard deviation", "evaluation", tag=False),
    Metric("min_return", "the smallest return", "evaluation", tag=False),
    Metric("max_return", "the largest return", "evaluation", tag=False),
    Metric("mean_length", "mean length of the episodes", "evaluation"),
    Metric("value_bias", "mean of Q - G over their steps", "evaluation"),
    Metric("value_spread", "standard deviation of Q - G", "evaluation"),
    Metric("weights", "digest of all weights and masks", "evaluation", tag=False),
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE}
_LAST_BEFORE_UPDATES = "alive"


def register_metric(
    name: str, meaning: str, compute: Callable[[Any], Any] | None = None, *, scope: str = "lane"
) -> None:
    """Adds a metric to the table: a column of `metrics.csv` and a TensorBoard tag of later runs.

    Args:
      compute: a traced function of a `LaneView` or, with `scope="network"`, of a `NetworkView`.
        With `scope="update"` there is none: an algorithm's update returns the metric.

    >>> import rlx2_jax as rlx2
    >>> rlx2.register_metric("episodes_cut", "truncated episodes so far",
    ...                      lambda lane: lane.state.replay.finals_written)
    """
    if name in METRICS:
        raise ValueError(f"there is already a metric {name!r}: choose another name")
    if not name.isidentifier():
        raise ValueError(f"name={name!r}: use letters, digits and underscores")
    if scope not in ("lane", "network", "update") or (scope == "update") != (compute is None):
        raise ValueError(
            f"scope={scope!r} with compute={compute}: use lane or network with a function of its "
            f"view, or update without one"
        )
    METRICS[name] = Metric(name, meaning, scope, compute)


def measure(
    state: LaneState,
    initial: dict[str, Masks],
    updated: Mapping[str, Array],
    time: int,
    updates: int,
    hyper: Hyper,
    config: Config,
) -> list[dict[str, Any]]:
    """One row of numbers for each lane, in the order of `METRICS`.

    Args:
      state: of all lanes, stacked.
      initial: the lanes' initial masks, from `dense_masks`.
      updated: the metrics that the last update returned, `[lanes]` each.
    """
    chosen = tuple(m for m in METRICS.values() if m.compute is not None)
    counts = np.int32(time), np.int32(updates)
    measured = _measure(state, initial, *counts, hyper, config, chosen)
    columns: dict[str, np.ndarray] = {}
    for name in _order(chosen, networks_of(state.agent)):
        value = measured[name]
        if isinstance(value, Mapping):
            columns |= {f"{name}/{key}": np.asarray(x) for key, x in value.items()}
        else:
            columns[name] = np.asarray(value)
        if name == _LAST_BEFORE_UPDATES:
            columns |= {k: np.asarray(v, float) for k, v in updated.items() if k != "finite"}
    return [{k: _number(v[i]) for k, v in columns.items()} for i in range(len(state.seed))]


def _order(metrics: Sequence[Metric], networks: Iterable[str]) -> list[str]:
    """Column names: first the lane's, then each network's."""
    lane = [m.name for m in metrics if m.scope == "lane"]
    return lane + [f"{x}_{m.name}" for x in networks for m in metrics if m.scope == "network"]


@shared_jit(static=(5, 6))
def _measure(
    state: LaneState,
    initial: dict[str, Masks],
    time: Array,
    updates: Array,
    hyper: Hyper,
    config: Config,
    metrics: tuple[Metric, ...],
) -> dict[str, Any]:
    def lane(state: LaneState, initial: dict[str, Masks], hyper: Hyper) -> dict[str, Any]:
        views: dict[str, Any] = {"": LaneView(state, time, updates, hyper, config)}
        for name, net in networks_of(state.agent).items():
            now = kernels(convert.dense_masks(net), net.members)
            then = kernels(initial[name], net.members)
            views[f"{name}_"] = NetworkView(name, net, now, then, state.stats)
        return {
            prefix + metric.name: metric.compute(view)
            for prefix, view in views.items()
            for metric in metrics
            if metric.compute and metric.scope == ("network" if prefix else "lane")
        }

    return jax.vmap(lane)(state, initial, hyper)


@shared_jit()
@jax.vmap
def dense_masks(agent: Any) -> dict[str, Masks]:
    """The masks of all networks of stacked agents as boolean arrays."""
    return {name: convert.dense_masks(net) for name, net in networks_of(agent).items()}


def kernels(masks: Masks, members: int | None) -> dict[str, Array]:
    """Weight masks `[in, out]` by name: `Dense_0`, or `q1/Dense_0` of the first critic."""
    if members is not None:
        return {
            f"q{i + 1}/{name}": mask
            for i in range(members)
            for name, mask in kernels(jax.tree.map(lambda x: x[i], masks), None).items()  # noqa: B023
        }
    return {
        "/".join(k.key for k in path if k.key != "kernel"): leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(masks)[0]
        if leaf.ndim == 2
    }


def _number(value: np.ndarray) -> int | float:
    return float(value) if value.dtype.kind == "f" else int(value)
