"""Reads the actor of one lane from a run directory, possibly of an active run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax import envs
from rlx2_jax.agents import ALGORITHMS
from rlx2_jax.config import Config
from rlx2_jax.export.build import from_actor
from rlx2_jax.export.policy import SparsePolicy
from rlx2_jax.files import Damaged
from rlx2_jax.networks import convert, forms
from rlx2_jax.training import lane as lanes_
from rlx2_jax.training import parts, plan, weights
from rlx2_jax.training.checkpoint import Checkpoints, take
from rlx2_jax.training.run import CHECKPOINTS, Run, RunError
from rlx2_jax.training.run import read_run as read_run
from rlx2_jax.types import Masks, Network, Params


class Actor(NamedTuple):
    """A masked actor, host arrays. Layers are `{"kernel": [in, out], "bias": [out]}`."""

    params: Params
    masks: Masks
    step: int  # environment steps of its lane so far
    stats: Params | None = None  # running observation statistics, if any


def actor_of(run: Run, directory: Path, lane: int) -> Actor:
    """The newest readable actor of a lane. Does not modify the directory."""
    if not 0 <= lane < len(run.lanes):
        raise RunError(f"lane {lane}: the run has lanes 0 to {len(run.lanes) - 1}")
    run, directory, lane = parts.holding(run, Path(directory), lane)
    store, problem = Checkpoints(directory / CHECKPOINTS), ""
    for position in reversed(store.positions()):
        try:
            meta, arrays = store.read_arrays(position)
            first = meta["chunk"] * run.lanes_at_once
            if lane < first:  # its chunk is finished
                network = weights.load(directory / "final" / f"lane-{run.first + lane}.npz")[
                    "actor"
                ]
                return Actor(network.weights, network.mask, run.config.steps, network.stats)
            if lane - first < sum(map(len, meta["lanes"])):
                return _from_checkpoint(run, meta, arrays, lane - first)
        except (Damaged, KeyError, TypeError) as error:
            problem = problem or str(error)
    if problem:
        raise RunError(f"no checkpoint in {directory} can be read: {problem}")
    raise RunError(
        f"lane {lane} has no checkpoint in {directory}: let the run reach one, see "
        f"checkpoint_interval={run.checkpoint_interval}"
    )


def policy_of(
    actor: Actor,
    config: Config,
    *,
    low: Sequence[float] | np.ndarray | None = None,
    high: Sequence[float] | np.ndarray | None = None,
) -> SparsePolicy:
    """The actor as a policy with all its live links. `low`, `high`: action bounds."""
    heads = ALGORITHMS[config.algo].networks.actor_heads
    steps = config.actor_module.steps(actor.params, actor.stats)
    return from_actor(
        actor.params, actor.masks, config.algo, steps=steps, heads=heads, low=low, high=high
    )


def actions(actor: Actor, config: Config, obs: np.ndarray) -> np.ndarray:
    """Noise-free actions of the JAX actor: [batch, obs] -> [batch, act] in [-1, 1]."""
    params = jax.tree.map(lambda x, m: np.float32(x) * m, actor.params, actor.masks)
    bound = forms.masked.bind(params, module=config.actor_module, stats=actor.stats)
    with jax.default_matmul_precision("highest"):
        return np.asarray(ALGORITHMS[config.algo].mean_action(bound, jnp.asarray(obs)))


def action_bounds(run: Run) -> tuple[Any, Any]:
    """The task's action bounds if the backend reports them, else (None, None)."""
    if run.backend not in envs.HOST_BACKENDS:
        return None, None
    host = envs.make_host(run.env, 1, run.backend, **run.env_options)
    space = getattr(getattr(host, "envs", [None])[0], "action_space", None)
    host.close()
    return (None, None) if space is None else (space.low.ravel(), space.high.ravel())


def _from_checkpoint(
    run: Run, meta: dict[str, Any], arrays: dict[str, np.ndarray], index: int
) -> Actor:
    """The actor of lane `index` of a checkpoint's chunk."""
    first = meta["chunk"] * run.lanes_at_once
    lanes = run.lanes[first : first + run.lanes_at_once]
    configs = {i: part.config for part in plan.parts(run.config, lanes) for i in part.lanes}
    group = next(g for g, members in enumerate(meta["lanes"]) if index in members)
    row, lane = meta["lanes"][group].index(index), lanes[index]
    seed = int(arrays[f"{group}.state.seed"][row])
    if seed != lane.seed:
        number = run.first + first + index
        raise RunError(f"a checkpoint holds seed {seed} where lane {number} should be")
    like = jax.eval_shape(lambda: lanes_.init_agent(configs[index], lane, jnp.int32(0)).actor)
    saved = take(arrays, group, {"state": {"agent": {"actor": like}}})["state"]["agent"]["actor"]
    network = jax.tree.map(lambda x: np.asarray(x[row]), saved)
    steps = meta["times"][group] * run.config.num_envs
    return Actor(*masked(network), steps, jax.tree.map(np.asarray, network.stats))


def masked(network: Network) -> tuple[Params, Masks]:
    """Parameters and masks of a masked or compact network, as host arrays."""
    dense = convert.to_masked(jax.tree.map(jnp.asarray, network))
    return jax.tree.map(np.asarray, (dense.params, dense.masks))
