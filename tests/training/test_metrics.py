"""Metrics: one table for columns, tags and documentation; user-defined metrics."""

import dataclasses
import doctest
import importlib.util

import numpy as np
import pytest
from paths import DOCS

from rlx2_jax import config
from rlx2_jax.agents import ALGORITHMS
from rlx2_jax.training import evaluate, metrics
from rlx2_jax.training.lane_group import Group
from rlx2_jax.training.metrics import METRICS, register_metric

LANES = [config.Lane(seed=s, actor_sparsity=0.5, critic_sparsity=0.25) for s in (0, 1)]
CFG = config.make("td3", 3, 2, hidden=(8, 8), capacity=100, steps=200, warmup=20, batch_size=8)


@pytest.fixture(autouse=True)
def restore():
    before = dict(METRICS)
    yield
    METRICS.clear()
    METRICS.update(before)


@pytest.fixture(scope="module")
def group():
    made = Group(CFG, LANES)
    made.state = made.program.init(np.zeros((2, 1, 3), np.float32), 10)
    made.initial = metrics.dense_masks(made.state.agent)
    made.metrics = made.program.no_metrics(made.state)
    return made


def test_the_page_is_up_to_date():
    spec = importlib.util.spec_from_file_location("list_metrics", DOCS / "list_metrics.py")
    assert spec is not None and spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    assert page.PAGE.read_text() == page.page(), "run ./dev docs"


def test_every_column_is_in_the_table(group):
    rows = group.report()
    assert len(rows) == 2
    columns = [
        name.split("/")[0].removeprefix("actor_").removeprefix("critic_") for name in rows[0]
    ]
    known = {name.removeprefix("actor_").removeprefix("critic_") for name in METRICS}
    assert set(columns) <= known
    assert list(rows[0])[:4] == ["updates", "alive", "actor_loss", "critic_loss"]
    assert list(rows[0])[-1] == "critic_sparsity/q2/Dense_2"
    assert rows[0]["updates"] == 0 and rows[0]["alive"] == 1 and np.isnan(rows[0]["q"])
    assert rows[0]["actor_overlap_with_initial"] == 1.0
    row = evaluate.rows(
        evaluate.Evaluation(np.ones((1, 2)), np.ones((1, 2)), np.ones(1), np.ones(1)),
        LANES[:1], 10, ["0" * 64],
    )[0]  # fmt: skip
    scopes = [METRICS[name].scope for name in row]
    assert scopes == ["run"] * 4 + ["evaluation"] * 8


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_what_updates_return_is_documented(algo):
    own = Group(dataclasses.replace(CFG, algo=algo), LANES[:1])
    state = own.program.init(np.zeros((1, 1, 3), np.float32), 10)
    assert {METRICS[x].scope for x in own.program.no_metrics(state) if x != "finite"} == {"update"}


def test_a_user_defined_metric(group):
    register_metric("doubled_time", "two per step", lambda lane: 2 * lane.time)
    first_row = lambda net: {"first": net.kernels[min(net.kernels)][0].sum()}  # noqa: E731
    register_metric("rows", "live links of the first row", first_row, scope="network")
    group.time = 7
    first, second = group.report()
    assert first["doubled_time"] == second["doubled_time"] == 14
    mask = group.state.agent.actor.masks["Dense_0"]["kernel"]
    assert [first["actor_rows/first"], second["actor_rows/first"]] == mask[:, 0].sum(
        axis=-1
    ).tolist()


def test_registering_is_checked():
    with pytest.raises(ValueError, match="already a metric 'q'"):
        register_metric("q", "", lambda lane: 0)
    with pytest.raises(ValueError, match="use letters, digits and underscores"):
        register_metric("a,b", "", lambda lane: 0)
    with pytest.raises(ValueError, match="use lane or network with a function"):
        register_metric("late", "", None)
    register_metric("entropy", "of the policy", scope="update")
    assert doctest.testmod(metrics).failed == 0
