"""Training on a device environment as one pure function of a key.

    train = make_train(env, config)
    result = jax.jit(jax.vmap(train))(jax.random.split(key, 64))

`train` contains all of Algorithm 4 or 5 (warm-up, acting, replay, buffer trimming, updates, mask
evolution, evaluation), so it can be jitted, vmapped over seeds and hyper-parameters, sharded, and
called from other JAX code.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rlx2_jax import config as configs
from rlx2_jax import networks
from rlx2_jax.config import Config, Hyper, Lane
from rlx2_jax.control_flow import zeros
from rlx2_jax.envs.device import DeviceEnv, Environment, EnvState, device_env
from rlx2_jax.envs.rollout import device_episode
from rlx2_jax.prng import Stream, stream_key
from rlx2_jax.training import lane as lanes_
from rlx2_jax.training import segments
from rlx2_jax.training.lane import ALGORITHMS, LaneState
from rlx2_jax.training.segments import Dues
from rlx2_jax.types import Array


class TrainResult(NamedTuple):
    """The result of `train(key)`.

    Attributes:
      agent: the final networks (`td3.State` or `sac.State`).
      metrics: arrays over evaluations: `step` (environment steps so far), `return` and `length`
        (means over the evaluation episodes), `buffer_length`, and the metrics of the last update
        before the evaluation (losses, Q).
    """

    agent: Any
    metrics: dict[str, Array]


def make_config(env: Environment | DeviceEnv, algo: str = "td3", **fields: Any) -> Config:
    """A `Config` with an environment's observation and action sizes.

    >>> import rlx2_jax as rlx2
    >>> from rlx2_jax.envs import make_device
    >>> env = make_device("rlx2_jax/Truncation-v0")
    >>> rlx2.make_config(env, "sac", hidden=(32, 32)).obs_dim
    1
    """
    spec = device_env(env).spec
    return configs.make(algo, spec.obs_dim, spec.action_dim, **fields)


def make_train(
    env: Environment | DeviceEnv,
    config: Config,
    lane: Lane | None = None,
    *,
    evaluations: int = 10,
    episodes: int = 10,
) -> Callable[..., TrainResult]:
    """The whole algorithm as a pure function `train(key, hyper=None, agent=None)`.

    Args:
      env: a task with `reset` and `step` (see `Environment`), or one from `envs.make_device`.
      config: sizes, budget and static choices (`make_config`).
      lane: the method, sparsities and hyper-parameters; its seed is ignored.
      evaluations: how many, evenly spaced over the updates; 0 for none.
      episodes: noise-free episodes per evaluation; they need a time limit.

    Returns:
      `train(key, hyper, agent)`. `hyper` (`config.hyper(config, lane)`, optional) are traced
      hyper-parameters, so that the lanes of a `vmap` can differ in them. `agent` (optional) are the
      initial networks (`td3.init`), which may differ in sparsity.

    >>> import jax
    >>> import rlx2_jax as rlx2
    >>> from rlx2_jax.envs import make_device
    >>> env = make_device("rlx2_jax/Truncation-v0")
    >>> config = rlx2.make_config(env, steps=60, warmup=20, hidden=(8, 8), batch_size=8)
    >>> train = rlx2.make_train(env, config, rlx2.Lane(method="rlx2"), evaluations=2)
    >>> result = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), 3))
    >>> result.metrics["return"].shape
    (3, 2)
    """
    env, lane = device_env(env), lane or Lane()
    if (env.spec.obs_dim, env.spec.action_dim) != (config.obs_dim, config.action_dim):
        raise ValueError(
            f"the environment has sizes {env.spec[:2]} and config has "
            f"{(config.obs_dim, config.action_dim)}: use make_config(env, ...)"
        )
    if lanes_.offline(config):
        raise ValueError(f"algo={config.algo!r} learns from demonstrations: use rlx2.train")
    if evaluations and env.spec.max_episode_steps is None:
        raise ValueError("evaluation needs a time limit: set max_episode_steps, or evaluations=0")
    config = configs.with_topology(config, lane)
    lane = configs.resolve(config, lane)
    default_hyper = configs.hyper(config, lane)
    warm, end = lanes_.warmup_time(config), lanes_.total_time(config)
    # Replay arrays need no more rows than there are steps; B_max and B_min are unchanged.
    rows = max(end, config.n_max) * config.num_envs
    config = dataclasses.replace(config, capacity=min(config.capacity, rows))
    interval = (end - warm) // max(evaluations, 1)
    if interval < 1:
        raise ValueError(
            f"evaluations={evaluations}: there are only {end - warm} steps with updates"
        )

    def train(key: Array, hyper: Hyper | None = None, agent: Any = None) -> TrainResult:
        hyper = default_hyper if hyper is None else hyper
        seed = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
        index = jnp.arange(config.num_envs)
        keys = jax.vmap(lambda i: stream_key(seed, Stream.ENVIRONMENT, i))(index)
        env_state = jax.vmap(env.reset)(keys)
        agent = lanes_.init_agent(config, lane, seed) if agent is None else agent
        horizon = env.spec.max_episode_steps
        state = lanes_.start(config, seed, agent, env_state.obs, horizon=horizon)
        carry = _advance(env, config, hyper, (state, env_state), 1, warm + 1, learn=False)
        rows = []
        if evaluations:

            def stage(carry: Any, i: Array) -> tuple[Any, dict[str, Array]]:
                first = warm + 1 + i * interval
                *carry, metrics = _advance(
                    env, config, hyper, carry, first, first + interval, learn=True
                )
                state = carry[0]
                row = _evaluate(env, config, state, episodes)
                row |= {"step": (first + interval - 1) * config.num_envs}
                row |= {"buffer_length": state.replay.length * config.num_envs}
                return tuple(carry), row | {k: v for k, v in metrics.items() if k != "finite"}

            carry, rows = jax.lax.scan(stage, carry[:2], jnp.arange(evaluations))
        done = warm + 1 + evaluations * interval
        if done <= end:  # compiled as a second loop: only if steps are left after the evaluations
            carry = _advance(env, config, hyper, carry[:2], done, end + 1, learn=True)
        return TrainResult(carry[0].agent, dict(rows))

    return train


def _advance(
    env: DeviceEnv,
    config: Config,
    hyper: Hyper,
    carry: Any,
    first: Array | int,
    stop: Array | int,
    *,
    learn: bool,
) -> tuple[LaneState, EnvState, dict[str, Array]]:
    """Time steps `first` to `stop - 1` of one lane."""

    step_envs = jax.vmap(env.step)

    def plain(carry: Any, t: Array, dues: Dues, active: Array | bool) -> Any:
        state, before, old = carry
        env_state, after = step_envs(before, state.acting.action)
        state, metrics = lanes_.plain_step(state, after, t, config, hyper, dues=dues, active=active)
        return state, *segments.select(active, (env_state, metrics), (before, old))

    def event(carry: Any, t: Array) -> Any:
        state, env_state, _ = carry
        env_state, after = step_envs(env_state, state.acting.action)
        state, metrics = lanes_.step(state, after, t, config, hyper, learn=learn)
        return state, env_state, metrics

    metrics = zeros(lambda: event((*carry, None), jnp.int32(1))[2])
    return segments.all_steps((*carry, metrics), first - 1, stop - 1, config, learn, plain, event)


def _evaluate(env: DeviceEnv, config: Config, state: LaneState, episodes: int) -> dict[str, Array]:
    """Mean return and length of noise-free episodes, with the same initial states each time."""
    actor = networks.online(state.agent.actor)
    policy = ALGORITHMS[config.algo].mean_action

    def episode(i: Array) -> tuple[Array, Array]:
        key = stream_key(state.seed, Stream.EVALUATION, i)
        record = device_episode(env, lambda obs: (policy(actor, obs), None), key)
        return record.reward.sum(), record.active.sum()

    returns, lengths = jax.vmap(episode)(jnp.arange(episodes))
    return {"return": returns.mean(), "length": lengths.mean()}
