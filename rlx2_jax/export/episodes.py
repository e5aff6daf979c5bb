"""Noise-free episodes of an exported policy in host environments."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx2_jax.envs import HostEnvs
from rlx2_jax.envs.rollout import host_episodes

Act = Callable[[np.ndarray], np.ndarray]  # [batch, obs] -> [batch, act] in [-1, 1]
_AT_ONCE = 32  # environments at a time


class Episodes(NamedTuple):
    """Episodes of a policy, one per seed.

    Attributes:
      returns: f64[episodes].
      lengths: i64[episodes].
    """

    returns: np.ndarray
    lengths: np.ndarray

    def summary(self) -> dict[str, Any]:
        """Mean, standard deviation (0 for one episode), minimum and maximum of the return; mean
        length."""
        returns = self.returns
        return {
            "episodes": len(returns),
            "mean": float(returns.mean()),
            "sd": float(returns.std(ddof=1)) if len(returns) > 1 else 0.0,
            "min": float(returns.min()),
            "max": float(returns.max()),
            "mean_length": float(self.lengths.mean()),
        }


def play(
    make: Callable[[int], HostEnvs],
    act: Act,
    seeds: Sequence[int],
    progress: Callable[[int], None] = lambda finished: None,
) -> Episodes:
    """Plays one episode per seed, each in a new environment.

    Args:
      make: creates n environments.
      seeds: of the environments, each in [0, 2³¹).
      progress: called with the number of finished episodes whenever it increases.
    """
    parts: list[Episodes] = []
    for begin in range(0, len(seeds), _AT_ONCE):
        tasks = make(len(seeds[begin : begin + _AT_ONCE]))
        try:
            parts.append(_batch(tasks, act, seeds[begin : begin + _AT_ONCE], begin, progress))
        finally:
            tasks.close()
    return Episodes(*map(np.concatenate, zip(*parts)))


def _batch(
    tasks: HostEnvs,
    act: Act,
    seeds: Sequence[int],
    before: int,
    progress: Callable[[int], None],
) -> Episodes:
    total, length = np.zeros(len(seeds)), np.zeros(len(seeds), np.int64)
    for _, _, after, active in host_episodes(tasks, act, seeds):
        total += np.where(active, after.reward, 0.0)
        length += active
        ended = active & (after.terminated | after.truncated)
        if ended.any():
            progress(before + int((~active | ended).sum()))
    return Episodes(total, length)
