"""The benchmark of `sparsify`: timed steps keep their masks, with and without the gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks import sparsify_benchmark as benchmark
from rlx2_jax import masks_of, sparsify

pytestmark = pytest.mark.fast


def test_steps_are_timed_and_learn(monkeypatch):
    monkeypatch.setattr(benchmark, "SIZES", (4, 6, 3))
    monkeypatch.setattr(benchmark, "STEPS", 2)
    params = benchmark.network(jax.random.key(0))
    tx = sparsify(optax.adam(1e-3), 0.5, **benchmark.LATE)
    state = tx.init(params)
    grads = jax.tree.map(jnp.ones_like, params)
    new, later = benchmark.sparse(tx)(params, state, grads)
    plain, _ = benchmark.plain(optax.adam(1e-3), masks_of(state))(
        jax.tree.map(jnp.multiply, params, masks_of(state)), optax.adam(1e-3).init(params), grads
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), new, plain)
    jax.tree.map(np.testing.assert_array_equal, masks_of(state), masks_of(later))
    for given in (grads, None):
        assert benchmark.timed(benchmark.sparse(tx), params, state, given, donate=True)() > 0
    assert benchmark.temporaries(tx, params, grads) >= 0
