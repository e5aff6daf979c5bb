"""Episodes of a policy: one function for host environments, one for device environments."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax.envs.base import EnvironmentFailure, HostEnvs
from rlx2_jax.envs.device import DeviceEnv
from rlx2_jax.types import TimeStep

LONGEST = 100_000  # maximum steps of an episode without a time limit


class Moment(NamedTuple):
    """One step of E host environments, each in its only episode.

    Attributes:
      obs: observations acted on: f32[E, obs].
      action: actions: [E, act].
      after: what the environments returned: [E, ...].
      active: whether the episode had not ended before; other rows are invalid: bool[E].
    """

    obs: np.ndarray
    action: np.ndarray
    after: TimeStep[np.ndarray]
    active: np.ndarray


def host_episodes(
    envs: HostEnvs, act: Callable[[np.ndarray], np.ndarray], seeds: Sequence[int]
) -> Iterator[Moment]:
    """Runs one episode in every environment; yields each step until all have ended.

    Args:
      act: `[E, obs] -> [E, act]` in [-1, 1].

    Raises:
      EnvironmentFailure: an environment raised, or an episode does not end.
    """
    longest = envs.spec.max_episode_steps or LONGEST
    obs, active = envs.reset(seeds), np.ones(envs.num_envs, bool)
    for _ in range(longest):
        action = act(obs)
        after = envs.step(action, active)
        yield Moment(obs, action, after, active)
        active = active & ~(after.terminated | after.truncated)
        if not active.any():
            return
        obs = after.obs
    error = TimeoutError(
        f"an episode has not ended after {longest:,} steps and the environment has no time limit: "
        f"add one with --max_episode_steps"
    )
    raise EnvironmentFailure("evaluation", int(np.argmax(active)), error)


class Episode(NamedTuple):
    """One episode on the device, padded with 0 and False to the time limit T.

    Attributes:
      reward: rewards: f32[T].
      active: whether the step belongs to the episode: bool[T].
      cut: whether the step was truncated and not terminated: bool[T].
      extra: the second output of `act`, also after the end.
    """

    reward: jax.Array
    active: jax.Array
    cut: jax.Array
    extra: Any


def device_episode(
    env: DeviceEnv, act: Callable[[jax.Array], tuple[jax.Array, Any]], key: jax.Array
) -> Episode:
    """Runs the episode that starts with `key`, as one scan; needs a time limit.

    Args:
      act: `obs[obs] -> (action[act], extra)`.
    """
    if env.spec.max_episode_steps is None:
        raise ValueError(
            "episodes on the device need a time limit: add one with --max_episode_steps"
        )

    def step(carry: tuple[Any, jax.Array], _: None) -> tuple[tuple[Any, jax.Array], Episode]:
        state, active = carry
        action, extra = act(state.obs)
        state, after = env.step(state, action)
        out = Episode(
            jnp.where(active, after.reward, 0.0),
            active,
            active & after.truncated & ~after.terminated,
            extra,
        )
        return (state, active & ~(after.terminated | after.truncated)), out

    begin = (env.reset(key), jnp.ones((), bool))
    return jax.lax.scan(step, begin, None, env.spec.max_episode_steps)[1]
