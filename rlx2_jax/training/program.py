"""Lanes of one `Config` as one program, compiled with `jit` and batched with `vmap`."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax import config as configs
from rlx2_jax import networks
from rlx2_jax.agents.common import observe
from rlx2_jax.config import Config, Hyper, Lane
from rlx2_jax.networks import BoundNetwork
from rlx2_jax.replay import buffer
from rlx2_jax.training import devices, segments, weights
from rlx2_jax.training import lane as lanes_
from rlx2_jax.training.devices import SharedJit
from rlx2_jax.training.lane import ALGORITHMS, LaneState
from rlx2_jax.training.segments import Dues
from rlx2_jax.types import Array, Bounds, Device, TimeStep, Transition


# Jitted so that all enclosing programs, and the shape evaluation of metrics, share one trace.
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


def online_networks(agent: Any) -> tuple[BoundNetwork, BoundNetwork | None]:
    """The bound actor and critics of an agent; None for the critics if it has none."""
    critic = getattr(agent, "critic", None)
    return networks.online(agent.actor), None if critic is None else networks.online(critic)


def actions_and_values(
    actor: BoundNetwork,
    critic: BoundNetwork | None,
    obs: Array,
    algo: str,
    bounds: Bounds | None,
) -> tuple[Array, Array]:
    """Noise-free actions of one lane and their Q values: `[k, obs] -> ([k, act], [k])`; nan without
    a critic. `bounds` as in `networks.critic_input`."""
    action = ALGORITHMS[algo].mean_action(actor, obs)
    if critic is None:
        return action, jnp.full(obs.shape[:1], jnp.nan)
    return action, networks.minimum(networks.q_values(critic, obs, action, bounds))


def _start_lanes(
    seeds: Array, agents: Any, obs: Array, config: Config, horizon: int | None
) -> LaneState:
    begin = functools.partial(lanes_.start, config, horizon=horizon)
    return jax.vmap(begin)(seeds, agents, obs)


def _fill_lane(state: LaneState, data: Transition) -> LaneState:
    add = lambda replay, row: (buffer.add(replay, row), None)  # noqa: E731
    agent = observe(state.agent, data.obs.reshape(-1, data.obs.shape[-1]))
    return state._replace(agent=agent, replay=jax.lax.scan(add, state.replay, data)[0])


# Compiled once per Config and shared by all groups of lanes: hyper-parameters and seeds are
# arguments, not constants.
_step = SharedJit(step_lanes, static=(4, 5), donate=(0,))
_plain = SharedJit(plain_lanes, static=(4, 5), donate=(0,))
_start = SharedJit(_start_lanes, static=(3, 4), donate=(1,))
_agent = jax.jit(lanes_.init_agent, static_argnums=(0, 1))
_actions_and_values = SharedJit(
    lambda actor, critic, obs, algo, bounds: jax.vmap(
        functools.partial(actions_and_values, algo=algo, bounds=bounds)
    )(actor, critic, obs),
    static=(3, 4),
)
_fill = SharedJit(jax.vmap(_fill_lane), donate=(0,))
_networks = SharedJit(jax.vmap(weights.of_agent))


def initial_agent(config: Config, lane: Lane) -> Any:
    """The initial agent of a resolved lane. Lanes whose networks have the same sparsities share one
    compiled program."""
    same = configs.network_lane(config, lane)
    return _agent(config, same, jnp.asarray(lane.seed, jnp.int32))


def networks_of(agents: Any) -> list[dict[str, weights.Weights]]:
    """The networks (masked or compact) of each lane of stacked agents, as host arrays."""
    nets = host(_networks(agents))
    return [unstack(nets, i) for i in range(len(jax.tree.leaves(nets)[0]))]


class Program:
    """Lanes that are updated by one call.

    Attributes:
      config, lanes, device: as given; `lanes` are resolved.
      hyper: the lanes' traced hyper-parameters, stacked.
    """

    def __init__(self, config: Config, lanes: Sequence[Lane], device: Device | None = None):
        """`device`: None for JAX's default."""
        self.config, self.device = config, device
        self.lanes = [configs.resolve(config, lane) for lane in lanes]
        self.hyper = self.put(stack([configs.hyper(config, lane) for lane in self.lanes]))

    def put(self, tree: Any) -> Any:
        """Moves arrays to the program's device."""
        return devices.put(tree, self.device)

    def init(self, obs: np.ndarray, horizon: int | None) -> LaneState:
        """States before the first step; `obs: [lanes, envs, obs]`."""
        seeds = self.put(jnp.asarray([lane.seed for lane in self.lanes], jnp.int32))
        agents = stack(
            [
                weights.given(initial_agent(self.config, lane), self.config, lane)
                for lane in self.lanes
            ]
        )
        agents, obs = self.put(agents), self.put(jnp.asarray(obs))
        state = _start(seeds, agents, obs, self.config, horizon)
        experts = [lane.expert for lane in self.lanes]
        if all(x is None for x in experts) or lanes_.offline(self.config):
            return state
        if None in experts:
            raise ValueError("lanes with and without an expert cannot share a run: separate them")
        for path in dict.fromkeys(experts):
            weights.check_expert(str(path), self.config)
        critics = stack([weights.expert(x, self.config) for x in experts if x])
        return state._replace(expert=self.put(critics))

    def fill(self, state: LaneState, data: Sequence[Transition]) -> LaneState:
        """States whose replay holds `data`, `[rows, envs, ...]` for each lane. Donates `state`."""
        return _fill(state, self.put(stack(data)))

    def step(self, state: LaneState, after: TimeStep[Any], t: int) -> tuple[LaneState, dict]:
        """One time step of all lanes, dispatched without waiting. Donates `state`."""
        config = self.config
        if segments.next_event(config, t - 1) > t:
            return _plain(state, after, np.int32(t), self.hyper, config, segments.phase(config, t))
        learn = t > lanes_.warmup_time(config)
        return _step(state, after, np.int32(t), self.hyper, config, learn)

    def no_metrics(self, state: LaneState) -> dict[str, np.ndarray]:
        """Metrics before the first update: nan, with the names that updates report."""
        obs = state.acting.obs
        ends: Any = jax.ShapeDtypeStruct(obs.shape[:2], bool)
        reward: Any = jax.ShapeDtypeStruct(obs.shape[:2], jnp.float32)
        after = TimeStep(obs, obs, reward, ends, ends)
        time = jax.ShapeDtypeStruct((), jnp.int32)
        step = lambda *args: step_lanes(*args, self.config, True)  # noqa: E731
        names = jax.eval_shape(step, state, after, time, self.hyper)[1]
        return {name: np.full(x.shape, np.nan) for name, x in names.items()}

    def actions_and_values(self, state: LaneState, obs: np.ndarray) -> tuple[Array, Array]:
        """Noise-free actions and their Q values for `obs: [lanes, k, obs]`."""
        bound = online_networks(state.agent)
        return _actions_and_values(*bound, obs, self.config.algo, self.config.critic_bounds)


def stack(trees: Sequence[Any]) -> Any:
    """Trees of arrays as one tree with a leading lane axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def unstack(tree: Any, index: int) -> Any:
    """One lane of a stacked tree."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def host(tree: Any) -> Any:
    """Copies a tree to NumPy arrays; views would keep donated buffers alive."""
    return jax.tree.map(lambda leaf: np.array(leaf), tree)
