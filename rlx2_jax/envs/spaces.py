"""Checks of observation and action spaces, and action scaling."""

import math
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx2_jax.envs.base import EnvSpec
from rlx2_jax.envs.observations import Layout

if TYPE_CHECKING:
    from gymnasium import Space


class Boxes:
    """The observation and action spaces of a continuous-control task.

    Observations of any numeric dtype become float32 (images are not rescaled); dictionaries and
    tuples of arrays become one vector. Actions keep the task's float dtype. Some action components
    may have low == high.

    Attributes:
      layout: positions of an observation's arrays in the vector.
      obs_dim, action_dim: sizes; boxes of any shape are flattened.
      action_low, action_high: the bounds of each action component.
    """

    def __init__(self, env_id: str, observation: "Space[Any]", action: "Space[Any]"):
        self.layout = Layout(env_id, observation)
        check_sizes(env_id, self.layout.size, 1)
        _check_actions(env_id, action)
        box: Any = action
        self.obs_dim = self.layout.size
        self.action_dim = math.prod(box.shape)
        self.action_low = tuple(float(x) for x in box.low.ravel())
        self.action_high = tuple(float(x) for x in box.high.ravel())
        # centre + half * a is exact for bounds ±1, unlike low + (a + 1) / 2 * range. Halve first,
        # since the range of a float64 box may overflow.
        low, high = box.low.astype(np.float64) / 2, box.high.astype(np.float64) / 2
        self._centre, self._half = (high + low).astype(box.dtype), (high - low).astype(box.dtype)
        self._same = bool((self._half == 1).all() and (self._centre == 0).all())
        # Rounding may push centre ± half past a bound, unless the centre is 0.
        self._clip = (box.low, box.high) if (self._centre != 0).any() else None

    def spec(self, max_episode_steps: int | None) -> EnvSpec:
        """The task's sizes and bounds."""
        bounds = (self.action_low, self.action_high)
        return EnvSpec(self.obs_dim, self.action_dim, max_episode_steps, *bounds)

    def scale(self, actions: np.ndarray) -> np.ndarray:
        """Scales actions [E, act] in [-1, 1] to the task's bounds, as [E, *action_shape]."""
        if actions.ndim != 2 or actions.shape[1] != self.action_dim:
            raise ValueError(f"actions must be [E, {self.action_dim}], got {actions.shape}")
        actions = np.asarray(actions, self._half.dtype).reshape(-1, *self._half.shape)
        if self._same:
            return actions
        actions = self._centre + self._half * actions
        return actions if self._clip is None else np.clip(actions, *self._clip)


def check_limit(name: str, limit: Any) -> int | None:
    """Validates a time limit in steps; None for none."""
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, Integral) or limit < 1:
        raise ValueError(f"{name} is {limit!r}: give an integer of at least 1, or None")
    return int(limit)


def check_sizes(env_id: str, obs_dim: int, action_dim: int) -> None:
    """Raises ValueError for a task without observations or actions."""
    for what, size in (("observation", obs_dim), ("action", action_dim)):
        if size < 1:
            raise ValueError(
                f"{env_id} has an {what} of size 0: networks need at least 1, choose another task"
            )


def _check_actions(env_id: str, space: "Space[Any]") -> None:
    from gymnasium.spaces import Box

    if not isinstance(space, Box):
        raise ValueError(
            f"{env_id} has action space {space}; TD3 and SAC need a continuous one (Box): "
            "choose a continuous-control task"
        )
    if space.dtype.kind != "f":
        raise ValueError(
            f"{env_id} has actions of dtype {space.dtype}; TD3 and SAC act with floats, which "
            "would be truncated: wrap it with gymnasium.wrappers.TransformAction, with a float "
            "Box as its action_space and a function that rounds, and register that as an id"
        )
    check_sizes(env_id, 1, math.prod(space.shape))
    bounds = f"{env_id} has action bounds {space.low} to {space.high}"
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise ValueError(
            f"{bounds}; actions are scaled from [-1, 1], so they must be finite: wrap it with "
            "gymnasium.wrappers.RescaleAction or ClipAction and register that as an id"
        )
    if (space.low > space.high).any():
        raise ValueError(f"{bounds}; low must not be above high: fix the task's action_space")
    if (space.low == space.high).all():
        raise ValueError(f"{bounds}; only one action is possible: fix the task's action_space")
