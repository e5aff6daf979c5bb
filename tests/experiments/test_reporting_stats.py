"""Statistics of the report, by hand."""

import numpy as np
import pytest

from experiments.reporting import results, stats
from rlx2_jax.training import evaluate

pytestmark = pytest.mark.fast


def test_interquartile_mean_by_hand() -> None:
    assert stats.iqm([5.0]) == 5
    assert stats.iqm([1, 2, 6]) == 3  # fewer than four: the mean
    assert stats.iqm([100, 2, 4, -50]) == 3
    assert stats.iqm([8, 1, 2, 3, 4, 5, 6, 1000]) == pytest.approx((3 + 4 + 5 + 6) / 4)
    assert stats.iqm(range(10)) == pytest.approx(np.mean(range(2, 8)))
    assert stats.iqm([1e9, *[7.0] * 6, -1e9]) == 7


def test_spread_is_the_samples() -> None:
    assert stats.spread([1, 3]) == pytest.approx(2**0.5)
    assert stats.spread([4.0]) is None and stats.spread([]) is None


def test_one_seed_gives_no_interval() -> None:
    assert stats.bootstrap({"a": [1.0]}) is None
    assert stats.bootstrap({"a": [1.0, 2.0], "b": [3.0]}) is None
    assert stats.bootstrap({}) is None
    assert stats.bootstrap({"a": [1.0, 2.0], "b": [3.0, 4.0]}) is not None


def test_equal_values_give_a_point() -> None:
    assert stats.bootstrap({"a": [2.0, 2.0], "b": [2.0, 2.0, 2.0]}) == (2, 2)


def test_seeds_are_resampled_within_their_task() -> None:
    # Without strata a resample could be all of one task: the mean of four would range from 0 to
    # 100. Within tasks two are always 0 and two 100, and the middle two are one of each.
    assert stats.bootstrap({"a": [0.0, 0.0], "b": [100.0, 100.0]}) == (50, 50)
    loose = stats.bootstrap({"all": [0.0, 0.0, 100.0, 100.0]})
    assert loose is not None and loose.low == 0 and loose.high == 100


def test_bootstrap_of_two_values_by_hand() -> None:
    # Means of a resample of {0, 1}: 0, ½, ½, 1 with equal chances.
    assert stats.bootstrap({"a": [0.0, 1.0]}, confidence=0.95) == (0, 1)
    assert stats.bootstrap({"a": [0.0, 1.0]}, confidence=0.4) == (0.5, 0.5)


def test_the_same_seed_repeats_and_order_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    strata = {"a": rng.normal(size=8).tolist(), "b": rng.normal(size=6).tolist()}
    once = stats.bootstrap(strata)
    assert once == stats.bootstrap(strata) == stats.bootstrap(dict(reversed(strata.items())))
    assert once != stats.bootstrap(strata, seed=1)
    assert once is not None and once.low < stats.iqm([*strata["a"], *strata["b"]]) < once.high


def test_interval_covers_the_true_mean() -> None:
    """Of a symmetric law the IQM's expectation is its centre; 95 % of intervals should hold it."""
    rng, held = np.random.default_rng(0), 0
    for trial in range(100):
        strata = {task: rng.normal(10, 2, 8).tolist() for task in "abcd"}
        interval = stats.bootstrap(strata, replicates=400, seed=trial)
        assert interval is not None
        held += interval.low <= 10 <= interval.high
    assert 86 <= held <= 100


def test_scores_are_those_of_the_runs() -> None:
    steps = np.arange(41) * 10
    columns = {"step": steps.astype(float), "mean_return": np.arange(41.0)}
    lane = results.Lane(0, "ss", "ss", 0, {}, columns, {}, True)
    assert (lane.score, lane.evaluations_used) == evaluate.final_score([*range(1, 41)])
    short = {"step": np.array([0.0, 10, 20]), "mean_return": np.array([99.0, 1, 2])}
    lane = results.Lane(0, "ss", "ss", 0, {}, short, {}, True)
    assert (lane.score, lane.evaluations_used) == (1.5, 2)


def test_differences_between_methods():
    ours, theirs = {"a": [3.0, 5.0], "b": [10.0, 12.0], "c": [1.0, 1.0]}, {"a": [1.0], "b": [4.0]}
    found = stats.difference(ours, theirs)
    assert found == (5.0, None, 5.0, None)  # single seeds: no interval
    assert stats.difference(ours, {"d": [1.0, 2.0]}) is None
    same = stats.difference({"a": [2.0, 2.0]}, {"a": [1.0, 1.0]})
    assert same == (1.0, (1.0, 1.0), 1.0, (1.0, 1.0))
    rng = np.random.default_rng(0)
    ours, theirs = ({"a": rng.normal(mean, 1, 200).tolist()} for mean in (1, 0))
    many = stats.difference(ours, theirs)
    assert many and many.mean_interval and many.iqm_interval
    low, high = many.mean_interval  # ± 1.96 √(2 / 200)
    assert high - low == pytest.approx(2 * 1.96 * 0.1, rel=0.2) and low < 1 < high
    assert many.iqm_interval.low < many.iqm < many.iqm_interval.high
