"""EnvPool tasks: C++ environments stepped by a thread pool, including the -v3 MuJoCo tasks.

EnvPool restarts an ended episode on the step after its end, with a fake transition that ignores the
action, and reports a termination exactly at the time limit as a truncation only. To avoid both,
this backend counts the limit itself (EnvPool's is set out of reach) and restarts ended episodes
immediately.

EnvPool does not expose its physics state, so restoring starts new episodes.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx2_jax.envs.base import (
    EnvironmentFailure,
    check_seeds,
    freeze,
    fresh_seeds,
    unknown_id,
)
from rlx2_jax.envs.spaces import Boxes, check_limit
from rlx2_jax.types import TimeStep

try:
    import envpool
except ImportError as error:
    raise ImportError(
        "the envpool backend needs EnvPool: pip install 'rlx2_jax[envpool]'"
    ) from error


class EnvPoolEnvs:
    """E copies of an EnvPool task behind the `HostEnvs` protocol."""

    exact_restore = False

    def __init__(self, env_id: str, num_envs: int, **options: Any):
        """Checks the task; `options` (e.g. `num_threads`) are passed to `envpool.make`."""
        known = envpool.list_all_envs()
        if env_id not in known:
            raise unknown_id(env_id, known, "EnvPool")
        if "max_episode_steps" in options:
            check_limit("max_episode_steps", options["max_episode_steps"])
        task: Any = envpool.make_spec(env_id, **options)
        with warnings.catch_warnings():
            # EnvPool casts float64 bounds to Gymnasium's float32 boxes.
            warnings.filterwarnings("ignore", ".*precision lowered by casting", UserWarning)
            boxes = Boxes(env_id, task.gymnasium_observation_space, task.gymnasium_action_space)
        limit = int(task.config.max_episode_steps)
        if limit > 0:  # EnvPool writes 0 for "none"
            options = options | {"max_episode_steps": limit + 1}
        self._id = env_id
        self._options = options
        self._boxes = boxes
        self._limit = limit or float("inf")
        self._pool: Any = None
        self.spec = boxes.spec(limit or None)
        self.num_envs = num_envs
        self._seeds = [0] * num_envs
        self._steps = np.zeros(num_envs, np.int64)
        self._elapsed = np.zeros(num_envs, np.int64)
        self._obs = freeze(np.zeros((num_envs, boxes.obs_dim), np.float32))
        self._all = freeze(np.ones(num_envs, bool))

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        self._seeds = check_seeds(seeds, self.num_envs)
        self._steps[:] = 0
        return self._open(self._seeds)

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> TimeStep[np.ndarray]:
        rows = np.flatnonzero(self._all if active is None else active).astype(np.int32)
        next_obs = self._obs.copy()
        reward = np.zeros(self.num_envs, np.float32)
        terminated, truncated = np.zeros((2, self.num_envs), bool)
        try:
            seen, gained, done, cut, _ = self._pool.step(self._boxes.scale(actions)[rows], rows)
        except Exception as error:
            raise EnvironmentFailure(self._id, None, error) from error
        self._boxes.layout.write_rows(seen, next_obs, rows)
        self._steps[rows] += 1
        self._elapsed[rows] += 1
        reward[rows] = gained
        terminated[rows] = done
        truncated[rows] = cut | (self._elapsed[rows] >= self._limit)
        obs = next_obs
        ended = np.flatnonzero(terminated | truncated).astype(np.int32)
        if ended.size:
            obs = next_obs.copy()
            self._begin(obs, ended)
        self._obs = freeze(obs)
        return TimeStep(freeze(next_obs), obs, reward, terminated, truncated)

    def state(self) -> dict[str, np.ndarray]:
        return {"seed": np.array(self._seeds, np.int64), "steps": self._steps.copy()}

    def restore(self, state: dict[str, np.ndarray]) -> np.ndarray:
        self._seeds = check_seeds(state["seed"].tolist(), self.num_envs)
        self._steps = np.array(state["steps"], np.int64)
        return self._open(fresh_seeds(self._seeds, self._steps.tolist()))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _open(self, seeds: list[int]) -> np.ndarray:
        """Creates a new pool, since EnvPool takes seeds only on creation; returns f32[E, obs]."""
        self.close()
        # `env_seed` seeds each environment separately; `seed` would use consecutive seeds.
        self._pool = envpool.make_gymnasium(
            self._id, num_envs=self.num_envs, env_seed=seeds, **self._options
        )
        obs = np.zeros_like(self._obs)
        self._begin(obs, np.arange(self.num_envs, dtype=np.int32))
        self._obs = freeze(obs)
        return self._obs

    def _begin(self, obs: np.ndarray, rows: np.ndarray) -> None:
        """Starts an episode in the environments `rows`, i32[k], and writes to obs [E, obs]."""
        try:
            seen, _ = self._pool.reset(rows)
        except Exception as error:
            raise EnvironmentFailure(self._id, None, error) from error
        self._boxes.layout.write_rows(seen, obs, rows)
        self._elapsed[rows] = 0
