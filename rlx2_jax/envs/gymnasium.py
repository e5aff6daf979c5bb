"""Gymnasium tasks, stepped one after another in a plain loop.

A loop by hand is faster than Gymnasium's vector environments and restarts an episode on the
step that ended it, so no fake transition ever appears. Time limits are counted here, which
leaves a task without wrappers and makes it cheap to step and possible to save.
"""

import dataclasses
import importlib
import re
import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from rlx2_jax.envs import snapshot
from rlx2_jax.envs.base import (
    Boxes,
    EnvironmentFailure,
    EnvSpec,
    Step,
    check_seeds,
    fresh_seeds,
    quiet_mujoco,
    unknown_id,
)


class GymnasiumEnvs:
    """E copies of a Gymnasium task behind the `HostEnvs` protocol.

    Attributes:
      envs: the tasks themselves, e.g. to render one.
    """

    def __init__(self, env_id: str, num_envs: int, **options: Any):
        """Makes the tasks; `options` go to `gymnasium.make`."""
        task = _find(env_id)
        limit = options.pop("max_episode_steps", task.max_episode_steps)
        # Saves 1-2 µs a step, and state hidden in wrappers. The limit is kept by `step`.
        bare = dataclasses.replace(
            task, order_enforce=False, disable_env_checker=True, max_episode_steps=None
        )
        with quiet_mujoco(), warnings.catch_warnings():
            # -v4 tasks are a deliberate choice here, not an oversight.
            warnings.filterwarnings("ignore", ".*is out of date", DeprecationWarning)
            self.envs = [gymnasium.make(bare, **options) for _ in range(num_envs)]
        env = self.envs[0]
        self._boxes = Boxes(env_id, env.observation_space, env.action_space)
        self._id = env_id
        self._limit = limit or float("inf")
        self._snapshot = snapshot.of(env)
        self.spec = EnvSpec(self._boxes.obs_dim, self._boxes.action_dim, limit)
        self.num_envs = num_envs
        self.exact_restore = self._snapshot is not None
        self._seeds = [0] * num_envs
        self._steps = [0] * num_envs  # in the episodes before this one
        self._elapsed = [0] * num_envs  # in this episode; -1 once an environment has failed
        self._obs = np.zeros((num_envs, *self._boxes.obs_shape), np.float32)

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        self._seeds = check_seeds(seeds, self.num_envs)
        self._steps = [0] * self.num_envs
        for i, seed in enumerate(self._seeds):
            self._begin(i, seed)
        return self._flat(self._obs)

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> Step:
        num_envs, limit, elapsed = self.num_envs, self._limit, self._elapsed
        actions = self._boxes.scale(actions)
        next_obs = self._obs.copy()
        reward = np.zeros(num_envs, np.float32)
        terminated, truncated = np.zeros((2, num_envs), bool)
        valid = np.ones(num_envs, bool) if active is None else np.array(active, bool)
        ended: list[int] = []
        failed: dict[int, Exception] = {}
        for i, env in enumerate(self.envs):
            if active is not None and not active[i]:
                continue
            try:
                next_obs[i], reward[i], done, cut, _ = env.step(actions[i])
            except Exception as error:
                failed[i] = error
                valid[i], truncated[i] = False, True
                continue
            elapsed[i] += 1
            cut = cut or elapsed[i] >= limit
            if done or cut:
                terminated[i], truncated[i] = done, cut
                ended.append(i)
        self._obs = next_obs.copy()
        for i in ended:
            self._steps[i] += elapsed[i]
            try:
                self._begin(i)
            except EnvironmentFailure as failure:
                failed[i] = failure.error
        obs = self._flat(self._obs)
        step = Step(self._flat(next_obs), obs, reward, terminated, truncated, valid)
        if failed:
            for i in failed:
                elapsed[i] = -1
            i, error = next(iter(failed.items()))
            raise EnvironmentFailure(self._id, i, error, step) from error
        return step

    def state(self) -> dict[str, np.ndarray]:
        arrays = {
            "seed": np.array(self._seeds, np.int64),
            "steps": np.add(self._steps, np.maximum(self._elapsed, 0)),
            "elapsed": np.array(self._elapsed, np.int64),
        }
        if self._snapshot is not None:
            arrays["obs"] = self._flat(self._obs)
            arrays["rng"] = np.stack([snapshot.save_rng(e.unwrapped.np_random) for e in self.envs])
            tasks = [self._snapshot.save(env) for env in self.envs]
            arrays |= {f"task/{k}": np.stack([task[k] for task in tasks]) for k in tasks[0]}
        return arrays

    def restore(self, state: dict[str, np.ndarray]) -> np.ndarray:
        if len(state["seed"]) != self.num_envs:
            saved = len(state["seed"])
            raise ValueError(f"the state is of {saved} environments, here are {self.num_envs}")
        self._seeds = state["seed"].tolist()
        self._steps = state["steps"].tolist()
        elapsed = state["elapsed"].tolist()
        for i, seed in enumerate(fresh_seeds(self._seeds, self._steps)):
            self._begin(i, seed)
            if self._snapshot is None or elapsed[i] < 0:
                continue
            env = self.envs[i]
            self._snapshot.load(env, {k[5:]: v[i] for k, v in state.items() if k[:5] == "task/"})
            env.unwrapped.np_random = snapshot.load_rng(state["rng"][i])
            self._obs[i] = state["obs"][i].reshape(self._boxes.obs_shape)
            self._elapsed[i] = elapsed[i]
            self._steps[i] -= elapsed[i]
        return self._flat(self._obs)

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _begin(self, i: int, seed: int | None = None) -> None:
        """Starts an episode of environment i, and its random stream if a seed is given."""
        try:
            self._obs[i], _ = self.envs[i].reset(seed=seed)
        except Exception as error:
            raise EnvironmentFailure(self._id, i, error) from error
        self._elapsed[i] = 0

    def _flat(self, obs: np.ndarray) -> np.ndarray:
        """A copy as f32[E, obs], so that a caller may write into what it was handed."""
        return obs.reshape(self.num_envs, -1).copy()


def _find(env_id: str) -> Any:
    """The specification registered under `env_id` ("module:id" imports the module first)."""
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    # Gymnasium still lists the -v2 and -v3 MuJoCo tasks, but they only raise.
    offered = {k for k in gymnasium.registry if not _mujoco_v5(k) or k[-1] not in "23"}
    if name not in offered:
        advice = " Use --env_backend=envpool for -v3 MuJoCo tasks." if _mujoco_v5(name) else ""
        raise unknown_id(name, offered, "Gymnasium", advice)
    return gymnasium.registry[name]


def _mujoco_v5(env_id: str) -> bool:
    return re.sub(r"-v\d$", "-v5", env_id) in gymnasium.registry
