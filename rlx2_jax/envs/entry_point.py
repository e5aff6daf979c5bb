"""User-defined environments, named as "module:Class"."""

import importlib
from typing import Any

from rlx2_jax.envs.base import RAISED, check_interrupted, describe
from rlx2_jax.envs.device import DeviceEnv, device_env, from_functions
from rlx2_jax.envs.spaces import check_limit

_DEFAULT = object()


def import_module(name: str) -> Any:
    """Imports the module of "module:Class" or "module:Task-v0"; None if `name` has no module.

    Raises:
      ImportError: the import raised, for any reason.
    """
    module, _, _ = name.rpartition(":")
    if not module:
        return None
    try:
        return importlib.import_module(module)
    except RAISED as error:  # the module may raise anything
        check_interrupted(error)
        problem = describe(error)
        raise ImportError(f"{name!r}: importing {module!r} failed, {problem}") from error


def make(name: str, *, max_episode_steps: Any = _DEFAULT, **options: Any) -> DeviceEnv:
    """An environment in JAX.

    Args:
      name: "module:Class". Calling it must return a `device.Environment` (with `reset(key)`,
        `step(state, action)`, `action_dim` and `max_episode_steps`) or a `DeviceEnv`.
      max_episode_steps: overrides the environment's time limit; None for none.
      **options: arguments of the class.
    """
    module = import_module(name)
    if module is None:
        raise ValueError(
            f"the jax backend has no environment {name!r}: give yours as module:Class, or "
            "choose another --env_backend"
        )
    factory: Any = getattr(module, name.rpartition(":")[2], None)
    if not callable(factory):
        raise ValueError(f"{name!r}: the module {module.__name__!r} has no such class or function")
    env: Any = factory(**options)
    made = device_env(env)
    if max_episode_steps is _DEFAULT:
        return made
    limit = check_limit("max_episode_steps", max_episode_steps)
    if isinstance(env, DeviceEnv):
        raise ValueError(
            f"{name!r} is a DeviceEnv and sets its time limit itself: omit max_episode_steps"
        )
    return from_functions(env.reset, env.step, made.spec._replace(max_episode_steps=limit))
