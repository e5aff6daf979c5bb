"""Growth without a dense gradient chooses what dense top-k would: heap, tiles, and ties."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import equations, jit, largest_array

from rlx2_jax.sparse import growth, topology

pytestmark = pytest.mark.fast

IN, OUT, BATCH, K_MAX = 7, 5, 3, 35
TILES = (1, 3, 7, 100)  # rows that divide 7, do not, are all, are more
GROW = {tile: jit(partial(growth.tiled_grow, k_max=K_MAX, tile=tile)) for tile in TILES}
MASK = jit(lambda grown: grown.mask((IN, OUT)))
DENSE = jit(growth.dense_grow)
GRADIENT = jit(jax.grad(lambda weight, x, g: jnp.sum(g * (x @ weight))))


def dense(score, blocked, k):
    """The k positions of largest |score| outside `blocked`, ties to the first, by sorting."""
    free = [i for i in range(score.size) if i not in blocked]
    return sorted(free, key=lambda i: (-abs(score.ravel()[i]), i))[:k]


def draw(rng, *shape):
    """Small integers, so that sums are exact, and there are ties and zeros."""
    return rng.integers(-2, 3, shape).astype(np.float32)


def case(seed, density=0.4):
    rng = np.random.default_rng(seed)
    taken = rng.random((IN, OUT)) < density
    return draw(rng, BATCH, IN), draw(rng, BATCH, OUT), taken


def test_heap_by_hand():
    # |x_i g_j|, places 0 to 5:  2·1 2·3 | 1·1 1·3 | 4·1 4·3
    x, g = np.asarray([2.0, -1.0, 4.0]), np.asarray([1.0, -3.0])
    assert growth.heap_grow(x, g, [], 0) == set()
    assert growth.heap_grow(x, g, [], 1) == {5}
    assert growth.heap_grow(x, g, [2], 3) == {2, 5, 1}
    assert growth.heap_grow(x, g, [2], 3, forbid=[5]) == {2, 1, 4}
    assert growth.heap_grow(x, g, [2, 5], 2, forbid=[1]) == {2, 5}
    assert growth.heap_grow(x, g, [], 6) == set(range(6))
    assert growth.heap_grow(x, g, [], 4, forbid=[0, 2]) == {5, 1, 4, 3}


def test_heap_breaks_ties_by_place():
    # A column without gradient lists its places by |x|, not in their order.
    assert growth.heap_grow(np.asarray([1.0, 2.0, 3.0]), np.zeros(2), [], 3) == {0, 1, 2}
    # 3e-30 · 1e-30 and 2e-30 · 1e-30 are both zero in float32.
    x = np.asarray([2e-30, 3e-30, 0.0], np.float32)
    assert growth.heap_grow(x, np.asarray([1e-30], np.float32), [], 1) == {0}


@pytest.mark.parametrize("seed", range(40))
def test_heap_is_dense_top_k(seed):
    rng = np.random.default_rng(seed)
    n_in, n_out = rng.integers(1, 9, 2)
    size = int(n_in * n_out)
    if seed % 2:
        x, g = draw(rng, n_in), draw(rng, n_out)
    else:
        x, g = rng.standard_normal(n_in), rng.standard_normal(n_out)
    role = rng.integers(0, 3, size)  # a link already, forbidden, or free
    base, forbid = (set(np.flatnonzero(role == r).tolist()) for r in (0, 1))
    free = size - len(base) - len(forbid)
    for k in {0, free // 2, free}:
        found = growth.heap_grow(x, g, base, len(base) + k, forbid)
        assert found == base | set(dense(np.outer(x, g), base | forbid, k))


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("form", ["mask", "places"])
def test_tiles_are_dense_top_k(tile, form):
    for seed in range(8):
        x, g, mask = case(seed, density=(0.0, 0.4, 0.9, 1.1)[seed % 4])
        score, blocked = x.T @ g, set(np.flatnonzero(mask))
        taken = mask
        if form == "places":  # in any order, padded with places outside of the layer
            places = np.random.default_rng(seed).permutation(sorted(blocked)).astype(np.int32)
            taken = np.full(IN * OUT + 2, IN * OUT, np.int32)
            taken[: len(places)] = places
            taken[-1] = -1
        free = mask.size - len(blocked)
        for k in sorted({0, 1, free // 2, free}):
            if k > free:
                continue
            found = GROW[tile](x, g, taken, k)
            expected = dense(score, blocked, k)
            assert np.asarray(found.indices)[:k].tolist() == expected  # by decreasing score
            assert np.asarray(found.valid).tolist() == [i < k for i in range(K_MAX)]
            assert (np.asarray(found.indices)[k:] == IN * OUT).all()
            as_mask = np.zeros(IN * OUT, bool)
            as_mask[expected] = True
            np.testing.assert_array_equal(MASK(found), as_mask.reshape(IN, OUT))
            if form == "mask":
                np.testing.assert_array_equal(DENSE(score, mask, k), as_mask.reshape(IN, OUT))


@pytest.mark.parametrize("form", ["mask", "places"])
def test_k_beyond_the_free_places_chooses_no_taken_one(form):
    x, g, mask = case(1)
    taken = mask
    if form == "places":
        taken = np.full(IN * OUT + 2, -1, np.int32)
        taken[: mask.sum()] = np.flatnonzero(mask)
    found = GROW[3](x, g, taken, K_MAX)  # the last tile is padded with two rows
    assert int(found.valid.sum()) == mask.size - mask.sum()
    np.testing.assert_array_equal(MASK(found), ~mask)


def test_a_gradient_that_is_no_number_comes_last():
    x, g = jnp.asarray([[1.0, jnp.nan, 2.0]]), jnp.asarray([[1.0, 3.0]])
    found = growth.tiled_grow(x, g, jnp.zeros((3, 2), bool), 6, k_max=6, tile=2)
    assert found.indices.tolist() == [5, 1, 4, 0, 2, 3]


def test_k_max_zero():
    x, g, mask = (jnp.asarray(a) for a in case(1))
    found = growth.tiled_grow(x, g, mask, 0, k_max=0, tile=3)
    assert found.indices.shape == found.valid.shape == (0,)


@pytest.mark.parametrize("form", ["mask", "places"])
def test_tiles_vmap_over_lanes(form):
    lanes = [case(seed) for seed in range(4)]
    x, g, mask = (np.stack(field) for field in zip(*lanes))
    ks = np.arange(4) * 3
    taken = mask
    if form == "places":
        taken = np.full((4, IN * OUT), IN * OUT, np.int32)
        for lane in range(4):
            places = np.flatnonzero(mask[lane])
            taken[lane, : len(places)] = places
    found = jax.device_get(
        jit(jax.vmap(partial(growth.tiled_grow, k_max=K_MAX, tile=3)))(x, g, taken, ks)
    )
    for lane, k in enumerate(ks):
        alone = GROW[3](x[lane], g[lane], taken[lane], k)
        np.testing.assert_array_equal(found.indices[lane], alone.indices)
        np.testing.assert_array_equal(found.valid[lane], alone.valid)


@pytest.mark.parametrize("regrow", topology.REGROW)
def test_evolution_by_tiles_is_evolution_by_the_dense_gradient(regrow):
    @jit
    def tiled(weight, mask, x, g, fraction):
        grow = lambda taken, k: growth.tiled_grow(  # noqa: E731
            x, g, taken, k, k_max=K_MAX, tile=3
        ).mask((IN, OUT))
        return topology.evolve_layer(weight, mask, grow, fraction, regrow=regrow)

    evolve = jit(partial(topology.evolution, regrow=regrow))
    for seed in range(8):
        x, g, mask = case(seed, density=0.5)
        weight = np.where(mask, draw(np.random.default_rng(seed), IN, OUT), np.float32(0))
        # The gradient of L = Σ g ⊙ (xθ) as autodiff gives it, not as the test would write it.
        gradient = GRADIENT(weight, x, g)
        fraction = seed / 7
        found = tiled(weight, mask, x, g, fraction)
        expected = evolve({"w": weight}, {"w": mask}, {"w": gradient}, fraction)
        for ours, theirs in zip(found, expected):
            np.testing.assert_array_equal(ours, theirs["w"])


def test_no_array_of_the_size_of_the_gradient():
    """Given taken positions as a list, neither the traced nor the compiled program has one."""
    n_in, n_out, batch, live, k_max, tile = 96, 80, 4, 200, 50, 8
    args = (
        jnp.ones((batch, n_in)),
        jnp.ones((batch, n_out)),
        jnp.arange(live, dtype=jnp.int32),
        jnp.asarray(20),
    )
    grow = partial(growth.tiled_grow, k_max=k_max, tile=tile)
    sizes = [
        out.aval.size
        for eqn, _ in equations(jax.make_jaxpr(grow)(*args).jaxpr)
        for out in eqn.outvars
    ]
    most = tile * n_out + k_max
    assert max(sizes) == most < n_in * n_out // 10
    assert largest_array(jax.jit(grow).lower(*args).compile().as_text() or "") <= most


def test_with_a_mask_only_the_mask_is_of_that_size():
    n_in, n_out = 96, 80
    args = (jnp.ones((4, n_in)), jnp.ones((4, n_out)), jnp.ones((n_in, n_out), bool), 20)
    grow = partial(growth.tiled_grow, k_max=50, tile=8)
    for eqn, _ in equations(jax.make_jaxpr(grow)(*args).jaxpr):
        for out in eqn.outvars:
            assert out.aval.dtype == bool or out.aval.size < n_in * n_out // 10


def test_errors():
    x, g, mask = (jnp.asarray(a) for a in case(0))
    grow = partial(growth.tiled_grow, k_max=10, tile=3)
    with pytest.raises(ValueError, match=r"\[batch, in\] and \[batch, out\]"):
        grow(x, g[1:], mask, 3)
    with pytest.raises(ValueError, match=r"taken is a mask of shape \(7, 5\)"):
        grow(x, g, mask.T, 3)
    with pytest.raises(ValueError, match="taken is a mask"):
        grow(x, g, mask.astype(jnp.int32), 3)
    with pytest.raises(ValueError, match=r"k_max=36 must be in \[0, 35\]"):
        growth.tiled_grow(x, g, mask, 3, k_max=36)
    with pytest.raises(ValueError, match="tile=0"):
        growth.tiled_grow(x, g, mask, 3, k_max=10, tile=0)
    with pytest.raises(ValueError, match=r"k=11 must be in \[0, k_max=10\]"):
        grow(x, g, mask, 11)
    with pytest.raises(ValueError, match="links=5 cannot be reached"):
        growth.heap_grow(np.ones(2), np.ones(2), [0], 5)
    with pytest.raises(ValueError, match="with 3 of 4 places"):
        growth.heap_grow(np.ones(2), np.ones(2), [0], 3, forbid=[1, 2])
    with pytest.raises(ValueError, match="links=1 cannot be reached from 2"):
        growth.heap_grow(np.ones(2), np.ones(2), [0, 1], 1)
    with pytest.raises(ValueError, match="must be finite"):
        growth.heap_grow(np.asarray([np.nan]), np.ones(2), [], 1)
