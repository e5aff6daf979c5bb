"""Evolution of compact networks against a plain masked reference in NumPy: exact equality."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compact_nets import compress, expand, masked_network, stack

from rlx2_jax.kernels import layout
from rlx2_jax.sparse import compact_topology as evolution

pytestmark = pytest.mark.fast


def reference(weight, mask, score, fraction, regrow):
    """(new mask, inherited links) of one layer, by stable sorts over the flattened kernel."""
    w, m, s = weight.reshape(-1), mask.reshape(-1), np.abs(score.reshape(-1))
    live = int(m.sum())
    k = int(np.floor(np.float32(live) * np.float32(fraction) * np.float32(1 + 2.0**-22)))
    k = min(max(k, 0), live)
    if regrow == "forbid":
        k = min(k, m.size - live)
    kept = np.zeros_like(m)
    kept[np.argsort(-np.where(m, np.abs(w), -1.0), kind="stable")[: live - k]] = True
    taken = m if regrow == "forbid" else kept
    key = np.where(taken, -1.0, np.where(np.isnan(s), -0.5, s))
    grown = np.zeros_like(m)
    grown[np.argsort(-key, kind="stable")[:k]] = True
    new = kept | grown
    inherited = (new & m) if regrow == "keep" else kept
    return new.reshape(mask.shape), inherited.reshape(mask.shape)


def scores_for(rng, widths, kind) -> list[Any]:
    shapes = list(itertools.pairwise(widths))
    if kind == "pair":  # small integers: products are exact and ties are many
        return [
            tuple(rng.integers(-2, 3, size=(n, 5)).astype(np.float32) for n in shape)
            for shape in shapes
        ]
    dense = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    if kind == "nan":
        return [np.where(rng.random(d.shape) < 0.7, np.nan, d) for d in dense]
    return [np.zeros_like(d) if kind == "zero" else d for d in dense]


def check(params, masks, net, scores, fraction, regrow, moved):
    index, source = moved
    layout.validate(index)
    moments = np.arange(1.0, 1.0 + net.flat.size, dtype=np.float32)
    flat, moments = jax.jit(evolution.remap)(source, net.flat, jnp.asarray(moments))
    got, got_masks = expand(layout.Compact(flat, index))
    got_moments, _ = expand(layout.Compact(moments, index))
    old_moments, _ = expand(
        layout.Compact(jnp.arange(1.0, 1.0 + net.flat.size, dtype=jnp.float32), net.index)
    )
    for name, score in zip(net.index.spec.names, scores):
        dense = score[0] @ score[1].T if isinstance(score, tuple) else score
        old, mask = params[name]["kernel"], masks[name]["kernel"]
        new, inherited = reference(old, mask, dense, fraction, regrow)
        np.testing.assert_array_equal(got_masks[name]["kernel"], new)
        np.testing.assert_array_equal(got[name]["kernel"], np.where(inherited, old, 0))
        want = np.where(inherited, old_moments[name]["kernel"], 0)
        np.testing.assert_array_equal(got_moments[name]["kernel"], want)
        np.testing.assert_array_equal(got[name]["bias"], params[name]["bias"])


@pytest.mark.long
@pytest.mark.parametrize("regrow", evolution.REGROW)
@pytest.mark.parametrize("kind", ["pair", "dense", "zero", "nan"])
def test_equals_masked_reference(regrow, kind):
    rng = np.random.default_rng(4)
    evolve = jax.jit(evolution.evolve, static_argnames="regrow")
    for widths, live in [((11, 32, 32, 3), (60, 50, 80)), ((1, 5, 3, 4), (3, 0, 12))]:
        params, masks = masked_network(rng, widths, live)
        if kind == "zero":  # ties among the values too
            params = jax.tree.map(np.sign, params)
        net = compress(params, masks)
        scores = scores_for(rng, widths, kind)
        for fraction in (0.0, 0.1, 0.5, 1.0):
            moved = evolve(net.flat, net.index, scores, fraction, regrow=regrow)
            check(params, masks, net, scores, fraction, regrow, moved)


@pytest.mark.long
def test_plain_equals_compiled():
    rng = np.random.default_rng(8)
    params, masks = masked_network(rng, (4, 5), (9,))
    net, scores = compress(params, masks), scores_for(rng, (4, 5), "pair")
    check(
        params, masks, net, scores, 0.5, "keep", evolution.evolve(net.flat, net.index, scores, 0.5)
    )


@pytest.mark.long
@pytest.mark.parametrize("tile", [1, 8, 33])
def test_tiles_do_not_matter(tile, monkeypatch):
    monkeypatch.setattr(evolution, "_TILE", tile)
    rng = np.random.default_rng(5)
    params, masks = masked_network(rng, (9, 11, 4), (30, 20))
    net, scores = compress(params, masks), scores_for(rng, (9, 11, 4), "pair")
    for regrow in evolution.REGROW:
        evolve = jax.jit(functools.partial(evolution.evolve, regrow=regrow))
        moved = evolve(net.flat, net.index, scores, 0.6)
        check(params, masks, net, scores, 0.6, regrow, moved)


def test_lanes_with_padding_and_different_fractions():
    rng = np.random.default_rng(6)
    widths, lives, fractions = (5, 8, 2), ((20, 9), (18, 9), (20, 8)), (0.0, 0.3, 0.5)
    lanes = [masked_network(rng, widths, live) for live in lives]
    spec = layout.spec_of(*(masks for _, masks in lanes))
    nets = [compress(p, m, spec) for p, m in lanes]
    scores = [scores_for(rng, widths, "pair") for _ in lanes]
    many = jax.jit(
        jax.vmap(lambda n, s, f: evolution.evolve(n.flat, n.index, s, f, max_fraction=0.5))
    )(stack(nets), stack(scores), jnp.asarray(fractions))
    for i, (net, (params, masks)) in enumerate(zip(nets, lanes)):
        moved = jax.tree.map(lambda leaf, i=i: leaf[i], many)
        check(params, masks, net, scores[i], fractions[i], "keep", moved)
        np.testing.assert_array_equal(moved[0].live(), lives[i])


def test_hundreds_of_evolutions_keep_the_count():
    rng = np.random.default_rng(7)
    params, masks = masked_network(rng, (6, 20, 20, 2), (40, 60, 20))
    net = compress(params, masks)

    def step(carry, key):
        flat, index = carry
        scores = [jax.random.normal(key, shape) for shape in index.spec.shapes]
        index, source = evolution.evolve(flat, index, scores, 0.3)
        (flat,) = evolution.remap(source, flat)
        return (flat + 0.01 * jax.random.normal(key, flat.shape), index), index.live()

    keys = jax.random.split(jax.random.key(0), 300)
    (_, index), live = jax.jit(lambda c: jax.lax.scan(step, c, keys))((net.flat, net.index))
    layout.validate(index)
    assert (np.asarray(live) == [40, 60, 20]).all()


def test_bad_arguments():
    params, masks = masked_network(np.random.default_rng(0), (3, 4), (5,))
    net = compress(params, masks)
    with pytest.raises(ValueError, match="regrow"):
        evolution.evolve(net.flat, net.index, [params["layer_0"]["kernel"]], 0.5, regrow="no")
    with pytest.raises(ValueError, match="fraction"):
        evolution.evolve(net.flat, net.index, [params["layer_0"]["kernel"]], 1.5)
