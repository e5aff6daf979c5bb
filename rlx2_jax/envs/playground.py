"""MuJoCo Playground's tasks as `DeviceEnv`s, without Playground's wrappers.

The DeepMind Control tasks come with the package. Robot tasks need models that Playground clones
from GitHub on first use.
"""

import contextlib
import importlib
import io
import subprocess
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from rlx2_jax.envs.base import EnvSpec, quiet_mujoco, unknown_id
from rlx2_jax.envs.device import DeviceEnv, from_functions
from rlx2_jax.envs.spaces import check_limit, check_sizes

_DEFAULT = object()


@contextlib.contextmanager
def _allow_old_apis() -> Iterator[None]:
    """Allows rank promotion and deprecated APIs inside Playground only."""
    with warnings.catch_warnings(), jax.numpy_rank_promotion("allow"):
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def make(
    name: str, *, max_episode_steps: Any = _DEFAULT, impl: str = "jax", **options: Any
) -> DeviceEnv:
    """One Playground task.

    Args:
      name: Playground's name, e.g. "HumanoidStand" or "CartpoleBalance".
      max_episode_steps: the time limit; None for none, default: the task's.
      impl: MJX's implementation. Playground's default, "warp", keeps the contacts of all
        environments in one pool, so single environments cannot be restarted.
      **options: entries of the task's configuration, e.g. `ctrl_dt=0.02`.

    If a task has several observations, uses "state", the policy's observation.
    """
    try:
        # MJX prints messages about missing optional packages.
        with _allow_old_apis(), contextlib.redirect_stdout(io.StringIO()):
            registry: Any = importlib.import_module("mujoco_playground").registry
    except ImportError as error:
        raise ImportError(
            "the playground backend needs MuJoCo Playground: pip install 'rlx2_jax[playground]'"
        ) from error
    if name not in registry.ALL_ENVS:
        raise unknown_id(name, registry.ALL_ENVS, "Playground")
    if impl != "jax":
        raise ValueError(f"impl is {impl!r}: only 'jax' can restart single environments; omit it")
    config = registry.get_default_config(name)
    if unknown := sorted(set(options) - set(config)):
        raise ValueError(
            f"{name} has no option {', '.join(unknown)} in Playground; it has "
            f"{', '.join(sorted(config))}"
        )
    if "impl" in config:
        options["impl"] = impl
    with _allow_old_apis(), quiet_mujoco():
        env = _load(registry, name, config, options)
        start = jax.eval_shape(env.reset, jax.eval_shape(jax.random.PRNGKey, 0))
    repeat = int(env._config.action_repeat)  # implemented by Playground's wrappers
    if max_episode_steps is _DEFAULT:
        max_episode_steps = -(-int(env._config.episode_length) // repeat)
    limit = check_limit("max_episode_steps", max_episode_steps)
    size = _seen(start.obs).shape[0]
    check_sizes(name, size, env.action_size)

    def reset(key: jax.Array) -> tuple[Any, jax.Array]:
        with _allow_old_apis():
            state = env.reset(key)
        return state, _seen(state.obs)

    def step(state: Any, action: jax.Array) -> tuple[Any, jax.Array, jax.Array, jax.Array]:
        reward = jnp.zeros(())
        with _allow_old_apis():
            for _ in range(repeat):
                # Copy the containers: tasks mutate the metrics dict of their input.
                state = env.step(jax.tree.map(lambda x: x, state), action)
                reward = reward + state.reward
        return state, _seen(state.obs), reward, state.done > 0

    # Each Playground task scales actions in [-1, 1] to its actuators itself.
    return from_functions(reset, step, EnvSpec(size, env.action_size, limit))


def _load(registry: Any, name: str, config: Any, options: dict[str, Any]) -> Any:
    try:
        return registry.load(name, config, config_overrides=options)
    except (OSError, subprocess.SubprocessError) as error:
        raise ImportError(
            f"Playground could not fetch the models that {name} needs ({error}): on a machine with "
            "access to GitHub create the task once, or copy mujoco_menagerie into "
            "mujoco_playground/external_deps"
        ) from error


def _seen(obs: Any) -> Any:
    obs = obs if hasattr(obs, "shape") else obs["state"]
    if len(obs.shape) != 1:
        raise ValueError(f"observations have shape {obs.shape}; a single vector is needed")
    return obs
