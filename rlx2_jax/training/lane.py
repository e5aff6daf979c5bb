"""One lane: an agent with its replay buffer and counters, and one time step of it.

    act → environment → add → [every Δ_b] policy distance, trim → sample → update → act

Pure functions of one lane; callers `vmap` them over lanes, with the time `t` unbatched. All
randomness derives from (seed, stream, time), so a lane does not depend on its neighbours.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rlx2_jax import networks
from rlx2_jax.agents import ALGORITHMS
from rlx2_jax.agents.common import BY_COUNT, Due, networks_of, observe, switched_n
from rlx2_jax.config import Config, Hyper, Lane
from rlx2_jax.control_flow import after, every, when
from rlx2_jax.networks import convert
from rlx2_jax.options import NEVER
from rlx2_jax.prng import Stream, stream_key
from rlx2_jax.replay import buffer
from rlx2_jax.types import Array, Network, TimeStep, Transition


class Acting(NamedTuple):
    """The pending action; together with the `TimeStep` that follows it becomes a `Transition`.

    Attributes:
      obs: the observation it was chosen for: f32[envs, obs].
      action: in [-1, 1]: [envs, act].
      mean: the policy's noise-free action, or the random action in warm-up: [envs, act].
    """

    obs: Array
    action: Array
    mean: Array


class Stats(NamedTuple):
    """Reported counters.

    Attributes:
      alive: False once a gradient was not finite, which freezes the agent: bool[].
      distance: D(B, φ) at the last check: f32[].
      trims: checks that shortened the buffer: i32[].
      evolutions: per network, mask updates that were due: i32[].
      ever: per network and weight matrix, a bit for each link ever live: u8[bytes].
    """

    alive: Array
    distance: Array
    trims: Array
    evolutions: dict[str, Array]
    ever: dict[str, list[Array]]


class LaneState(NamedTuple):
    """The complete state of a lane.

    Attributes:
      seed: an integer i32[], or raw key data u32[2].
      agent: the algorithm's state, for instance `td3.State`.
      replay: the buffer.
      acting: the pending action.
      stats: counters.
      expert: the critics of a trained expert (RigL+Q*), or None.
    """

    seed: Array
    agent: Any
    replay: buffer.Buffer
    acting: Acting
    stats: Stats
    expert: networks.BoundNetwork | None = None


def init(config: Config, lane: Lane, obs: Array, *, horizon: int | None = None) -> LaneState:
    """A lane before its first step.

    Args:
      obs: the environments' first observations, `[envs, obs]`.
      horizon: their time limit, if they have one.
    """
    seed = jnp.asarray(lane.seed, jnp.int32)
    return start(config, seed, init_agent(config, lane, seed), obs, horizon=horizon)


def init_agent(config: Config, lane: Lane, seed: Array) -> Any:
    """The agent of a lane, initialized from `seed` (may be traced) instead of `lane.seed`."""
    return ALGORITHMS[config.algo].init(stream_key(seed, Stream.INIT, 0), config, lane)


def start(
    config: Config, seed: Array, agent: Any, obs: Array, *, horizon: int | None = None
) -> LaneState:
    """A lane with a given agent and an empty buffer, about to take its first action."""
    action = random_action(seed, 1, config)
    ones = jnp.ones(config.num_envs)
    example = Transition(obs, action, ones, obs, ones > 0, ones > 0, _kept_mean(config, action))
    replay = buffer.init(config.capacity, example, horizon=horizon, n=config.n_max)
    zero = jnp.zeros((), jnp.int32)
    nets = networks_of(agent)
    stats = Stats(
        alive=jnp.ones((), bool),
        distance=jnp.zeros(()),
        trims=zero,
        evolutions=dict.fromkeys(nets, zero),
        ever={name: _bits(net) for name, net in nets.items()},
    )
    obs = jnp.asarray(obs, jnp.float32)
    acting = Acting(obs, action, action)
    if not offline(config):
        agent = observe(agent, obs)
    if warmup_time(config) + 1 < config.n_max and not offline(config):
        raise ValueError(
            f"warmup={config.warmup} gives fewer steps than a window of n_max={config.n_max} has "
            f"when updates begin: use at least {(config.n_max - 1) * config.num_envs}"
        )
    return LaneState(seed, agent, replay, acting, stats)


def step(
    state: LaneState, after: TimeStep[Array], t: Array, config: Config, hyper: Hyper, *, learn: bool
) -> tuple[LaneState, dict[str, Array]]:
    """One time step: store the transition of time `t` (from 1), trim, learn, act for `t + 1`.

    Correct at every `t`, since it branches on what is due. Loops use it only for events, and
    `plain_step` in between.

    Args:
      after: what the environments returned for the pending action, `[envs, ...]`.
      t: time steps so far including this one, each of `config.num_envs` environment steps. Not
        batched over lanes.
      learn: static; False in warm-up (`t <= warmup_time(config)`).
    """
    replay, stats = state.replay, state.stats
    if not offline(config):
        state = state._replace(agent=observe(state.agent, after.obs, stats.alive))
        replay = _store(state, after, config, hyper, True)
        length, stats = _trim(state.agent, replay, stats, t, config, hyper)
        replay = replay._replace(length=length)
    agent, metrics = state.agent, {}
    if learn:
        agent, stats, metrics = _learn(state, replay, stats, t, config, hyper, (BY_COUNT,), True)
    state = state._replace(agent=agent, replay=replay, stats=stats)
    if offline(config):
        return state, metrics
    return state._replace(acting=act(state, after.obs, t + 1, config, hyper)), metrics


def plain_step(
    state: LaneState,
    after: TimeStep[Array],
    t: Array,
    config: Config,
    hyper: Hyper,
    *,
    dues: tuple[Due, ...],
    active: Array | bool = True,
) -> tuple[LaneState, dict[str, Array]]:
    """`step` without branches, for times that are not events (see `segments.next_event`): no mask
    evolves and the buffer is not checked.

    Args:
      dues: static; the updates of this time step, repeated up to `config.updates_per_step`. Empty
        in warm-up.
      active: if False, nothing changes.
    """
    replay = state.replay
    if not offline(config):
        state = state._replace(agent=observe(state.agent, after.obs, active & state.stats.alive))
        replay = _store(state, after, config, hyper, active)
    agent, stats, metrics = state.agent, state.stats, {}
    if dues:
        agent, stats, metrics = _learn(state, replay, stats, t, config, hyper, dues, active)
        replay = _read_before_write(replay, (stats.alive, metrics))
    state = state._replace(agent=agent, replay=replay, stats=stats)
    if offline(config):
        return state, metrics
    acting = act(state, after.obs, t + 1, config, hyper)
    if active is not True:
        acting = jax.tree.map(lambda a, b: jnp.where(active, a, b), acting, state.acting)
    return state._replace(acting=acting), metrics


def act(state: LaneState, obs: Array, t: Array, config: Config, hyper: Hyper) -> Acting:
    """The actions at time `t`: uniformly random in warm-up, then from the exploration policy."""
    key = stream_key(state.seed, Stream.ACT, t)
    action, mean = ALGORITHMS[config.algo].act(state.agent, obs, key, config, hyper)
    uniform = random_action(state.seed, t, config)
    warm = t <= warmup_time(config)
    return Acting(
        obs.astype(jnp.float32), jnp.where(warm, uniform, action), jnp.where(warm, uniform, mean)
    )


def random_action(seed: Array, t: Array | int, config: Config) -> Array:
    """Warm-up actions, uniform in [-1, 1]: `[envs, act]`."""
    key = stream_key(seed, Stream.WARMUP, t)
    return jax.random.uniform(key, (config.num_envs, config.action_dim), minval=-1.0, maxval=1.0)


def offline(config: Config) -> bool:
    """Whether lanes learn only from their initial replay, without environment steps."""
    return ALGORITHMS[config.algo].networks.offline


def warmup_time(config: Config) -> int:
    """The last time step of warm-up."""
    return -(-config.warmup // config.num_envs)


def total_time(config: Config) -> int:
    """The last time step of a run."""
    return -(-config.steps // config.num_envs)


def _store(
    state: LaneState, after: TimeStep[Array], config: Config, hyper: Hyper, valid: Array | bool
) -> buffer.Buffer:
    acting = state.acting
    transition = Transition(
        acting.obs,
        acting.action,
        after.reward,
        after.next_obs,
        after.terminated,
        after.truncated,
        _kept_mean(config, acting.mean),
    )
    return buffer.add(state.replay, transition, limit=hyper.b_max, valid=valid)


def _read_before_write(replay: buffer.Buffer, results: Any) -> buffer.Buffer:
    """Orders the next write to `replay` after the reads that produced `results`. In an unrolled
    loop body, TD3's next action does not depend on a critic-only update, and without this ordering
    XLA would copy the replay arrays."""
    return replay._replace(
        written=after(replay.written, results),
        finals_written=after(replay.finals_written, results),
    )


def _kept_mean(config: Config, mean: Array) -> Array | None:
    return mean if config.behaviour == "mean" else None


def _trim(
    agent: Any, replay: buffer.Buffer, stats: Stats, t: Array, config: Config, hyper: Hyper
) -> tuple[Array, Stats]:
    """Algorithm 3, lines 11-18, every Δ_b environment steps. Returns only the new length: the
    branch reads the replay arrays but does not output them, so XLA does not copy them."""
    policy = ALGORITHMS[config.algo].mean_action
    lane_interval = jnp.maximum(hyper.buffer_interval // config.num_envs, 1)

    def check(before: tuple[Array, Stats]) -> tuple[Array, Stats]:
        stats = before[1]
        current = lambda obs: policy(networks.online(agent.actor), obs)  # noqa: E731
        form = {"distance": config.distance, "behaviour": config.behaviour}
        distance = buffer.policy_distance(replay, current, config.oldest_k, **form)
        bounds = {"b_min": hyper.b_min, "b_max": hyper.b_max, "full": config.trim_full}
        if config.trim == "ratio":
            hard = config.b_min_bound == "hard"
            trimmed = buffer.trim(
                replay, distance, hyper.d0, ratio=hyper.trim_ratio, hard=hard, **bounds
            )
        else:  # ratio 0 means a fixed buffer, without a threshold
            threshold = jnp.where(hyper.trim_ratio > 0, hyper.d0, jnp.inf)
            trimmed = buffer.trim_until(
                replay, current, threshold, config.oldest_k, **form, **bounds
            )
        due = t % lane_interval == 0
        length = jnp.where(due, trimmed.length, replay.length)
        return length, stats._replace(
            distance=jnp.where(due, distance, stats.distance),
            trims=stats.trims + (length < replay.length),
        )

    interval = max(config.buffer_interval // config.num_envs, 1)
    return every(interval, t, check, (replay.length, stats))


def _learn(
    state: LaneState,
    replay: buffer.Buffer,
    stats: Stats,
    t: Array,
    config: Config,
    hyper: Hyper,
    dues: tuple[Due, ...],
    active: Array | bool,
) -> tuple[Any, Stats, dict[str, Array]]:
    """`config.updates_per_step` gradient updates with a fresh batch each: the updates in `dues`,
    repeated in a loop if there are fewer."""
    algorithm, updates = ALGORITHMS[config.algo], config.updates_per_step
    seed, done = state.seed, (t - warmup_time(config) - 1) * updates
    guide = {} if state.expert is None else {"expert": state.expert}

    def one(
        agent: Any, stats: Stats, count: Array, due: Due
    ) -> tuple[Any, Stats, dict[str, Array]]:
        env_step = t * config.num_envs
        reach = switched_n(env_step, count, config, hyper)
        key = stream_key(seed, Stream.SAMPLE, count)
        batch = buffer.sample(replay, key, config.batch_size, config.n_max, reach=reach)
        key = stream_key(seed, Stream.UPDATE, count)
        current = _frozen_unless(stats.alive, hyper)
        new, metrics = algorithm.update(
            agent, batch, key, env_step, count, config, current, due=due, active=active, **guide
        )
        if due.evolves:
            stats = _count(stats, new, count, config, current)
        alive = stats.alive & (metrics["finite"] | ~jnp.asarray(active))
        return new, stats._replace(alive=alive), metrics

    def repeated(
        agent: Any, stats: Stats, first: Array, due: Due
    ) -> tuple[Any, Stats, dict[str, Array]]:
        each = lambda agent, stats, count: one(agent, stats, count, due)  # noqa: E731
        return _scan(each, agent, stats, first + jnp.arange(due.times))

    def several(agent: Any, stats: Stats, first: Array) -> tuple[Any, Stats, dict[str, Array]]:
        metrics: dict[str, Array] = {}
        for due in dues:
            agent, stats, metrics = repeated(agent, stats, first, due)
            first = first + due.times
        return agent, stats, metrics

    period = sum(due.times for due in dues)
    return _scan(several, state.agent, stats, done + jnp.arange(1, updates + 1, period))


def _scan(
    step: Callable[[Any, Stats, Array], tuple[Any, Stats, dict[str, Array]]],
    agent: Any,
    stats: Stats,
    counts: Array,
) -> tuple[Any, Stats, dict[str, Array]]:
    """`step` at each of `counts`, in a scan if there are several; returns the last metrics."""
    if len(counts) == 1:
        return step(agent, stats, counts[0])

    def body(carry: tuple[Any, Stats], count: Array):
        agent, stats, metrics = step(*carry, count)
        return (agent, stats), metrics

    (agent, stats), metrics = jax.lax.scan(body, (agent, stats), counts)
    return agent, stats, jax.tree.map(lambda x: x[-1], metrics)


def _frozen_unless(alive: Array, hyper: Hyper) -> Hyper:
    """`hyper` if `alive`; otherwise, with rates of zero, so that networks no longer change."""
    still = lambda x: jnp.where(alive, x, jnp.zeros_like(x))  # noqa: E731
    return hyper._replace(
        learning_rate=still(hyper.learning_rate),
        tau=still(hyper.tau),
        critic=hyper.critic._replace(zeta0=still(hyper.critic.zeta0)),
        actor=hyper.actor._replace(zeta0=still(hyper.actor.zeta0)),
    )


def _count(stats: Stats, agent: Any, count: Array, config: Config, hyper: Hyper) -> Stats:
    """Counts the mask updates of this gradient update, if it was due to have any."""
    evolutions, ever = dict(stats.evolutions), dict(stats.ever)
    for name, live in networks_of(agent).items():
        delay = config.policy_delay if name == "actor" else 1
        topology = config.topology.delayed(delay)
        due = topology.due(getattr(hyper, name), count // delay)
        evolutions[name] += (count % delay == 0) & due

        def mark_live(ever: list[Array], live: Network = live) -> list[Array]:
            return jax.tree.map(jnp.bitwise_or, ever, _bits(live))

        at = topology.traits.at
        if at is not None:
            ever[name] = when(count == at * delay, mark_live, ever[name])
        else:
            interval = min(config.mask_interval * delay, NEVER)
            ever[name] = every(interval, count, mark_live, ever[name])
    return stats._replace(evolutions=evolutions, ever=ever)


def _bits(network: Network) -> list[Array]:
    """The masks of all weight matrices as packed bits: `[bytes]`, or `[members, bytes]`."""
    lead = () if network.members is None else (network.members,)
    leaves = jax.tree.leaves(convert.dense_masks(network))
    kernels = [mask for mask in leaves if mask.ndim == len(lead) + 2]
    return [jnp.packbits(mask.reshape(*lead, -1), axis=-1) for mask in kernels]
