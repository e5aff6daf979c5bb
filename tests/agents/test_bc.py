"""Behaviour cloning: one update against plain NumPy, lanes, and an expert to imitate."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import update_model
from lanes import (
    LANES,
    assert_close,
    assert_equal,
    assert_on_mask,
    lane_of,
    links,
    over_lanes,
    quick,
    setting,
    stack,
    windows,
)

from rlx2_jax import config
from rlx2_jax.agents import bc, td3
from rlx2_jax.types import Batch

CFG = setting("bc", dtype="float64", n_max=1)
update, update_lanes = quick(bc.update, static_argnums=5), quick(over_lanes(bc, CFG))
W = np.random.default_rng(5).normal(size=(4, 2)) / 2


@pytest.fixture(autouse=True, scope="module")
def float64():
    """As in the tests of TD3 and SAC."""
    with jax.enable_x64(True):
        yield


def expert(seed: int, *lead: int) -> Batch:
    """Actions of a linear expert; only the first step of a window is used."""
    obs = np.random.default_rng(seed).normal(size=(*lead, 4))
    rest = windows(seed, *lead, n=1)
    return rest._replace(obs=jnp.asarray(obs), action=jnp.asarray(np.tanh(obs @ W)))


def test_the_actor_is_td3s():
    lane, key = config.Lane(actor_sparsity=0.5), jax.random.key(0)
    state, other = bc.init(key, CFG, lane), td3.init(key, CFG, lane).actor
    assert_equal((state.actor.params, state.actor.masks), (other.params, other.masks))
    assert state.actor.target is None
    assert all(
        m.all()
        for m in jax.tree.leaves(bc.init(key, CFG, dataclasses.replace(lane, method="dense")))
        if m.dtype == bool
    )
    obs = expert(0, 5).obs
    action, mean = bc.act(state, obs, key, CFG, config.hyper(CFG, lane))
    assert_equal(action, mean)
    params = jax.tree.map(np.asarray, state.actor.params)
    np.testing.assert_allclose(mean, np.tanh(update_model.mlp(params, np.asarray(obs))))


@pytest.mark.parametrize("count", [1, 4])
def test_update_equals_plain_numpy(count):
    lane = config.Lane(actor_sparsity=0.4, t_end=40)
    hyper, state = config.hyper(CFG, lane), bc.init(jax.random.key(1), CFG, lane)
    state = bc.State(update_model.warm(state.actor, 0))
    model, batch, t = update_model.Model.of(state.actor), expert(count, 16), np.int32(count)
    obs, action = np.asarray(batch.obs), np.asarray(batch.action)

    def loss(params):
        return np.mean(np.sum((np.tanh(update_model.mlp(params, obs)) - action) ** 2, axis=-1))

    value, grads = loss(model.params), update_model.gradient(loss, model.params)
    model.step(grads, count, hyper.actor, float(hyper.learning_rate), grads)
    new, metrics = update(state, batch, jax.random.key(0), t, t, CFG, hyper)
    model.assert_like(new.actor, f"update {count}")
    assert float(metrics["actor_loss"]) == pytest.approx(value)


def test_lanes_learn_the_expert_and_equal_one_by_one():
    chosen = [
        dataclasses.replace(LANES[i], learning_rate=1e-2, t_end=200, actor_sparsity=0.4)
        for i in (0, 1, 2, 3, 5)  # dense, tiny, ss, set, rlx2
    ]
    start = [bc.init(jax.random.key(lane.seed), CFG, lane) for lane in chosen]
    hypers = [config.hyper(CFG, lane) for lane in chosen]
    keys = [jax.random.key(100 + lane.seed) for lane in chosen]
    state, hyper, key = stack(start), stack(hypers), stack(keys)
    batches = [expert(i, 16) for i in range(20)]
    losses, early = [], None
    for t in range(300):
        batch = stack([batches[t % 20]] * len(chosen))
        state, metrics = update_lanes(state, batch, key, np.int32(t + 1), hyper)
        losses.append(metrics["actor_loss"])
        early = state if t == 19 else early
    final = np.mean(losses[-20:], axis=0)
    assert (final < 0.02).all() and (final < 0.1 * np.asarray(losses[0])).all()
    for i, alone in enumerate(start):
        assert_on_mask(lane_of(state.actor, i))
        assert links(lane_of(state.actor, i)) == links(alone.actor)
        for t in range(20):
            now = np.int32(t + 1)
            draws = jax.random.fold_in(keys[i], now)
            alone, _ = update(alone, batches[t], draws, now, now, CFG, hypers[i])
        assert_close(lane_of(early, i), alone, 1e-10)


@pytest.mark.fast
def test_lowers_for_accelerators():
    lane = config.Lane()
    state = jax.eval_shape(lambda: stack([bc.init(jax.random.key(0), CFG, lane)] * 8))
    hyper, keys = stack([config.hyper(CFG, lane)] * 8), jax.random.split(jax.random.key(0), 8)
    batch = expert(0, 8, 16)
    traced = jax.jit(over_lanes(bc, CFG)).trace(state, batch, keys, jnp.int32(1), hyper)
    for platform in ("cuda", "tpu"):
        assert "stablehlo.while" in traced.lower(lowering_platforms=(platform,)).as_text()
