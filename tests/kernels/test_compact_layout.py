"""The compact representation: conversion, validation, grouping of lanes."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compact_nets import compress, expand, masked_network, stack

from rlx2_jax.kernels import layout

pytestmark = pytest.mark.fast

CASES = [
    ((3, 4, 2), (5, 3)),
    ((1, 1), (1,)),
    ((1, 7, 1), (0, 0)),
    ((5, 6, 6, 3), (30, 1, 18)),
    ((14, 64, 64, 1), (200, 250, 64)),
]


def same(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(np.asarray(x), np.asarray(y)), a, b)


@pytest.mark.parametrize("widths,live", CASES)
def test_round_trip(widths, live):
    params, masks = masked_network(np.random.default_rng(0), widths, live)
    spec = layout.spec_of(masks)
    net = compress(params, masks, spec=spec)
    layout.validate(net.index)
    assert net.flat.shape == (spec.parameters,) == (sum(live) + sum(widths[1:]),)
    np.testing.assert_array_equal(net.index.live(), live)
    same(expand(net), (params, masks))


def test_hand_worked_order():
    kernel = np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 4.0]], np.float32)  # [in = 2, out = 3]
    params = {"a_0": {"kernel": kernel, "bias": np.array([5.0, 6.0, 7.0], np.float32)}}
    masks = {"a_0": {"kernel": kernel != 0, "bias": np.ones(3, bool)}}
    net = layout.from_masked(params, masks)  # not compiled: the same
    np.testing.assert_array_equal(net.flat, [1, 3, 2, 4, 5, 6, 7])  # by output, then biases
    np.testing.assert_array_equal(net.index.rowptr, [0, 1, 2, 4])
    np.testing.assert_array_equal(net.index.cols, [0, 1, 0, 1])
    np.testing.assert_array_equal(net.index.colptr, [0, 2, 4])
    np.testing.assert_array_equal(net.index.rows, [0, 2, 1, 2])
    np.testing.assert_array_equal(net.index.perm, [0, 2, 1, 3])


def test_layers_go_by_their_number():
    widths = (3,) * 13
    params, masks = masked_network(np.random.default_rng(1), widths, (4,) * 12)
    as_text = dict(sorted(params.items())), dict(sorted(masks.items()))
    assert layout.spec_of(as_text[1]).names == tuple(f"layer_{i}" for i in range(12))
    spec = layout.spec_of(masks)
    same(compress(params, masks, spec=spec), compress(*as_text, spec=spec))


def test_lanes_with_padding():
    rng = np.random.default_rng(2)
    lanes = [masked_network(rng, (5, 8, 2), live) for live in ((20, 9), (18, 9), (20, 8))]
    spec = layout.spec_of(*(masks for _, masks in lanes))
    assert spec.nnz == (20, 9)
    params, masks = stack([p for p, _ in lanes]), stack([m for _, m in lanes])
    nets = jax.jit(jax.vmap(lambda p, m: layout.from_masked(p, m, spec)))(params, masks)
    layout.validate(nets.index)
    np.testing.assert_array_equal(nets.index.live(), [[20, 9], [18, 9], [20, 8]])
    same(jax.jit(jax.vmap(layout.to_masked))(nets), (params, masks))
    for i, (p, m) in enumerate(lanes):
        same(jax.tree.map(lambda leaf, i=i: leaf[i], nets), compress(p, m, spec=spec))


@pytest.mark.parametrize(
    "field,change",
    [
        ("cols", lambda a: a.at[0].set(99)),
        ("cols", lambda a: a.at[0].set(-1)),
        ("cols", lambda a: a[::-1]),
        ("rows", lambda a: a.at[1].set(a[1] + 1)),
        ("perm", lambda a: a.at[0].set(a[1])),
        ("perm", lambda a: a.at[0].set(10**6)),
        ("rowptr", lambda a: a.at[0].set(1)),
        ("rowptr", lambda a: a.at[2].set(-5)),
        ("colptr", lambda a: a.at[1].set(10**6)),
        ("rowptr", lambda a: a[:-1]),
        ("cols", lambda a: a.astype(jnp.int16)),
    ],
)
def test_validate_refuses(field, change):
    params, masks = masked_network(np.random.default_rng(3), (6, 8, 4), (24, 16))
    index = compress(params, masks, spec=layout.spec_of(masks)).index
    broken = dataclasses.replace(index, **{field: change(getattr(index, field))})
    with pytest.raises(ValueError, match=r"layer|int32"):
        layout.validate(broken)


def test_bad_specs_are_refused():
    with pytest.raises(ValueError, match="do not fit"):
        layout.Spec(((2, 3),), (7,), ("a",))
    with pytest.raises(ValueError, match="one shape"):
        layout.Spec(((2, 3),), (7, 1), ("a",))
    with pytest.raises(ValueError, match="must have 1 to"):
        layout.Spec(((2**16, 2**16),), (7,), ("a",))
    _, one = masked_network(np.random.default_rng(0), (3, 4), (2,))
    _, other = masked_network(np.random.default_rng(0), (5, 3), (2,))
    with pytest.raises(ValueError, match="chain"):
        _ = layout.spec_of({"layer_0": one["layer_0"], "layer_1": other["layer_0"]}).widths


def test_groups_of_lanes():
    live = [(100, 50), (98, 50), (60, 40), (100, 49), (10, 5), (62, 39)]
    groups = layout.group_lanes(live)
    assert groups == [[0, 1, 3], [2, 5], [4]]
    assert layout.group_lanes(live, max_padding=0.0) == [[i] for i in (0, 3, 1, 5, 2, 4)]
    rng = np.random.default_rng(0)
    many = [tuple(rng.integers(50, 200, size=3)) for _ in range(40)]
    groups = layout.group_lanes(many)
    assert sorted(itertools.chain(*groups)) == list(range(40))
    for group in groups:
        size = np.max([many[i] for i in group], axis=0).sum()
        assert all(size <= 1.1 * sum(many[i]) for i in group)
