"""Compact against masked training: equal keys give equal networks."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from both_forms import LANES, compare_float64, dense, masks_of, numbers_of, settings, start, trainer
from lanes import assert_close, assert_equal, over_lanes, quick, setting, stack, windows
from saved_runs import snapshots
from small_runs import rows, small_run, stop_after

from rlx2_jax import config
from rlx2_jax.agents import ALGORITHMS, td3
from rlx2_jax.export.actor import actor_of
from rlx2_jax.kernels import layout, native
from rlx2_jax.networks import compact
from rlx2_jax.training import execute as execution
from rlx2_jax.training import guards, lane, plan
from rlx2_jax.types import TimeStep


@pytest.mark.parametrize("algo", ["td3", pytest.param("sac", marks=pytest.mark.slow)])
def test_float64_training_is_equal(algo):
    compare_float64(algo, LANES, 48)


@pytest.mark.parametrize("algo", [pytest.param("td3", marks=pytest.mark.slow), "sac"])
def test_float64_training_is_equal_with_an_ensemble_of_critics(algo):
    compare_float64(algo, LANES[:2], 24, critics=3, critic_subset=2)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["td3", "sac"])
@pytest.mark.parametrize("lanes", [LANES[1:2], LANES + LANES], ids=["1 lane", "8 lanes"])
def test_float64_training_is_equal_for_2000_updates(algo, lanes):
    lanes = tuple(dataclasses.replace(x, mask_interval=None, t_end=None) for x in lanes)
    compare_float64(algo, lanes, 2000, mask_interval=100)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"regrow": "zero"}, {"regrow": "forbid"}, {"mask_step": "after"}]
)
def test_float64_training_is_equal_with_other_options(options):
    compare_float64("td3", LANES, 48, **options)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["td3", "sac"])
def test_float32_in_lockstep(algo):
    masked, links = settings(algo, LANES)
    state = start(algo, masked, LANES)
    steps = [trainer(algo, cfg, LANES, "float32") for cfg in (masked, links)]
    compress, expand = compressor(algo, links, LANES), quick(dense)
    for t in map(jnp.int32, range(1, 25)):
        other = expand(steps[1](compress(state), t, t))
        state = steps[0](state, t, t)
        assert_equal(masks_of(state), masks_of(other))
        assert_close(numbers_of(state), numbers_of(other), 1e-5)


def compressor(algo: str, cfg: config.Config, lanes: tuple[config.Lane, ...]):
    """Stacked states of the masked form to the form of `cfg`."""
    like = ALGORITHMS[algo].init(jax.random.key(0), cfg, lanes[0])
    specs = {name: getattr(like, name).masks.spec for name in ("actor", "critic")}

    def compress(state: Any) -> Any:
        both = {
            name: jax.vmap(partial(compact.pack, spec=spec))(getattr(state, name))
            for name, spec in specs.items()
        }
        return state._replace(**both)

    return quick(compress)


def test_forms_convert_without_loss():
    masked, links = settings("td3", LANES)
    state = start("td3", masked, LANES)
    other = quick(dense)(compressor("td3", links, LANES)(state))
    assert_equal(masks_of(state), masks_of(other))
    assert_equal(numbers_of(state), numbers_of(other))


@pytest.mark.parametrize(
    "option", [{"moments": "keep"}, {"targets": "polyak"}, {"sac_growth": "leaked"}]
)
def test_options_that_need_dead_links_are_refused_by_name(option):
    (name,) = option
    with pytest.raises(ValueError, match=f"{name}=.*execution='masked'"):
        setting("sac", execution="compact", **option)
    lanes = [config.Lane(actor_sparsity=0.99, critic_sparsity=0.99)]
    cfg = setting("sac", hidden=(256, 256), **option)
    assert plan.choose(cfg, lanes, "auto")[0].execution == "masked"
    with pytest.raises(ValueError, match=name):
        plan.choose(cfg, lanes, "compact")


def test_lanes_are_grouped_by_form_and_live_links():
    cfg = setting("td3", hidden=(64, 64))
    lanes = [
        config.Lane(seed=s, method=m, actor_sparsity=a, critic_sparsity=a)
        for s in (0, 1)
        for m, a in (("dense", 0.9), ("rlx2", 0.9), ("ss", 0.905), ("set", 0.5))
    ]
    chosen = plan.choose(cfg, lanes, "compact")
    assert [x.execution for x in chosen] == 2 * ["masked", "compact", "compact", "compact"]
    parts = plan.parts(cfg, chosen)
    assert [p.lanes for p in parts] == [(0, 4), (1, 2, 5, 6), (3, 7)]
    assert [p.config.grow for p in parts] == [("gradient",), ("gradient",), ("random",)]
    assert parts[1].config.links == config.lane_links(cfg, lanes[1])
    assert len(plan.describe(cfg, chosen)) == 3
    assert {x.execution for x in plan.choose(cfg, lanes, "masked")} == {"masked"}
    with pytest.raises(ValueError, match="fast"):
        plan.choose(cfg, lanes, "fast")


@pytest.mark.parametrize(("count", "sizes"), [(8, [4, 4]), (2, [1, 1]), (3, [3]), (1, [1])])
def test_groups_that_take_turns(count, sizes):
    cfg = config.make("td3", 3, 1)
    found = plan.blocks([plan.Part(cfg, tuple(range(10, 10 + count)))], 1, turns=True)
    assert [len(part.lanes) for part in found] == sizes
    assert [i for part in found for i in part.lanes] == list(range(10, 10 + count))


def test_live_links_are_those_of_the_masks():
    for one in (*LANES, config.Lane(distribution="uniform"), config.Lane(method="dense")):
        cfg = setting("td3", hidden=(16, 12))
        state = td3.init(jax.random.key(0), cfg, one)
        live = config.lane_links(cfg, one)
        assert layout.spec_of(state.actor.masks).nnz == live.actor
        assert layout.spec_of(jax.tree.map(lambda x: x[0], state.critic.masks)).nnz == live.critic


def whole_step(lanes: int):
    cfg = setting("td3", warmup=12, capacity=5000, execution="compact", buffer_interval=5)
    made = [config.Lane(seed=i) for i in range(lanes)]
    hypers = stack([config.hyper(cfg, one) for one in made])
    state = jax.eval_shape(lambda: stack([lane.init(cfg, one, jnp.zeros((1, 4))) for one in made]))
    obs, ends = jnp.zeros((lanes, 1, 4)), jnp.zeros((lanes, 1), bool)
    after = TimeStep(obs, obs, obs[..., 0], ends, ends)

    def step(state, t):
        one = lambda s, o, h: lane.step(s, o, t, cfg, h, learn=True)[0]  # noqa: E731
        return jax.vmap(one)(state, after, hypers)

    return step, state


@pytest.mark.slow
def test_lanes_share_calls_and_nothing_copies_the_replay():
    step, state = whole_step(8)
    text = str(jax.jit(step, donate_argnums=0).lower(state, jnp.int32(20)).compile().as_text())
    if native.execution() == "native":
        calls = [line for line in text.splitlines() if 'target="rlx2_mlp' in line]
        assert calls and all("[8," in line for line in calls)
    shapes = ["[" + ",".join(map(str, x.shape)) + "]" for x in state.replay[:3]]
    copies = [line for line in text.splitlines() if " copy(" in line]
    assert not [line for line in copies if any(shape in line for shape in shapes)]


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_the_program_lowers_for_accelerators(platform):
    step, state = whole_step(2)
    lowered = jax.jit(step).trace(state, jnp.int32(20)).lower(lowering_platforms=(platform,))
    assert "rlx2_mlp" not in lowered.as_text()


@pytest.fixture(scope="module")
def mixed_run():
    """Alternating dense and sparse lanes: two programs, whose lanes are not in order."""
    run = small_run()
    lanes = [run.lanes[i] for i in (2, 0, 3, 1)]
    return dataclasses.replace(run, lanes=plan.choose(run.config, lanes, "compact"))


@pytest.mark.slow
def test_a_run_of_both_forms_is_reported_in_order_and_resumed_exactly(
    mixed_run, tmp_path, monkeypatch
):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    summary = execution.execute(mixed_run, whole, progress=False)
    assert [r["method"] for r in summary["lanes"]] == ["dense", "rlx2"] * 2
    assert [r["critic_evolutions"] > 0 for r in summary["lanes"]] == [False, True] * 2
    metrics = rows(whole / "metrics.csv")
    assert float(metrics[-1]["actor_sparsity/Dense_1"]) > 0.8
    assert int(metrics[1]["critic_links_changed"]) > 0
    assert int(metrics[-1]["critic_links_ever_live"]) > int(metrics[1]["critic_links_ever_live"])
    evaluations = rows(whole / "evaluations.csv")
    assert [r["lane"] for r in evaluations] == ["0", "1", "2", "3"] * 5
    with monkeypatch.context() as patch:
        stop_after(patch, 137)
        with pytest.raises(guards.Stopped):
            execution.execute(mixed_run, broken, progress=False)
    execution.execute(mixed_run, broken, resume=True, say=lambda _: None, progress=False)
    for name in ("evaluations.csv", "metrics.csv"):
        assert (broken / name).read_text() == (whole / name).read_text()
    for i, live in (
        (0, 16 * 16),
        (1, config.lane_links(mixed_run.config, mixed_run.lanes[1]).actor[1]),
    ):
        found = actor_of(mixed_run, whole, i)
        assert found.masks["Dense_1"]["kernel"].sum() == live and found.step == 240
        assert not found.params["Dense_1"]["kernel"][~found.masks["Dense_1"]["kernel"]].any()
    for a, b in zip(*([s.state for s in snapshots(d)] for d in (broken, whole))):
        assert_equal(a._replace(replay=None), b._replace(replay=None))


@pytest.mark.slow
def test_a_non_finite_gradient_freezes_a_compact_lane():
    _, links = settings("td3", LANES[:2])
    state = start("td3", links, LANES[:2])
    update = quick(over_lanes(td3, links))
    hypers = stack([config.hyper(links, one) for one in LANES[:2]])
    keys = jax.vmap(jax.random.key)(jnp.arange(2))
    batch = windows(0, 2, 16, dtype="float32")
    batch = batch._replace(reward=batch.reward.at[0].set(jnp.nan))
    for t in (3, 4):  # the second is a mask update
        new, metrics = update(state, batch, keys, jnp.int32(t), hypers)
        assert metrics["finite"].tolist() == [False, True]
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(new.critic.params))
