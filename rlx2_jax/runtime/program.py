"""Lanes of one `Config` as one compiled program. `jit` and `vmap` live here."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax import networks
from rlx2_jax import config as configs
from rlx2_jax import lane as lanes_
from rlx2_jax.config import Config, Lane
from rlx2_jax.lane import ALGORITHMS, LaneState, Outcome
from rlx2_jax.types import Array, Masks


class Inspection(NamedTuple):
    """What is reported of every lane between steps; all `[lanes]`."""

    sparsity: dict[str, dict[str, Array]]  # network -> layer -> share of absent links
    ever: dict[str, Array]  # network -> links that were live at any time
    overlap: dict[str, Array]  # network -> share of the initial links that are live now
    dead: dict[str, Array]  # network -> hidden units with no link in, or none out
    length: Array  # transitions in the buffer


class Program:
    """Compiled functions of `[lanes]` states.

    Attributes:
      config, lanes: what it was made of; `lanes` are resolved.
      hyper: the lanes' traced hyper-parameters, stacked.
    """

    def __init__(self, config: Config, lanes: Sequence[Lane]):
        self.config = config
        self.lanes = [configs.resolve(config, lane) for lane in lanes]
        self.hyper = stack([configs.hyper(config, lane) for lane in self.lanes])
        self.algorithm = ALGORITHMS[config.algo]
        self._step = {
            learn: jax.jit(functools.partial(self.pure_step, learn=learn), donate_argnums=0)
            for learn in (False, True)
        }
        self._judge = jax.jit(jax.vmap(self.judge_lane))
        self._inspect = jax.jit(jax.vmap(_inspect_lane))

    def init(self, obs: np.ndarray, horizon: int | None) -> LaneState:
        """States before the first step; `obs: [lanes, envs, obs]`."""
        agents = stack([self._agent(lane) for lane in self.lanes])
        seeds = jnp.asarray([lane.seed for lane in self.lanes], jnp.int32)
        begin = lambda seed, agent, obs: lanes_.start(  # noqa: E731
            self.config, seed, agent, obs, horizon=horizon
        )
        return jax.jit(jax.vmap(begin), donate_argnums=1)(seeds, agents, jnp.asarray(obs))

    def _agent(self, lane: Lane) -> Any:
        made = jax.jit(lanes_.init_agent, static_argnums=(0, 1))
        alike = dataclasses.replace(lane, seed=0)  # compiled once for all seeds
        return made(self.config, alike, jnp.asarray(lane.seed, jnp.int32))

    def pure_step(
        self, state: LaneState, outcome: Outcome, t: Array, *, learn: bool
    ) -> tuple[LaneState, dict[str, Array]]:
        """`lane.step` over lanes, not yet compiled; `t` is not batched."""

        def one(state, outcome, hyper):
            return lanes_.step(state, outcome, t, self.config, hyper, learn=learn)

        return jax.vmap(one)(state, outcome, self.hyper)

    def step(self, state: LaneState, outcome: Outcome, t: int) -> tuple[LaneState, dict]:
        """One time step of all lanes, dispatched without waiting. `state` is used up."""
        learn = t > lanes_.warmup_time(self.config)
        return self._step[learn](state, outcome, np.int32(t))

    def no_metrics(self, state: LaneState) -> dict[str, np.ndarray]:
        """What is reported of updates before there were any."""
        obs = state.acting.obs
        ends = jax.ShapeDtypeStruct(obs.shape[:2], bool)
        reward = jax.ShapeDtypeStruct(obs.shape[:2], jnp.float32)
        outcome = Outcome(obs, obs, reward, ends, ends)
        step = functools.partial(self.pure_step, learn=True)
        time = jax.ShapeDtypeStruct((), jnp.int32)
        names = jax.eval_shape(step, state, outcome, time)[1]
        return {name: np.full(x.shape, np.nan) for name, x in names.items()}

    def judge(self, state: LaneState, obs: np.ndarray) -> tuple[Array, Array]:
        """Noise-free actions and their Q for `obs: [lanes, k, obs]`."""
        agent = state.agent
        return self._judge(agent.actor.params, agent.critic.params, obs)

    def judge_lane(self, actor: Any, critic: Any, obs: Array) -> tuple[Array, Array]:
        """`judge` of one lane, not compiled: `[k, obs] -> ([k, act], [k])`."""
        action = self.algorithm.mean_action(actor, obs)
        return action, jnp.minimum(*networks.q_values(critic, obs, action))

    def inspect(self, state: LaneState, initial: dict[str, Masks]) -> Inspection:
        """Figures of the masks and the buffer."""
        length = state.replay.length * self.config.num_envs
        return self._inspect(masks_of(state), state.stats.ever, initial, length)


def masks_of(state: LaneState) -> dict[str, Masks]:
    """The masks of both networks."""
    return {"actor": state.agent.actor.masks, "critic": state.agent.critic.masks}


def _inspect_lane(
    masks: dict[str, Masks], ever: dict[str, Masks], initial: dict[str, Masks], length: Array
) -> Inspection:
    layers = {name: _kernels(mask) for name, mask in masks.items()}
    first = {name: _kernels(mask) for name, mask in initial.items()}
    live = lambda kernels: sum(jnp.sum(m, dtype=jnp.int32) for m in kernels.values())  # noqa: E731
    return Inspection(
        sparsity={
            name: {key: 1.0 - jnp.mean(m.astype(jnp.float32)) for key, m in kernels.items()}
            for name, kernels in layers.items()
        },
        ever={name: live(_kernels(mask)) for name, mask in ever.items()},
        overlap={
            name: live({k: kernels[k] & first[name][k] for k in kernels}) / live(first[name])
            for name, kernels in layers.items()
        },
        dead={name: _dead_units(mask) for name, mask in masks.items()},
        length=length,
    )


def _kernels(masks: Masks) -> dict[str, Array]:
    """Weight masks by name: `Dense_0`, or `q1/Dense_0` in twin critics."""
    return {
        "/".join(k.key for k in path if k.key != "kernel"): leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(masks)[0]
        if leaf.ndim == 2
    }


def _dead_units(masks: Masks) -> Array:
    """Hidden units that no link enters, or none leaves: i32[]."""
    if "Dense_0" not in masks:
        return sum((_dead_units(part) for part in masks.values()), jnp.zeros((), jnp.int32))
    kernels = [masks[f"Dense_{i}"]["kernel"] for i in range(len(masks))]
    alive = [a.any(axis=0) & b.any(axis=1) for a, b in itertools.pairwise(kernels)]
    return sum((jnp.sum(~a, dtype=jnp.int32) for a in alive), jnp.zeros((), jnp.int32))


def stack(trees: Sequence[Any]) -> Any:
    """Trees of arrays as one tree with a leading lane axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def unstack(tree: Any, index: int) -> Any:
    """One lane of a stacked tree."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def host(tree: Any) -> Any:
    """A copy of a tree as NumPy arrays: a view would keep a donated buffer alive."""
    return jax.tree.map(lambda leaf: np.array(leaf), tree)
