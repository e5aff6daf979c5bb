"""Statistics over seeds and tasks."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import trim_mean

REPLICATES = 2000


class Interval(NamedTuple):
    low: float
    high: float


def spread(values: Sequence[float]) -> float | None:
    """The sample standard deviation (n − 1); None for fewer than two values."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def iqm(values: Sequence[float]) -> float:
    """The interquartile mean: the average without ⌊n / 4⌋ values at either end.

    As in "Deep RL at the edge of the statistical precipice" (Agarwal et al., 2021); for fewer than
    four values it is the mean.
    """
    return float(trim_mean(np.asarray(values, float), 0.25))


def bootstrap(
    strata: Mapping[str, Sequence[float]],
    *,
    confidence: float = 0.95,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Interval | None:
    """A percentile interval of the IQM over all values; resamples seeds within each task.

    `strata`: a task's values, one per seed. None if a task has fewer than two: its spread is then
    unknown, and the interval would be too narrow.
    """
    if not strata or min(len(values) for values in strata.values()) < 2:
        return None
    return _interval(_iqms(_resampled(strata, replicates, seed)), confidence)


class Difference(NamedTuple):
    """The difference between two methods."""

    mean: float  # of the means over tasks
    mean_interval: Interval | None
    iqm: float
    iqm_interval: Interval | None


def difference(
    ours: Mapping[str, Sequence[float]],
    theirs: Mapping[str, Sequence[float]],
    *,
    confidence: float = 0.95,
    replicates: int = REPLICATES,
) -> Difference | None:
    """`ours` minus `theirs` over the tasks that both have; None without such tasks.

    Resamples the seeds of both independently within each task. No interval if a task has a single
    seed.
    """
    tasks = [task for task in ours if task in theirs]
    if not tasks:
        return None
    pair = [{task: strata[task] for task in tasks} for strata in (ours, theirs)]
    mean = [float(np.mean([np.mean(own) for own in strata.values()])) for strata in pair]
    middle = [iqm([x for own in strata.values() for x in own]) for strata in pair]
    intervals = [None, None]
    if min(len(own) for strata in pair for own in strata.values()) > 1:
        draws = [_resampled(strata, replicates, seed) for seed, strata in enumerate(pair)]
        means = [np.mean([own.mean(axis=1) for own in each], axis=0) for each in draws]
        middles = [_iqms(each) for each in draws]
        intervals = [_interval(a - b, confidence) for a, b in (means, middles)]
    return Difference(mean[0] - mean[1], intervals[0], middle[0] - middle[1], intervals[1])


def _resampled(
    strata: Mapping[str, Sequence[float]], replicates: int, seed: int
) -> list[np.ndarray]:
    """Resampled values `[replicates, seeds]` of each task."""
    rng = np.random.default_rng(seed)
    given = [np.asarray(values, float) for _, values in sorted(strata.items())]
    return [x[rng.integers(x.size, size=(replicates, x.size))] for x in given]


def _iqms(draws: list[np.ndarray]) -> np.ndarray:
    """The IQM over all tasks of each replicate."""
    return trim_mean(np.concatenate(draws, axis=1), 0.25, axis=1)


def _interval(values: np.ndarray, confidence: float) -> Interval:
    tail = (1 - confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return Interval(float(low), float(high))
