"""Environments as pure functions of one environment, for vmap and scan on the device."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jax.typing import ArrayLike

from rlx2_jax.envs.base import EnvSpec
from rlx2_jax.types import TimeStep


class EnvState(NamedTuple):
    """One environment's state: a pytree of plain arrays that can be saved directly.

    Attributes:
      task: the task's state.
      obs: the observation to act on: f32[obs].
      key: the raw key for later episodes: u32[2].
      elapsed: steps taken in this episode: i32[].
    """

    task: Any
    obs: jax.Array
    key: jax.Array
    elapsed: jax.Array


@dataclass(frozen=True)
class DeviceEnv:
    """A task on the device.

    Attributes:
      spec: sizes and time limit.
      reset: key -> EnvState. Starts an environment; all of its episodes derive from the key.
      step: (EnvState, action f32[act] in [-1, 1]) -> (EnvState, TimeStep). Starts a new episode,
        from a fresh key, when one ends.
    """

    spec: EnvSpec
    reset: Callable[[jax.Array], EnvState]
    step: Callable[[EnvState, jax.Array], tuple[EnvState, TimeStep[jax.Array]]]


class Environment(Protocol):
    """A custom task: pure functions of one environment, without restarts or a time limit."""

    @property
    def action_dim(self) -> int:
        """Actions are f32[action_dim] in [-1, 1]."""
        ...

    @property
    def max_episode_steps(self) -> int | None:
        """Episodes are truncated after this many steps."""
        ...

    def reset(self, key: jax.Array, /) -> tuple[Any, jax.Array]:
        """The initial state and observation f32[obs] of an episode."""
        ...

    def step(self, state: Any, action: jax.Array, /) -> tuple[Any, jax.Array, jax.Array, jax.Array]:
        """The next state, observation f32[obs], reward f32[] and terminated bool[]."""
        ...


def idle_env(spec: EnvSpec) -> DeviceEnv:
    """An environment that never changes, for training without environment steps."""
    obs = jnp.zeros(spec.obs_dim)
    state = EnvState((), obs, jnp.zeros(2, jnp.uint32), jnp.int32(0))
    no = jnp.bool_(False)
    return DeviceEnv(
        spec, lambda key: state, lambda state, action: (state, TimeStep(obs, obs, obs[0], no, no))
    )


def device_env(env: Environment | DeviceEnv) -> DeviceEnv:
    """An environment with time limit and restarts; a `DeviceEnv` passes through."""
    if isinstance(env, DeviceEnv):
        return env
    missing = [n for n in ("reset", "step", "action_dim") if not hasattr(env, n)]
    if missing:
        raise TypeError(
            f"{type(env).__name__} has no {', '.join(missing)}: an environment has reset(key) -> "
            f"(state, obs), step(state, action) -> (state, obs, reward, terminated) and action_dim"
        )
    _, obs = jax.eval_shape(env.reset, jax.random.key_data(jax.random.key(0)))
    if obs.ndim != 1:
        raise ValueError(f"observations have shape {obs.shape}: flatten them to one axis")
    limit = getattr(env, "max_episode_steps", None)
    return from_functions(env.reset, env.step, EnvSpec(obs.shape[0], int(env.action_dim), limit))


def from_functions(
    reset: Callable[[jax.Array], tuple[Any, jax.Array]],
    step: Callable[[Any, jax.Array], tuple[Any, jax.Array, ArrayLike, ArrayLike]],
    spec: EnvSpec,
) -> DeviceEnv:
    """Adds a time limit and restarts to a bare task.

    Args:
      reset: raw key u32[2] -> (task state, obs[obs]).
      step: (task state, action[act]) -> (task state, obs[obs], reward[], terminated[]).
      spec: sizes, and the time limit to apply.
    """

    # Jitted so that the task is traced once, although programs contain it several times.
    reset, step = (jax.jit(function, inline=True) for function in (reset, step))

    def begin(key: jax.Array) -> EnvState:
        key, start = jax.random.split(key)
        task, obs = reset(start)
        return EnvState(jax.tree.map(jnp.asarray, task), _f32(obs), key, jnp.int32(0))

    def first(key: jax.Array) -> EnvState:
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.key_data(key)
        return begin(key)

    def advance(state: EnvState, action: jax.Array) -> tuple[EnvState, TimeStep[jax.Array]]:
        task, obs, reward, terminated = step(state.task, action)
        # A task may return Python numbers, but the dtypes of a scan's carry must not change.
        task = jax.tree.map(lambda old, new: jnp.asarray(new, old.dtype), state.task, task)
        obs, elapsed = _f32(obs), state.elapsed + 1
        terminated = jnp.asarray(terminated, bool)
        truncated = jnp.bool_(False)
        if spec.max_episode_steps is not None:
            truncated = elapsed >= spec.max_episode_steps
        moved = EnvState(task, obs, state.key, elapsed)
        state = _restart(begin)(terminated | truncated, moved)
        return state, TimeStep(obs, state.obs, _f32(reward), terminated, truncated)

    return DeviceEnv(spec, first, advance)


def _restart(begin: Callable[[jax.Array], EnvState], depth: int = 0) -> Callable[..., EnvState]:
    """`where(ended, begin(state.key), state)` that computes `begin` only if an episode has ended.

    Under `vmap`, `cond` becomes `select`, and every step would reset every environment (40% more
    time in Brax's inverted_pendulum). The batching rule below keeps a real branch at any depth of
    vmaps, taken if any environment of the batch has ended.

    Args:
      begin: key -> EnvState.
      depth: the number of batch axes of `ended` and `state`.
    """
    begin_all = begin
    for _ in range(depth):
        begin_all = jax.vmap(begin_all)

    @custom_vmap
    def restart(ended: jax.Array, state: EnvState) -> EnvState:
        def pick(fresh: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(lax.expand_dims(ended, range(depth, fresh.ndim)), fresh, old)

        return lax.cond(
            jnp.any(ended),
            lambda state: jax.tree.map(pick, begin_all(state.key), state),
            lambda state: state,
            state,
        )

    @restart.def_vmap
    def rule(size: int, batched: Any, ended: jax.Array, state: EnvState) -> tuple[EnvState, Any]:
        def broadcast(x: jax.Array, has_axis: bool) -> jax.Array:
            return x if has_axis else jnp.broadcast_to(x, (size, *x.shape))

        ended, state = jax.tree.map(broadcast, (ended, state), tuple(batched))
        state = _restart(begin, depth + 1)(ended, state)
        return state, jax.tree.map(lambda _: True, state)

    return restart


def _f32(x: Any) -> jax.Array:
    return jnp.asarray(x, jnp.float32)
