"""The comparison of MJX with Gymnasium: its page, its errors, and faults it must see."""

import json

import jax
import numpy as np
import pytest
from paths import DOCS, ROOT

from benchmarks import mjx_parity
from rlx2_jax.envs.mjx import Simulation

NAME = "InvertedPendulum-v5"
RESULTS = json.loads((DOCS / "measured" / "mjx.json").read_text())


@pytest.mark.fast
def test_the_page_has_exactly_the_measurements():
    text = (DOCS / "mjx.md").read_text()
    begin, end = mjx_parity.MARK
    assert text.partition(begin)[2].partition(end)[0].strip() == mjx_parity.page(RESULTS)


@pytest.mark.fast
@pytest.mark.parametrize("name", RESULTS["tasks"])
def test_ten_thousand_states_with_the_same_flags(name):
    row = RESULTS["tasks"][name]["float32"]
    assert row["states"] >= 10_000
    assert row["flags_that_differ"] <= row["states"] / 1000
    assert (
        row["motion"]["median"] < 1e-3
        and row["motion"]["largest"] < 5
        and row["reward"]["median"] < 1e-3
    )


@pytest.mark.fast
@pytest.mark.parametrize(
    ("name", "on"), [(k, on) for k, v in RESULTS["tasks"].items() for on in v.get("episodes", {})]
)
def test_returns_of_trained_policies_are_equal(name, on):
    """Within 2 %, or within what the spread of the episodes explains."""
    row = RESULTS["tasks"][name]["episodes"][on]
    assert abs(row["difference_percent"]) <= max(2.0, 2 * row["standard_error_percent"])


@pytest.mark.fast
def test_a_policys_backend_is_its_runs():
    assert mjx_parity.trained_on(str(ROOT / "results" / "policies" / "hopper")) == "gymnasium"


@pytest.fixture(scope="module")
def sample():
    return mjx_parity.collect(NAME, None, 40, seed=0)


def test_errors_are_those_of_float32(sample):
    with jax.numpy_rank_promotion("allow"):
        found = mjx_parity.compare(Simulation(NAME, "jax"), *sample)
    assert found["states"] == 40 and found["starts"] == 1 + found["terminated"] >= 4
    assert found["flags_that_differ"] == 0 and found["reward"]["largest"] == 0
    assert found["motion"] == found["observation"]  # there is nothing else in it
    assert 0 < found["observation"]["median"] <= found["observation"]["largest"] < 1e-5


def test_a_wrong_environment_is_seen(sample):
    """Other observations, rewards and flags."""
    steps, starts = sample
    wrong = steps._replace(
        obs=steps.obs + np.eye(4)[1] * 0.01, reward=1 - steps.reward, terminated=~steps.terminated
    )
    with jax.numpy_rank_promotion("allow"):
        found = mjx_parity.compare(Simulation(NAME, "jax"), wrong, starts)
    assert found["observation"]["median"] == pytest.approx(0.01, rel=1e-3)
    assert found["reward"]["largest"] == 1 and found["flags_that_differ"] == 40
