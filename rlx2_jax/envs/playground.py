"""MuJoCo Playground's tasks as `DeviceEnv`s, without Playground's own wrappers.

The DeepMind Control tasks come with the package. Robot tasks need models that Playground clones
from GitHub when one of them is first made.
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

_OWN = object()


@contextlib.contextmanager
def _playground_habits() -> Iterator[None]:
    """Lets Playground, and nothing around it, promote ranks and use what MJX deprecates."""
    with warnings.catch_warnings(), jax.numpy_rank_promotion("allow"):
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def make(
    name: str, *, max_episode_steps: Any = _OWN, impl: str = "jax", **options: Any
) -> DeviceEnv:
    """One Playground task.

    Args:
      name: Playground's, e.g. "HumanoidStand" or "CartpoleBalance".
      max_episode_steps: the time limit; None for none, default: the task's own.
      impl: MJX's implementation. Playground's own default, "warp", keeps the contacts of all
        environments in one pool, which single environments cannot be restarted from.
      **options: entries of the task's configuration, e.g. `ctrl_dt=0.02`.

    A task that offers several observations is seen through "state", which its policies see.
    """
    try:
        # Redirected: MJX reports missing optional packages on stdout.
        with _playground_habits(), contextlib.redirect_stdout(io.StringIO()):
            registry: Any = importlib.import_module("mujoco_playground").registry
    except ImportError as error:
        raise ImportError(
            "the playground backend needs MuJoCo Playground: pip install 'rlx2_jax[playground]'"
        ) from error
    if name not in registry.ALL_ENVS:
        raise unknown_id(name, registry.ALL_ENVS, "Playground")
    if impl != "jax":
        raise ValueError(
            f"impl is {impl!r}: only 'jax' can restart single environments; leave it out"
        )
    config = registry.get_default_config(name)
    if unknown := sorted(set(options) - set(config)):
        raise ValueError(
            f"{name} has no option {', '.join(unknown)} in Playground; it has "
            f"{', '.join(sorted(config))}"
        )
    if "impl" in config:
        options["impl"] = impl
    with _playground_habits(), quiet_mujoco():
        env = _load(registry, name, config, options)
        start = jax.eval_shape(env.reset, jax.eval_shape(jax.random.PRNGKey, 0))
    repeat = int(env._config.action_repeat)  # Playground leaves it to its wrappers
    if max_episode_steps is _OWN:
        max_episode_steps = -(-int(env._config.episode_length) // repeat)
    limit = check_limit("max_episode_steps", max_episode_steps)
    size = _seen(start.obs).shape[0]
    check_sizes(name, size, env.action_size)

    def reset(key: jax.Array) -> tuple[Any, jax.Array]:
        with _playground_habits():
            state = env.reset(key)
        return state, _seen(state.obs)

    def step(state: Any, action: jax.Array) -> tuple[Any, jax.Array, jax.Array, jax.Array]:
        reward = jnp.zeros(())
        with _playground_habits():
            for _ in range(repeat):
                # A copy of the containers: tasks write into the metrics that they are handed.
                state = env.step(jax.tree.map(lambda x: x, state), action)
                reward = reward + state.reward
        return state, _seen(state.obs), reward, state.done > 0

    # Playground's tasks scale actions in [-1, 1] to their actuators, each in its own way.
    return from_functions(reset, step, EnvSpec(size, env.action_size, limit))


def _load(registry: Any, name: str, config: Any, options: dict[str, Any]) -> Any:
    try:
        return registry.load(name, config, config_overrides=options)
    except (OSError, subprocess.SubprocessError) as error:
        raise ImportError(
            f"Playground could not fetch the models that {name} needs ({error}): on a machine with "
            "access to GitHub make the task once, or copy mujoco_menagerie into "
            "mujoco_playground/external_deps"
        ) from error


def _seen(obs: Any) -> Any:
    obs = obs if hasattr(obs, "shape") else obs["state"]
    if len(obs.shape) != 1:
        raise ValueError(f"observations have shape {obs.shape}; a single vector is needed")
    return obs
