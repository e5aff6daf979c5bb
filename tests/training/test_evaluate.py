"""Evaluation on environments whose answers are known."""

import warnings

import numpy as np
import pytest

from rlx2_jax.config import Lane
from rlx2_jax.prng import Stream
from rlx2_jax.training import evaluate
from rlx2_jax.training.evaluate import final_score, seeds, summarize

pytestmark = pytest.mark.fast


def test_summary_of_hand_worked_episodes():
    # Lane 0: an episode of 2 steps that terminated, one of 3; lane 1 likewise with γ = 0.5.
    rewards = np.array([[1.0, 1, 1, 1], [2, 2, 2, 2], [0, 4, 0, 4]])
    active = np.array([[1, 1, 1, 1], [1, 1, 1, 1], [0, 1, 0, 1]], bool)
    values = np.zeros((3, 4))
    found = summarize(rewards, values, active, np.zeros(4, bool), np.array([1.0, 0.5]), 2)
    np.testing.assert_array_equal(found.returns, [[3, 7], [3, 7]])
    np.testing.assert_array_equal(found.lengths, [[2, 3], [2, 3]])
    undiscounted = np.array([3, 2, 7, 6, 4])
    assert found.value_bias[0] == pytest.approx(-undiscounted.mean())
    assert found.value_spread[0] == pytest.approx(undiscounted.std())
    assert found.value_bias[1] == pytest.approx(-np.mean([2, 2, 3, 4, 4]))


def test_steps_near_a_cut_do_not_count_in_the_value_error():
    steps, gamma = 1000, 0.9
    rewards, active = np.ones((steps, 1)), np.ones((steps, 1), bool)
    values = np.full((steps, 1), 1 / (1 - gamma))
    found = summarize(rewards, values, active, np.ones(1, bool), np.array([gamma]), 1)
    assert abs(found.value_bias[0]) < 0.11 * 0.1  # the tail of 1 % at most, 10 % of it on average
    short = summarize(rewards[:5], values[:5], active[:5], np.ones(1, bool), np.array([gamma]), 1)
    assert np.isnan(short.value_bias[0])


def test_infinite_returns_give_no_numerical_warnings():
    rewards, active = np.array([[np.inf], [-np.inf], [1.0]]), np.ones((3, 1), bool)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = summarize(rewards, np.zeros((3, 1)), active, np.zeros(1, bool), np.array([0.9]), 1)
        infinite = found._replace(returns=np.array([[np.inf, 1.0]]))
        (row,) = evaluate.rows(infinite, [Lane()], 10, ["0" * 64])
    assert row["mean_return"] == np.inf and np.isnan(row["std_return"])


def test_seeds_depend_on_the_lane():
    assert seeds(3, Stream.EVALUATION, 4) == seeds(3, Stream.EVALUATION, 4)
    assert seeds(3, Stream.EVALUATION, 4)[:2] == seeds(3, Stream.EVALUATION, 2)
    assert not set(seeds(3, Stream.EVALUATION, 9)) & set(seeds(4, Stream.EVALUATION, 9))
    assert not set(seeds(3, Stream.EVALUATION, 9)) & set(seeds(3, Stream.ENVIRONMENT, 9))


def test_final_score_uses_the_last_thirty():
    assert final_score([float(i) for i in range(100)]) == (np.mean(range(70, 100)), 30)
    assert final_score([2.0, 4.0]) == (3.0, 2)
    assert np.isnan(final_score([])[0]) and evaluate.SCORED == 30
