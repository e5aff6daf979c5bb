"""Compares the returns of two policies in paired episodes with the same initial states."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from rlx2_jax import envs
from rlx2_jax.envs.rollout import device_episode
from rlx2_jax.export.episodes import Act, Episodes, play
from rlx2_jax.export.policy import SparsePolicy
from rlx2_jax.export.stablehlo import function
from rlx2_jax.prng import Stream, stream_key
from rlx2_jax.training.evaluate import seeds
from rlx2_jax.training.run import Run

TOLERANCE = 0.03  # relative to the mean return


class Difference(NamedTuple):
    """The return of the other policy minus that of the first, over paired episodes.

    Attributes:
      first, other: mean return of each.
      mean: of the differences.
      half_width: of its 95% confidence interval.
      episodes: number of pairs.
    """

    first: float
    other: float
    mean: float
    half_width: float
    episodes: int

    @property
    def relative(self) -> float:
        """The difference relative to the first policy's return."""
        return self.mean / abs(self.first) if self.first else math.copysign(math.inf, self.mean)

    @property
    def small(self) -> bool:
        """Whether the difference is within 3% of the return, or not significant at 95%."""
        return abs(self.mean) <= max(TOLERANCE * abs(self.first), self.half_width)


def difference(first: np.ndarray, other: np.ndarray) -> Difference:
    """The difference between the returns `[episodes]` of two policies, paired by seed."""
    gaps, degrees = other - first, len(first) - 1
    if degrees < 1:
        raise ValueError(f"{len(first)} episode(s) give no interval: use at least 2")
    quantile = float(special.stdtrit(degrees, 0.975))  # of Student's distribution
    half_width = quantile * float(gaps.std(ddof=1)) / math.sqrt(len(gaps))
    return Difference(
        float(first.mean()), float(other.mean()), float(gaps.mean()), half_width, len(gaps)
    )


class Task(NamedTuple):
    """An environment of a backend; a `Run` has the same fields."""

    env: str
    backend: str
    env_options: dict[str, Any]


def host_returns(run: Run | Task, act: Act, seed: int, episodes: int) -> np.ndarray:
    """Noise-free returns `[episodes]` in the run's host environments, seeded from `seed`."""
    chosen = seeds(seed, Stream.EVALUATION, episodes)
    make = lambda count: envs.make_host(run.env, count, run.backend, **run.env_options)  # noqa: E731
    return play(make, act, chosen).returns


def device_episodes(run: Run | Task, policy: SparsePolicy, seed: int, episodes: int) -> Episodes:
    """Noise-free episodes in the run's device environments, as one program."""
    env = envs.make_device(run.env, run.backend, **run.env_options)
    act = function(policy)

    def episode(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        played = device_episode(env, lambda obs: (act(obs[None])[0], None), key)
        return jnp.sum(played.reward), jnp.sum(played.active)

    keys = jax.vmap(lambda i: stream_key(seed, Stream.EVALUATION, i))(jnp.arange(episodes))
    returns, lengths = jax.jit(jax.vmap(episode))(keys)
    return Episodes(np.asarray(returns, np.float64), np.asarray(lengths, np.int64))
