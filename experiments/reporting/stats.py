"""Statistics over seeds and tasks."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

REPLICATES = 2000


class Interval(NamedTuple):
    low: float
    high: float


def spread(values: Sequence[float]) -> float | None:
    """The sample standard deviation (n − 1); None for fewer than two values."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def iqm(values: Sequence[float]) -> float:
    """The interquartile mean: ⌊n / 4⌋ values are cut off at either end, the others averaged.

    As in "Deep RL at the edge of the statistical precipice" (Agarwal et al., 2021); of fewer than
    four values it is the mean.
    """
    ordered = np.sort(np.asarray(values, float))
    cut = ordered.size // 4
    return float(ordered[cut : ordered.size - cut].mean())


def bootstrap(
    strata: Mapping[str, Sequence[float]],
    *,
    confidence: float = 0.95,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Interval | None:
    """A percentile interval of the IQM over all values; seeds are resampled within each task.

    `strata` has a task's values, one a seed. None where a task has fewer than two: its spread is
    then unknown and an interval would be too narrow.
    """
    if not strata or min(len(values) for values in strata.values()) < 2:
        return None
    rng = np.random.default_rng(seed)
    draws = []
    for _, values in sorted(strata.items()):
        given = np.asarray(values, float)
        draws.append(given[rng.integers(given.size, size=(replicates, given.size))])
    ordered = np.sort(np.concatenate(draws, axis=1), axis=1)
    cut = ordered.shape[1] // 4
    means = ordered[:, cut : ordered.shape[1] - cut].mean(axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(low), float(high))
