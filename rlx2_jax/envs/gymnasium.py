"""Gymnasium tasks, stepped one after another in a plain loop.

This is faster than Gymnasium's vector environments, and restarts an episode on the step that ended
it, so there are no fake transitions. Counting time limits here avoids wrappers, which makes tasks
faster to step and possible to save.
"""

import dataclasses
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from rlx2_jax.envs import snapshot
from rlx2_jax.envs.base import (
    RAISED,
    EnvironmentFailure,
    check_interrupted,
    check_seeds,
    freeze,
    fresh_seeds,
    quiet_mujoco,
    unknown_id,
)
from rlx2_jax.envs.entry_point import import_module
from rlx2_jax.envs.spaces import Boxes, check_limit
from rlx2_jax.types import TimeStep


class GymnasiumEnvs:
    """E copies of a Gymnasium task behind the `HostEnvs` protocol.

    Attributes:
      envs: the tasks themselves, e.g. to render one.
    """

    def __init__(self, env_id: str, num_envs: int, **options: Any):
        """Creates the tasks; `options` are passed to `gymnasium.make`."""
        task = find(env_id)
        limit = options.pop("max_episode_steps", task.max_episode_steps)
        limit = check_limit("max_episode_steps", limit)
        # Wrappers cost time and hide state; `step` counts the time limit instead.
        bare = dataclasses.replace(
            task, order_enforce=False, disable_env_checker=True, max_episode_steps=None
        )
        with quiet_mujoco(), warnings.catch_warnings():
            # Using -v4 tasks is deliberate.
            warnings.filterwarnings("ignore", ".*is out of date", DeprecationWarning)
            self.envs = [gymnasium.make(bare, **options) for _ in range(num_envs)]
        env = self.envs[0]
        self._boxes = Boxes(env_id, env.observation_space, env.action_space)
        self._id = env_id
        self._limit = limit or float("inf")
        self._snapshot = snapshot.of(env)
        self.spec = self._boxes.spec(limit)
        self.num_envs = num_envs
        self.exact_restore = self._snapshot is not None
        self._seeds = [0] * num_envs
        self._steps = [0] * num_envs  # in the episodes before this one
        self._elapsed = [0] * num_envs  # in this episode; -1 once an environment has failed
        self._obs = freeze(np.zeros((num_envs, self._boxes.obs_dim), np.float32))

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        self._seeds = check_seeds(seeds, self.num_envs)
        self._elapsed = [0] * self.num_envs
        self._steps = [0] * self.num_envs
        return self._begin_all(self._seeds)

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> TimeStep[np.ndarray]:
        elapsed, limit = self._elapsed, self._limit
        actions = self._boxes.scale(actions)
        next_obs = self._obs.copy()
        write = self._boxes.layout.write
        reward = np.zeros(self.num_envs, np.float32)
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        ended: list[int] = []
        failed: dict[int, BaseException] = {}
        for i, env in enumerate(self.envs):
            if active is not None and not active[i]:
                continue
            try:
                seen, gained, done, cut, _ = env.step(actions[i])
                with np.errstate(over="ignore"):  # values beyond float32 become infinite
                    reward[i] = _number(gained)
                    write(seen, next_obs[i])
                done, cut = _flag(done), _flag(cut)
            except RAISED as error:
                check_interrupted(error)
                failed[i] = error
                continue
            elapsed[i] += 1
            cut = cut or elapsed[i] >= limit
            if done or cut:
                terminated[i], truncated[i] = done, cut
                ended.append(i)
        obs = next_obs
        if ended:
            obs = next_obs.copy()
            failed |= self._begin(obs, ended)
        self._obs = freeze(obs)
        if failed:
            raise self._failure(failed)
        return TimeStep(freeze(next_obs), obs, reward, terminated, truncated)

    def state(self) -> dict[str, np.ndarray]:
        arrays = {
            "seed": np.array(self._seeds, np.int64),
            "steps": np.add(self._steps, np.maximum(self._elapsed, 0)),
            "elapsed": np.array(self._elapsed, np.int64),
        }
        if self._snapshot is not None:
            arrays["obs"] = self._obs
            arrays["rng"] = np.stack([snapshot.save_rng(e.unwrapped.np_random) for e in self.envs])
            tasks = [self._snapshot.save(env) for env in self.envs]
            arrays |= {f"task/{k}": np.stack([task[k] for task in tasks]) for k in tasks[0]}
        return arrays

    def restore(self, state: dict[str, np.ndarray]) -> np.ndarray:
        if len(state["seed"]) != self.num_envs:
            saved = len(state["seed"])
            raise ValueError(f"the state has {saved} environments, expected {self.num_envs}")
        self._seeds = state["seed"].tolist()
        self._steps = state["steps"].tolist()
        self._elapsed = [0] * self.num_envs
        obs = self._begin_all(fresh_seeds(self._seeds, self._steps)).copy()
        if self._snapshot is not None:
            for i in np.flatnonzero(state["elapsed"] >= 0):
                task = {k[5:]: v[i] for k, v in state.items() if k.startswith("task/")}
                self._snapshot.load(self.envs[i], task)
                self.envs[i].unwrapped.np_random = snapshot.load_rng(state["rng"][i])
                self._elapsed[i] = int(state["elapsed"][i])
                self._steps[i] -= self._elapsed[i]
                obs[i] = state["obs"][i]
        self._obs = freeze(obs)
        return self._obs

    def close(self) -> None:
        for env in self.envs:
            try:
                env.close()
            except RAISED as error:  # ignore errors on close
                check_interrupted(error)

    def _begin_all(self, seeds: Sequence[int]) -> np.ndarray:
        """Seeds and starts every environment; returns f32[E, obs]."""
        obs = np.zeros_like(self._obs)
        if failed := self._begin(obs, range(self.num_envs), seeds):
            raise self._failure(failed)
        self._obs = freeze(obs)
        return self._obs

    def _begin(
        self, obs: np.ndarray, which: Iterable[int], seeds: Sequence[int] | None = None
    ) -> dict[int, BaseException]:
        """Starts an episode in each environment of `which` and writes to its row of obs [E, obs].

        Returns exceptions by environment.
        """
        failed: dict[int, BaseException] = {}
        for i in which:
            try:
                seen, _ = self.envs[i].reset(seed=None if seeds is None else seeds[i])
                self._boxes.layout.write(seen, obs[i])
            except RAISED as error:
                check_interrupted(error)
                failed[i] = error
            self._steps[i] += self._elapsed[i]
            self._elapsed[i] = 0
        return failed

    def _failure(self, failed: dict[int, BaseException]) -> EnvironmentFailure:
        """The error to raise; failed environments restart when a later state is restored."""
        for i in failed:
            self._elapsed[i] = -1
        index, error = next(iter(failed.items()))
        failure = EnvironmentFailure(self._id, index, error)
        failure.__cause__ = error
        return failure


def _number(reward: Any) -> float:
    """A reward as a float; raises for None (which would become nan) and arrays."""
    if isinstance(reward, float | int):
        return reward
    if np.ndim(reward):
        shape = np.shape(reward)
        raise ValueError(f"the reward has shape {shape}: make the task return a number")
    return float(reward)


def _flag(value: Any) -> bool:
    """An end flag; raises for text (of which "False" would be true) and nan."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str | bytes) or (isinstance(value, float) and value != value):
        raise ValueError(f"terminated or truncated is {value!r}: make the task return a boolean")
    return bool(value)


def find(env_id: str) -> Any:
    """The spec registered under `env_id` ("module:id" imports the module first), or a spec for the
    class or function "module:Class"; its attribute `max_episode_steps` is the time limit.
    """
    module, name = import_module(env_id), env_id.rpartition(":")[2]
    # Gymnasium still registers the -v2 and -v3 MuJoCo tasks, but they raise.
    offered = {k for k in gymnasium.registry if not _mujoco_v5(k) or k[-1] not in "23"}
    factory: Any = getattr(module, name, None)
    if name not in offered and callable(factory):
        limit = getattr(factory, "max_episode_steps", None)
        return EnvSpec(name, entry_point=cast(Any, factory), max_episode_steps=limit)
    if name not in offered:
        advice = " Use --env_backend=envpool for -v3 MuJoCo tasks." if _mujoco_v5(name) else ""
        raise unknown_id(name, offered, "Gymnasium", advice)
    return gymnasium.registry[name]


def _mujoco_v5(env_id: str) -> bool:
    return re.sub(r"-v\d$", "-v5", env_id) in gymnasium.registry
