"""Layer allocation and initial masks: hand-worked tables, exact counts, rejected arguments."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import jit

from rlx2_jax.sparse import masks

pytestmark = pytest.mark.fast

NETWORK = [(7, 24), (24, 2)]


def params(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return {
        f"l{i}": {
            "kernel": jnp.asarray(rng.standard_normal(shape), jnp.float32),
            "bias": jnp.zeros(shape[-1]),
        }
        for i, shape in enumerate(shapes)
    }


# Two equal layers share evenly. The second network has 5250 links to give at S = 0.5: the last
# layer would have density 12.96 · 1.01, then the first 16.94 · 0.26; held dense they leave
# 4750 of 10000. A window of 3 x 3 enters erk's sum and product only:
# erdos_renyi 24/128 : 26/160 gives k (216 + 26) = 656, erk 30/1152 : 26/160 gives
# k (30 + 26) = 656 with the second layer held dense, which leaves 496 of 1152.
K = 656 / 242
TABLE = [
    ([(10, 10), (10, 10)], 0.9, "erdos_renyi", [0.9, 0.9]),
    ([(4, 100), (100, 100), (100, 1)], 0.5, "erdos_renyi", [0.0, 0.525, 0.0]),
    ([(4, 100), (100, 100), (100, 1)], 0.5, "erk", [0.0, 0.525, 0.0]),
    ([(4, 100), (100, 100), (100, 1)], 0.5, "uniform", [0.5, 0.5, 0.5]),
    ([(3, 3, 8, 16), (10, 16)], 0.5, "erdos_renyi", [1 - K * 24 / 128, 1 - K * 26 / 160]),
    ([(3, 3, 8, 16), (10, 16)], 0.5, "erk", [1 - 496 / 1152, 0.0]),
    ([(3, 5)], 0.0, "erdos_renyi", [0.0]),
    ([(3, 5), (5, 2)], 0.0, "erk", [0.0, 0.0]),
    ([(3, 5), (5, 2)], [0.25, 0.5], "erdos_renyi", [0.25, 0.5]),
]  # fmt: skip


@pytest.mark.parametrize(("shapes", "sparsity", "distribution", "expected"), TABLE)
def test_layer_sparsities_by_hand(shapes, sparsity, distribution, expected):
    found = masks.layer_sparsities(shapes, sparsity, distribution)
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("sparsity", [0.0, 0.1, 0.5, 0.77, 0.9, 0.95, 0.98])
@pytest.mark.parametrize("distribution", masks.DISTRIBUTIONS)
@pytest.mark.parametrize("shapes", [NETWORK, [(9, 9)], [(2, 300), (300, 300), (300, 1)]])
def test_allocation_meets_the_budget(shapes, sparsity, distribution):
    found = masks.layer_sparsities(shapes, sparsity, distribution)
    sizes = [math.prod(s) for s in shapes]
    assert all(0.0 <= s < 1.0 for s in found)
    budget = (1 - sparsity) * sum(sizes)
    assert sum((1 - s) * n for s, n in zip(found, sizes)) == pytest.approx(budget)
    # Layers that are not held dense have density proportional to (I + O) / (I O).
    if distribution != "uniform":
        factors = [(1 - s) * n / sum(shape) for s, n, shape in zip(found, sizes, shapes) if s > 0]
        assert np.ptp(factors) < 1e-9 if factors else True
    # Rounding gives each layer at most one link more, and never none.
    links = [masks.links(shape, s) for shape, s in zip(shapes, found)]
    assert min(links) >= 1
    assert budget - 1e-6 <= sum(links) <= budget + len(shapes)


@pytest.mark.parametrize(("size", "sparsity", "expected"), [
    ((4, 5), 0.5, 10), ((3, 3), 0.5, 5), ((3, 3), 0.0, 9), ((1, 1), 0.99, 1), ((10, 10), 0.999, 1),
])  # fmt: skip
def test_links_rounds_up(size, sparsity, expected):
    assert masks.links(size, sparsity) == expected


@pytest.mark.parametrize("how", masks.INITS)
@pytest.mark.parametrize(
    ("distribution", "sparsity"),
    [
        ("erdos_renyi", 0.3),
        ("erdos_renyi", 0.9),
        ("erdos_renyi", [0.5, 0.95]),
        ("erk", 0.0),
        ("erk", 0.5),
        ("uniform", 0.8),
    ],
)
def test_init_has_exact_counts(how, distribution, sparsity):
    theta = params(NETWORK)
    made = masks.init(jax.random.key(1), theta, sparsity, distribution=distribution, init=how)
    expected = masks.layer_sparsities(NETWORK, sparsity, distribution)
    for i, (shape, s) in enumerate(zip(NETWORK, expected)):
        mask = made[f"l{i}"]["kernel"]
        assert (mask.dtype, mask.shape) == (bool, shape)
        assert int(mask.sum()) == masks.links(shape, s)
        assert made[f"l{i}"]["bias"].all()
        if how == "magnitude":
            size, live = np.abs(theta[f"l{i}"]["kernel"]), np.asarray(mask)
            assert size[live].min() >= size[~live].max(initial=0.0)
    total = sum(masks.links(shape, s) for shape, s in zip(NETWORK, expected))
    assert masks.live(made) == total
    assert masks.sparsity(made) == pytest.approx(1 - total / sum(math.prod(s) for s in NETWORK))


@pytest.mark.parametrize("how", masks.INITS)
def test_init_is_the_same_jitted_and_vmapped(how):
    make = partial(masks.init, sparsity=0.8, init=how)
    theta, keys = params(NETWORK[1:]), jax.random.split(jax.random.key(3), 3)
    alone = [make(key, theta) for key in keys]
    lanes = jax.device_get(jit(jax.vmap(make, in_axes=(0, None)))(keys, theta))
    for i in range(3):
        one = jax.tree.map(lambda x, i=i: x[i], lanes)
        jax.tree.map(np.testing.assert_array_equal, one, alone[i])
    equal = jax.tree.map(lambda a, b: bool((a == b).all()), alone[0], alone[1])
    assert jax.tree.all(equal) == (how == "magnitude")  # other keys, other random masks


def test_random_init_is_uniform():
    make = lambda key: masks.init(key, {"w": jnp.zeros((4, 5))}, 0.75)["w"]  # noqa: E731
    share = jit(jax.vmap(make))(jax.random.split(jax.random.key(0), 4000)).mean(0)
    np.testing.assert_allclose(share, np.full((4, 5), 0.25), atol=0.035)  # five deviations


LARGEST = [
    ([3.0, 1.0, 2.0, 2.0], 0, [0, 0, 0, 0]),
    ([3.0, 1.0, 2.0, 2.0], 2, [1, 0, 1, 0]),  # of equal ones the first
    ([3.0, 1.0, 2.0, 2.0], 3, [1, 0, 1, 1]),
    ([0.0, 0.0, 0.0, 0.0], 3, [1, 1, 1, 0]),
    ([-1.0, -2.0, -1.0, -0.5], 2, [1, 0, 0, 1]),
    ([-1.0, -0.0, 0.0, -0.0], 2, [0, 1, 1, 0]),  # zeros are equal, whatever their sign
    ([1.0, jnp.inf, -jnp.inf, 0.0], 3, [1, 1, 0, 1]),
    ([1e-30, 0.0, 2e-30, 1e-30], 2, [1, 0, 1, 0]),
    ([3.0, 1.0, 2.0, 2.0], 4, [1, 1, 1, 1]),
]


@pytest.mark.parametrize("jitted", [False, True, None])
def test_largest_by_hand(jitted):
    largest = jit(masks.largest) if jitted else masks.largest
    for score, count, expected in LARGEST:
        with jax.disable_jit(jitted is None):
            found = largest(jnp.asarray([score[:2], score[2:]]), count)
        np.testing.assert_array_equal(found, np.asarray([expected[:2], expected[2:]], bool))


def test_largest_agrees_with_a_stable_sort():
    traced = []

    @jit
    def largest(score, count):
        traced.append(count)
        return masks.largest(score, count)

    rng = np.random.default_rng(0)
    for case in range(40):
        score = rng.standard_normal(60).astype(np.float32) * 10.0 ** rng.integers(-20, 20)
        if case % 2:
            score = np.round(score / np.abs(score).max() * 5)
        count = int(rng.integers(0, 61))
        expected = np.zeros(60, bool)
        expected[np.argsort(-score, kind="stable")[:count]] = True
        np.testing.assert_array_equal(largest(score, count), expected)
    assert len(traced) == 1  # one program, whatever the count


def test_apply_is_exactly_zero_off_the_mask():
    theta = {"w": jnp.asarray([[1.0, jnp.nan], [jnp.inf, -2.0]]), "b": jnp.asarray([3.0, 4.0])}
    mask = {"w": jnp.asarray([[True, False], [False, True]]), "b": jnp.ones(2, bool)}
    found = masks.apply(theta, mask)
    np.testing.assert_array_equal(found["w"], [[1.0, 0.0], [0.0, -2.0]])
    np.testing.assert_array_equal(found["b"], theta["b"])
    half = masks.apply({"w": jnp.ones((2, 2), jnp.bfloat16), "b": theta["b"]}, mask)
    assert half["w"].dtype == jnp.bfloat16


def test_statistics_by_hand():
    mask = {
        "w": jnp.asarray([[1, 0, 1], [0, 0, 0]], bool),
        "v": jnp.asarray([[1], [1]], bool),
        "b": jnp.ones(7, bool),
    }
    assert masks.live(mask) == 4
    assert masks.sparsity(mask) == 0.5
    np.testing.assert_array_equal(masks.connections(mask["w"]), [2, 0])
    assert masks.sparsity({"b": jnp.ones(3, bool)}) == 0.0


def test_any_tree_and_any_choice_of_leaves():
    haiku = {"mlp/~/linear_0": {"w": jnp.ones(NETWORK[0]), "b": jnp.ones(24)}}
    mixed = (haiku, [jnp.ones(NETWORK[1])], {"norm": {"table": jnp.ones(NETWORK[1])}})

    def sparse(path, leaf):
        return leaf.ndim == 2 and "norm" not in jax.tree_util.keystr(path)

    made = masks.init(jax.random.key(0), mixed, 0.75, sparse=sparse)
    assert jax.tree.structure(made) == jax.tree.structure(mixed)
    assert made[2]["norm"]["table"].all()
    expected = masks.layer_sparsities(NETWORK, 0.75)
    counts = [int(made[0]["mlp/~/linear_0"]["w"].sum()), int(made[1][0].sum())]
    assert counts == [masks.links(s, p) for s, p in zip(NETWORK, expected)]
    assert masks.live(made, sparse=sparse) == sum(counts)
    assert masks.live(made) == sum(counts) + 48


@pytest.mark.parametrize("bad", [1.0, 1.5, -0.1, math.nan, math.inf, "0.9", None])
def test_bad_sparsity(bad):
    with pytest.raises(ValueError, match=r"in \[0, 1\)|sparsities for"):
        masks.layer_sparsities(NETWORK, bad)
    with pytest.raises(ValueError, match=r"in \[0, 1\)|sparsities for"):
        masks.init(jax.random.key(0), params(NETWORK), bad)
    with pytest.raises(ValueError, match=r"in \[0, 1\)"):
        masks.layer_sparsities(NETWORK, [0.5, bad])


def test_a_sparsity_that_leaves_a_layer_without_links():
    shapes = [(2, 5), (5, 2)]  # 20 places, so that 0.9 leaves one link for each layer
    assert [masks.links(s, p) for s, p in zip(shapes, masks.layer_sparsities(shapes, 0.9))] == [
        1,
        1,
    ]
    for distribution in masks.DISTRIBUTIONS:
        with pytest.raises(ValueError, match=r"use at most 0\.9"):
            masks.layer_sparsities(shapes, 0.95, distribution)


def test_other_errors():
    theta = params(NETWORK)
    with pytest.raises(ValueError, match="3 sparsities for 2 layers"):
        masks.layer_sparsities(NETWORK, [0.5, 0.5, 0.5])
    with pytest.raises(ValueError, match="unknown distribution 'er'"):
        masks.layer_sparsities(NETWORK, 0.5, "er")
    with pytest.raises(ValueError, match="unknown mask init 'best'"):
        masks.init(jax.random.key(0), theta, 0.5, init="best")
    with pytest.raises(ValueError, match="no leaf of params is sparse"):
        masks.init(jax.random.key(0), {"b": jnp.zeros(3)}, 0.5)
    with pytest.raises(ValueError, match="sizes >= 1"):
        masks.layer_sparsities([(3, 0)], 0.5)
    with pytest.raises(ValueError, match="sizes >= 1"):
        masks.layer_sparsities([(3,)], 0.5)
    with pytest.raises(ValueError, match="same tree"):
        masks.apply(theta, {"l0": jnp.ones((7, 24), bool)})
    with pytest.raises(ValueError, match=r"params\['w'\] has shape \(2, 3\) but masks\['w'\]"):
        masks.apply({"w": jnp.ones((2, 3))}, {"w": jnp.ones((3, 2), bool)})
