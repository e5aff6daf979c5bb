"""Brax tasks as `DeviceEnv`s, without Brax's wrappers.

Brax's AutoReset overwrites the final observation and always restarts from one cached state;
`device.from_functions` does neither.
"""

import contextlib
import io
import re
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax.envs.base import EnvSpec, quiet_mujoco, unknown_id
from rlx2_jax.envs.device import DeviceEnv, from_functions
from rlx2_jax.envs.spaces import check_limit, check_sizes


@contextlib.contextmanager
def _allow_old_apis() -> Iterator[None]:
    """Allows rank promotion and deprecated APIs inside Brax only."""
    with warnings.catch_warnings(), jax.numpy_rank_promotion("allow"):
        warnings.filterwarnings("ignore", "JAXopt is no longer maintained", DeprecationWarning)
        warnings.filterwarnings("ignore", "Accessing .* directly from `Data`", DeprecationWarning)
        warnings.filterwarnings("ignore", "Brax System, piplines and environments", UserWarning)
        yield


def make(name: str, *, episode_length: int | None = 1000, **options: Any) -> DeviceEnv:
    """One Brax task.

    Args:
      name: Brax's name ("inverted_pendulum", "halfcheetah"), or a Gymnasium id of the same robot
        ("InvertedPendulum-v5"); the two differ in details of physics and reward.
      episode_length: the time limit; None for none.
      **options: passed to the Brax task, e.g. `backend="mjx"`.
    """
    try:
        # Brax prints a message about a missing optional package at every import.
        with _allow_old_apis(), contextlib.redirect_stdout(io.StringIO()):
            from brax import envs
    except ImportError as error:
        raise ImportError("the brax backend needs Brax: pip install 'rlx2_jax[brax]'") from error

    episode_length = check_limit("episode_length", episode_length)
    known = {_plain(k): k for k in envs._envs}  # Brax has no public list
    if _plain(name) not in known:
        raise unknown_id(name, known.values(), "Brax")
    with _allow_old_apis(), quiet_mujoco():
        env = envs.get_environment(known[_plain(name)], **options)
        start = jax.eval_shape(env.reset, jax.eval_shape(jax.random.PRNGKey, 0))
    if not isinstance(start.obs, jax.ShapeDtypeStruct) or start.obs.ndim != 1:
        raise ValueError(f"Brax's {name} observes {start.obs}; a single vector is needed")

    check_sizes(name, start.obs.shape[0], env.action_size)

    def reset(key: jax.Array) -> tuple[Any, jax.Array]:
        with _allow_old_apis():
            state = env.reset(key)
        return state, jnp.asarray(state.obs)

    def step(state: Any, action: jax.Array) -> tuple[Any, jax.Array, Any, jax.Array]:
        with _allow_old_apis():
            # Copy the containers: Brax mutates the metrics dict of its input.
            state = env.step(jax.tree.map(lambda x: x, state), action)
        return state, jnp.asarray(state.obs), state.reward, state.done > 0

    spec = EnvSpec(start.obs.shape[0], env.action_size, episode_length, *_action_bounds(env))
    return from_functions(reset, step, spec)


def _action_bounds(env: Any) -> list[tuple[float, ...] | None]:
    """The actuators' ranges; Brax scales actions in [-1, 1] to them."""
    system = getattr(env, "sys", None)
    if system is None:  # a task without physics
        return [None, None]
    return [tuple(map(float, bound)) for bound in np.asarray(system.actuator.ctrl_range).T]


def _plain(name: str) -> str:
    """Normalizes "InvertedPendulum-v5" and "inverted_pendulum" to "invertedpendulum"."""
    return re.sub(r"-v\d+$", "", name).replace("_", "").lower()
