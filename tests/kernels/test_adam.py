"""The guarded Adam step: equality with optax, masks, lanes, non-finite values, portability."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from instruction_sets import select_isa

from rlx2_jax.kernels import adam, native

pytestmark = pytest.mark.fast
RATE = jnp.float32(0.01)


@pytest.fixture(params=["native", "xla"], autouse=True)
def how(request, monkeypatch):
    """With the kernels, also where arrays are too small for them to pay, and without."""
    monkeypatch.setenv("RLX2_COMPACT", request.param)
    monkeypatch.setattr(adam, "_LEAST_SIZE", 1)
    return request.param


def tree(rng, dtype=np.float32, lead=()):
    """Arrays of odd sizes, one longer than a thread's chunk."""
    shapes = {"a": (3, 5), "b": (7,), "c": (101, 103), "d": (1,)}
    return {k: jnp.asarray(rng.normal(size=(*lead, *s)), dtype) for k, s in shapes.items()}


def fresh():
    """Compiled again, so that no cached program of the other kind is used."""
    return jax.jit(lambda *args: adam.guarded_step(*args))


def close(got, want, tolerance=1e-6):
    check = functools.partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance)
    jax.tree.map(check, got, want)


@pytest.mark.parametrize("isa", native.ISAS[:2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_many_steps_are_those_of_optax(dtype, isa):
    rng = np.random.default_rng(0)
    try:
        select_isa(isa)
        with jax.enable_x64(dtype == np.float64):
            params = want = tree(rng, dtype)
            tx = optax.adam(0.01)
            moments = adam.init(params)
            state: Any = tx.init(params)
            step = fresh()
            for _ in range(5):
                grads = tree(rng, dtype)
                params, moments, finite = step(params, moments, grads, jnp.asarray(0.01, dtype))
                updates, state = tx.update(grads, state)
                want = optax.apply_updates(want, updates)
                assert bool(finite)
            close(params, want, 2e-6 if dtype == np.float32 else 1e-13)
            close(moments.nu, state[0].nu, 2e-6)
            assert int(moments.count) == 5
    finally:
        select_isa("avx512")


def test_masks():
    rng = np.random.default_rng(1)
    masks = jax.tree.map(lambda x: x > 0, tree(rng))
    params, grads, mu = tree(rng), tree(rng), tree(rng)
    moments = adam.init(params)._replace(mu=mu)  # moments of dead links must not move them
    new, moved, _ = fresh()(params, moments, grads, RATE, masks)
    live = jax.tree.map(lambda g, m: jnp.where(m, g, 0.0), grads, masks)
    want, wanted, _ = adam.guarded_step(params, moments, live, RATE)
    close(new, jax.tree.map(lambda p, m: jnp.where(m, p, 0.0), want, masks))
    close(moved, wanted)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_finite_counts_as_zero(bad):
    rng = np.random.default_rng(2)
    params, grads = tree(rng), tree(rng)
    moments = adam.init(params)._replace(mu=tree(rng))
    grads["c"] = grads["c"].at[100, 102].set(bad)
    new, moved, finite = fresh()(params, moments, grads, RATE)
    assert not bool(finite)
    zeros = jax.tree.map(jnp.zeros_like, grads)
    close((new, moved), adam.guarded_step(params, moments, zeros, RATE)[:2])


def test_lanes_equal_one_by_one_and_may_stand_still():
    rng = np.random.default_rng(3)
    params, grads = tree(rng, lead=(4,)), tree(rng, lead=(4,))
    grads["b"] = grads["b"].at[1, 2].set(np.nan)
    moments = jax.vmap(adam.init)(params)
    active = jnp.array([True, True, False, True])
    rates = jnp.array([0.1, 0.2, 0.3, 0.4])
    run = jax.vmap(lambda p, m, g, r, a: adam.guarded_step(p, m, g, r, None, a))
    new, moved, finite = jax.jit(run)(params, moments, grads, rates, active)
    assert finite.tolist() == [True, False, True, True]
    for i in range(4):
        p, m, g = jax.tree.map(lambda leaf, i=i: leaf[i], (params, moments, grads))
        want = adam.guarded_step(p, m, g, rates[i], None, active[i])
        close(jax.tree.map(lambda leaf, i=i: leaf[i], (new, moved)), want[:2])
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[2], b[2]), new, params)
    assert moved.count.tolist() == [1, 1, 0, 1]


def test_shared_arguments():
    """Lane axes on some arguments only: shared arguments are not overwritten."""
    rng = np.random.default_rng(4)
    params, grads = tree(rng), tree(rng, lead=(3,))
    moments = adam.init(params)
    run = jax.jit(jax.vmap(lambda g: adam.guarded_step(params, moments, g, RATE)))
    new, _, _ = run(grads)
    want = adam.guarded_step(params, moments, jax.tree.map(lambda g: g[2], grads), RATE)[0]
    close(jax.tree.map(lambda leaf: leaf[2], new), want)


def test_arguments_stay_as_they_were():
    rng = np.random.default_rng(5)
    params, grads = tree(rng), tree(rng)
    before = jax.tree.map(np.array, params)
    jax.block_until_ready(fresh()(params, adam.init(params), grads, RATE))
    jax.tree.map(np.testing.assert_array_equal, params, before)


@pytest.mark.parametrize("platform", ["cuda", "tpu", "cpu"])
def test_lowers_for(platform, how):
    params = tree(np.random.default_rng(0))
    traced = jax.jit(lambda *a: adam.guarded_step(*a)).trace(
        params, adam.init(params), params, RATE
    )
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert ("rlx2_adam" in text) == (platform == "cpu" and how == "native")
