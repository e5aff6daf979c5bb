"""Environments of the user's, named as "module:Class"."""

import importlib
from typing import Any

from rlx2_jax.envs.base import RAISED, check_interrupted, describe
from rlx2_jax.envs.device import DeviceEnv, device_env, from_functions
from rlx2_jax.envs.spaces import check_limit

_OWN = object()


def import_module(name: str) -> Any:
    """The module that "module:Class" or "module:Task-v0" names; None if it names none.

    Raises:
      ImportError: whatever the import raised.
    """
    module, _, _ = name.rpartition(":")
    if not module:
        return None
    try:
        return importlib.import_module(module)
    except RAISED as error:  # the module's own, too
        check_interrupted(error)
        problem = describe(error)
        raise ImportError(f"{name!r}: importing {module!r} failed, {problem}") from error


def make(name: str, *, max_episode_steps: Any = _OWN, **options: Any) -> DeviceEnv:
    """An environment in JAX.

    Args:
      name: "module:Class". Calling it gives an environment with `reset(key)`, `step(state,
        action)`, `action_dim` and `max_episode_steps` (`device.Environment`), or a `DeviceEnv`.
      max_episode_steps: another time limit than the environment's own; None for none.
      **options: arguments of the class.
    """
    module = import_module(name)
    if module is None:
        raise ValueError(
            f"the jax backend has no environment {name!r}: name your own as module:Class, or "
            "choose another --env_backend"
        )
    found: Any = getattr(module, name.rpartition(":")[2], None)
    if not callable(found):
        raise ValueError(f"{name!r}: the module {module.__name__!r} has no such class or function")
    env: Any = found(**options)
    made = device_env(env)
    if max_episode_steps is _OWN:
        return made
    limit = check_limit("max_episode_steps", max_episode_steps)
    if isinstance(env, DeviceEnv):
        raise ValueError(f"{name!r} is a DeviceEnv with a time limit of its own: leave yours out")
    return from_functions(env.reset, env.step, made.spec._replace(max_episode_steps=limit))
