"""Lanes of one `Config` as one compiled program. `jit` and `vmap` live here."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax import config as configs
from rlx2_jax import networks
from rlx2_jax.config import Config, Hyper, Lane
from rlx2_jax.networks import convert
from rlx2_jax.training import lane as lanes_
from rlx2_jax.training import segments, weights
from rlx2_jax.training.lane import ALGORITHMS, LaneState
from rlx2_jax.training.segments import Dues
from rlx2_jax.types import Array, Bounds, Masks, Network, Params, TimeStep


class Inspection(NamedTuple):
    """What is reported of every lane between steps; all `[lanes]`."""

    sparsity: dict[str, dict[str, Array]]  # network -> layer -> share of absent links
    ever: dict[str, Array]  # network -> links that were live at any time
    overlap: dict[str, Array]  # network -> share of the initial links that are live now
    dead: dict[str, Array]  # network -> hidden units with no link in, or none out
    length: Array  # transitions in the buffer


# Traced once for all programs that contain it, and for the shapes of what it reports.
@functools.partial(jax.jit, static_argnums=(4, 5), inline=True)
def step_lanes(
    state: LaneState, after: TimeStep[Array], t: Array, hyper: Hyper, config: Config, learn: bool
) -> tuple[LaneState, dict[str, Array]]:
    """`lane.step` over lanes; the time `t` is not batched."""

    def one(state: LaneState, after: TimeStep[Array], hyper: Hyper):
        return lanes_.step(state, after, t, config, hyper, learn=learn)

    return jax.vmap(one)(state, after, hyper)


def plain_lanes(
    state: LaneState,
    after: TimeStep[Array],
    t: Array,
    hyper: Hyper,
    config: Config,
    dues: Dues,
    active: Array | bool = True,
) -> tuple[LaneState, dict[str, Array]]:
    """`lane.plain_step` over lanes; neither `t` nor `active` is batched."""

    def one(state: LaneState, after: TimeStep[Array], hyper: Hyper):
        return lanes_.plain_step(state, after, t, config, hyper, dues=dues, active=active)

    return jax.vmap(one)(state, after, hyper)


def judge_lane(
    actor: Params, critic: Params, obs: Array, algo: str, bounds: Bounds | None
) -> tuple[Array, Array]:
    """Noise-free actions of one lane and their Q: `[k, obs] -> ([k, act], [k])`. `bounds` as in
    `networks.critic_input`."""
    action = ALGORITHMS[algo].mean_action(actor, obs)
    return action, networks.minimum(networks.q_values(critic, obs, action, bounds))


def _start_lanes(
    seeds: Array, agents: Any, obs: Array, config: Config, horizon: int | None
) -> LaneState:
    begin = functools.partial(lanes_.start, config, horizon=horizon)
    return jax.vmap(begin)(seeds, agents, obs)


# Compiled once per Config, whatever number of groups of lanes there are: hyper-parameters and
# seeds are arguments, not constants.
_step = jax.jit(step_lanes, static_argnums=(4, 5), donate_argnums=0)
_plain = jax.jit(plain_lanes, static_argnums=(4, 5), donate_argnums=0)
_start = jax.jit(_start_lanes, static_argnums=(3, 4), donate_argnums=1)
_agent = jax.jit(lanes_.init_agent, static_argnums=(0, 1))
_judge = jax.jit(
    lambda actor, critic, obs, algo, bounds: jax.vmap(
        functools.partial(judge_lane, algo=algo, bounds=bounds)
    )(actor, critic, obs),
    static_argnums=(3, 4),
)
_networks = jax.jit(jax.vmap(weights.of_agent))
_inspect = jax.jit(lambda *args: jax.vmap(_inspect_lane)(*args))
_dense_masks = jax.jit(jax.vmap(lambda nets: {k: convert.dense_masks(v) for k, v in nets.items()}))


def initial_agent(config: Config, lane: Lane) -> Any:
    """The agent that a resolved lane begins with. One program serves all lanes whose networks have
    the same sparsities, whatever else they differ in."""
    same = configs.network_lane(config, lane)
    return _agent(config, same, jnp.asarray(lane.seed, jnp.int32))


def networks_of(agents: Any) -> list[dict[str, weights.Weights]]:
    """The networks of each lane of stacked agents, of either form, as arrays on the host."""
    found = host(_networks(agents))
    return [unstack(found, i) for i in range(len(jax.tree.leaves(found)[0]))]


class Program:
    """Lanes that are updated by one device call.

    Attributes:
      config, lanes: what it was made of; `lanes` are resolved.
      hyper: the lanes' traced hyper-parameters, stacked.
    """

    def __init__(self, config: Config, lanes: Sequence[Lane]):
        self.config = config
        self.lanes = [configs.resolve(config, lane) for lane in lanes]
        self.hyper = stack([configs.hyper(config, lane) for lane in self.lanes])

    def init(self, obs: np.ndarray, horizon: int | None) -> LaneState:
        """States before the first step; `obs: [lanes, envs, obs]`."""
        seeds = jnp.asarray([lane.seed for lane in self.lanes], jnp.int32)
        agents = stack(
            [
                weights.given(initial_agent(self.config, lane), self.config, lane)
                for lane in self.lanes
            ]
        )
        state = _start(seeds, agents, jnp.asarray(obs), self.config, horizon)
        experts = [lane.expert for lane in self.lanes]
        if all(x is None for x in experts):
            return state
        if None in experts:
            raise ValueError("lanes with and without an expert cannot share a run: separate them")
        return state._replace(expert=stack([weights.expert(x, self.config) for x in experts if x]))

    def step(self, state: LaneState, after: TimeStep[Any], t: int) -> tuple[LaneState, dict]:
        """One time step of all lanes, dispatched without waiting. Donates `state`."""
        config = self.config
        if segments.next_event(config, t - 1) > t:
            return _plain(state, after, np.int32(t), self.hyper, config, segments.phase(config, t))
        learn = t > lanes_.warmup_time(config)
        return _step(state, after, np.int32(t), self.hyper, config, learn)

    def no_metrics(self, state: LaneState) -> dict[str, np.ndarray]:
        """What is reported of updates before there were any."""
        obs = state.acting.obs
        ends: Any = jax.ShapeDtypeStruct(obs.shape[:2], bool)
        reward: Any = jax.ShapeDtypeStruct(obs.shape[:2], jnp.float32)
        after = TimeStep(obs, obs, reward, ends, ends)
        time = jax.ShapeDtypeStruct((), jnp.int32)
        step = lambda *args: step_lanes(*args, self.config, True)  # noqa: E731
        names = jax.eval_shape(step, state, after, time, self.hyper)[1]
        return {name: np.full(x.shape, np.nan) for name, x in names.items()}

    def judge(self, state: LaneState, obs: np.ndarray) -> tuple[Array, Array]:
        """Noise-free actions and their Q for `obs: [lanes, k, obs]`."""
        agent = state.agent
        actor, critic = networks.online(agent.actor), networks.online(agent.critic)
        return _judge(actor, critic, obs, self.config.algo, self.config.critic_bounds)

    def inspect(self, state: LaneState, initial: dict[str, Masks]) -> Inspection:
        """Figures of the masks and the buffer; `initial` from `dense_masks`."""
        length = state.replay.length * self.config.num_envs
        return _inspect(_networks_by_name(state), state.stats.ever, initial, length)


def dense_masks(state: LaneState) -> dict[str, Masks]:
    """The masks of both networks of stacked lanes as boolean arrays."""
    return _dense_masks(_networks_by_name(state))


def _networks_by_name(state: LaneState) -> dict[str, Network]:
    return {"actor": state.agent.actor, "critic": state.agent.critic}


def _inspect_lane(
    nets: dict[str, Network], ever: dict[str, list], initial: dict[str, Masks], length: Array
) -> Inspection:
    masks = {name: convert.dense_masks(net) for name, net in nets.items()}
    layers = {name: _kernels(masks[name], net.members) for name, net in nets.items()}
    first = {name: _kernels(initial[name], net.members) for name, net in nets.items()}

    def live(kernels: dict[str, Array]) -> Array:
        return jnp.asarray(sum(jnp.sum(m, dtype=jnp.int32) for m in kernels.values()))

    return Inspection(
        sparsity={
            name: {key: 1.0 - jnp.mean(m.astype(jnp.float32)) for key, m in kernels.items()}
            for name, kernels in layers.items()
        },
        ever={name: sum(map(_count_bits, bits), jnp.int32(0)) for name, bits in ever.items()},
        overlap={
            name: live({k: kernels[k] & first[name][k] for k in kernels}) / live(first[name])
            for name, kernels in layers.items()
        },
        dead={name: _dead_units(net, layers[name]) for name, net in nets.items()},
        length=length,
    )


def _count_bits(bits: Array) -> Array:
    return jnp.sum(jax.lax.population_count(bits), dtype=jnp.int32)


def _kernels(masks: Masks, members: int | None) -> dict[str, Array]:
    """Weight masks `[in, out]` by name: `Dense_0`, or `q1/Dense_0` of the first critic."""
    if members is not None:
        return {
            f"q{i + 1}/{name}": mask
            for i in range(members)
            for name, mask in _kernels(unstack(masks, i), None).items()
        }
    return {
        "/".join(k.key for k in path if k.key != "kernel"): leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(masks)[0]
        if leaf.ndim == 2
    }


def _dead_units(network: Network, kernels: dict[str, Array]) -> Array:
    """Hidden units that no link enters, or none leaves: i32[]."""
    pairs = network.module.hidden_units()
    members = range(network.members or 1)
    heads = [""] if network.members is None else [f"q{i + 1}/" for i in members]
    dead = [
        jnp.sum(~(kernels[head + a].any(axis=0) & kernels[head + b].any(axis=1)), dtype=jnp.int32)
        for head in heads
        for a, b in pairs
    ]
    return sum(dead, jnp.zeros((), jnp.int32))


def stack(trees: Sequence[Any]) -> Any:
    """Trees of arrays as one tree with a leading lane axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def unstack(tree: Any, index: int) -> Any:
    """One lane of a stacked tree."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def host(tree: Any) -> Any:
    """A copy of a tree as NumPy arrays: a view would keep a donated buffer alive."""
    return jax.tree.map(lambda leaf: np.array(leaf), tree)
