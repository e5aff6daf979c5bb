"""Drop and grow: hand-worked tables, a plain NumPy model, and invariants of evolution."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import jit

from rlx2_jax.sparse import lane_topology, masks, topology

pytestmark = pytest.mark.fast

EVOLVE = {r: jit(partial(topology.evolution, regrow=r)) for r in topology.REGROW}
MOVE = jit(topology.links_to_move)
SHAPES = {"a": (5, 7), "b": (1, 9), "bias": (4,)}


def model(weight, mask, score, k, regrow):
    """Algorithm 1 on one layer, by sorting lists: new weight, new mask, inherited links."""
    weight, mask, score = (np.asarray(a).ravel() for a in (weight, mask, score))
    live = [i for i in range(mask.size) if mask[i]]
    dead = [i for i in range(mask.size) if not mask[i]]
    if regrow == "forbid":
        k = min(k, len(dead))
    by_size = sorted(live, key=lambda i: (-abs(weight[i]), i))
    kept, dropped = by_size[: len(live) - k], by_size[len(live) - k :]
    free = dead if regrow == "forbid" else dead + dropped
    grown = sorted(free, key=lambda i: (-abs(score[i]), i))[:k]
    inherited = kept + ([i for i in grown if mask[i]] if regrow == "keep" else [])
    new_weight, new_mask, carried = (np.zeros_like(a) for a in (weight, mask, mask))
    new_mask[kept + grown] = True
    carried[inherited] = True
    new_weight[inherited] = weight[inherited]
    return new_weight, new_mask, carried


def random_case(seed, density, levels=40.0, lead=()):
    """Parameters, masks and scores of few levels, so that there are ties."""
    rng = np.random.default_rng(seed)

    def draw():
        return {n: _levels(rng, (*lead, *shape), levels) for n, shape in SHAPES.items()}

    mask = {n: rng.random((*lead, *s)) < (density if len(s) > 1 else 2) for n, s in SHAPES.items()}
    params = jax.tree.map(lambda p, m: np.where(m, p, np.float32(0)), draw(), mask)
    return params, mask, draw()


def _levels(rng, shape, levels):
    return (np.round(levels * rng.standard_normal(shape)) / 4).astype(np.float32)


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 0.5), (250, 0.42677669), (500, 0.25), (750, 0.07322330), (999, 1.2337e-6), (1000, 0.0)],
)
def test_update_fraction_by_hand(step, expected):
    for f in (topology.update_fraction, jit(topology.update_fraction)):
        found = f(step, 0.5, 1000)
        assert (found.shape, found.dtype) == ((), jnp.float32)
        assert float(found) == pytest.approx(expected, rel=1e-5 if step < 900 else 0.1)


@pytest.mark.parametrize("step", [1000, 1001, 1500, 2000, 4000, 10**6])
def test_update_fraction_is_zero_from_the_end_on(step):
    assert float(topology.update_fraction(step, 0.5, 1000)) == 0.0


# At these points ζ/ζ0 is a rational number, so that live · ζ is whole for many live counts.
EXACT = [(0, 1), (1, 3), (1, 2), (2, 3)]


@pytest.mark.parametrize("t_end", [6, 12_000, 990_000, 2_974_998])
@pytest.mark.parametrize("zeta0", [0.1, 0.25, 0.3, 0.5, 0.9, 1.0])
def test_links_to_move_floors_as_float64(zeta0, t_end):
    live = np.arange(1, 20_001)
    share = {(0, 1): (1, 1), (1, 3): (3, 4), (1, 2): (1, 2), (2, 3): (1, 4)}
    for top, bottom in EXACT:
        fraction = topology.update_fraction(t_end * top // bottom, zeta0, t_end)
        n, d = share[top, bottom]
        exact = live * round(zeta0 * 20) * n // (20 * d)  # integers: nothing is rounded
        np.testing.assert_array_equal(MOVE(live, fraction), exact)


def test_links_to_move_over_a_run():
    """Away from these points float32 may differ by one, where the product is all but whole."""
    live, t_end = np.arange(1, 20_001), 2_975_000
    for step in range(10_000, t_end, 170_000):
        exact = live * (0.25 * (1 + np.cos(np.pi * step / t_end)))
        found = np.asarray(MOVE(live, topology.update_fraction(step, 0.5, t_end)))
        whole = np.abs(exact - np.round(exact)) < 1e-6 * live
        np.testing.assert_array_equal(found[~whole], np.floor(exact)[~whole])
        assert np.abs(found - exact).max() < 1.01


# Live places 0, 1, 3 of a [2, 3] layer with |weights| 5, 1, 3: dropping one takes place 1,
# dropping two takes 1 and 3.
WEIGHT, MASK = [5, -1, 0, 3, 0, 0], "110 100"
BY_HAND = [
    # k, scores, regrow, new weight, new mask, inherited
    (1, [9, -8, 1, 9, 2, 3], "keep", [5, -1, 0, 3, 0, 0], "110 100", "110 100"),
    (1, [9, -8, 1, 9, 2, 3], "zero", [5, 0, 0, 3, 0, 0], "110 100", "100 100"),
    (1, [9, -8, 1, 9, 2, 3], "forbid", [5, 0, 0, 3, 0, 0], "100 101", "100 100"),
    (1, [9, 2, 1, 9, 2, -3], "keep", [5, 0, 0, 3, 0, 0], "100 101", "100 100"),
    (2, [9, 1, 1, 4, 4, 4], "keep", [5, 0, 0, 3, 0, 0], "100 110", "100 100"),
    (2, [9, 1, 1, 4, 4, 4], "zero", [5, 0, 0, 0, 0, 0], "100 110", "100 000"),
    (2, [9, 1, 1, 4, 4, 4], "forbid", [5, 0, 0, 0, 0, 0], "100 011", "100 000"),
    (3, [0, 0, 0, 0, 0, 0], "keep", [5, -1, 0, 0, 0, 0], "111 000", "110 000"),
    (3, [0, 0, 0, 0, 0, 0], "forbid", [0, 0, 0, 0, 0, 0], "001 011", "000 000"),
]


def layer(values):
    """A list of six numbers, or a string of six bits, as a [2, 3] array."""
    if isinstance(values, str):
        return jnp.asarray([bit == "1" for bit in values if bit != " "]).reshape(2, 3)
    return jnp.asarray(values, jnp.float32).reshape(2, 3)


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("case", range(len(BY_HAND)))
def test_evolve_by_hand(case, jitted):
    k, score, regrow, *expected = BY_HAND[case]
    params, mask, scores = {"w": layer(WEIGHT)}, {"w": layer(MASK)}, {"w": layer(score)}
    if jitted:
        found = EVOLVE[regrow](params, mask, scores, k / 3)
    else:
        found = topology.evolution(params, mask, scores, k / 3, regrow=regrow)
        new_params, new_masks = topology.evolve(params, mask, scores, k / 3, regrow=regrow)
        np.testing.assert_array_equal(new_params["w"], found.params["w"])
        np.testing.assert_array_equal(new_masks["w"], found.masks["w"])
    for field, value in zip(found, expected):
        np.testing.assert_array_equal(field["w"], layer(value))


@pytest.mark.parametrize("regrow", topology.REGROW)
@pytest.mark.parametrize("density", [0.1, 0.5, 0.9, 1.1])
def test_evolve_agrees_with_the_model(regrow, density):
    for seed in range(12):
        params, mask, scores = random_case(seed, density, 4.0 if seed % 2 else 400.0)
        fraction = seed / 11
        found = EVOLVE[regrow](params, mask, scores, fraction)
        for name in ("a", "b"):
            k = int(np.asarray(mask[name]).sum()) * seed // 11
            expected = model(params[name], mask[name], scores[name], k, regrow)
            for ours, theirs in zip(found, expected):
                np.testing.assert_array_equal(np.asarray(ours[name]).ravel(), theirs)
        for ours, theirs in zip(found, (params, mask, mask)):
            np.testing.assert_array_equal(ours["bias"], theirs["bias"])


def test_one_program_serves_all_fractions():
    traced = []

    @jit
    def evolve(params, mask, scores, fraction):
        traced.append(fraction)
        return topology.evolve(params, mask, scores, fraction)

    for k in range(4):
        evolve({"w": layer(WEIGHT)}, {"w": layer(MASK)}, {"w": layer(WEIGHT)}, k / 3)
    assert len(traced) == 1


@pytest.mark.parametrize("regrow", topology.REGROW)
@pytest.mark.parametrize("density", [0.3, 1.1])
def test_fraction_zero_is_the_identity(regrow, density):
    params, mask, scores = random_case(1, density)
    found = EVOLVE[regrow](params, mask, scores, 0.0)
    for ours, theirs in zip(found, (params, mask, mask)):
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.parametrize("regrow", topology.REGROW)
@pytest.mark.parametrize("fraction", [0.3, 1.0])
def test_dense_masks_are_a_fixed_point(regrow, fraction):
    params, mask, scores = random_case(2, 1.1)
    found = EVOLVE[regrow](params, mask, scores, fraction)
    jax.tree.map(np.testing.assert_array_equal, found.masks, mask)
    if regrow != "zero":  # which starts what it drops and grows again from zero
        jax.tree.map(np.testing.assert_array_equal, found.params, params)


@pytest.mark.parametrize("regrow", topology.REGROW)
def test_link_counts_over_hundreds_of_evolutions(regrow):
    """Exact counts, zero off the mask, and new links at zero, whatever score and fraction."""

    def go_on(carry, now):
        params, mask = carry
        step, scores, fraction = now
        moved = masks.apply(jax.tree.map(jnp.add, params, step), mask)
        new = topology.evolution(moved, mask, scores, fraction, regrow=regrow)
        counts = jax.tree.map(lambda m: m.sum(dtype=jnp.int32), new.masks)
        good = jax.tree.map(
            lambda p, m, i, old: (p == jnp.where(i, old, 0)).all() & (m | ~i).all(), *new, moved
        )
        return (new.params, new.masks), (counts, good)

    params, mask, _ = random_case(3, 0.3)
    step, _, scores = random_case(4, 1.1, lead=(400,))
    fractions = np.random.default_rng(5).random(400, np.float32)
    (_, last), (counts, good) = jit(partial(jax.lax.scan, go_on))(
        (params, mask), (step, scores, fractions)
    )
    expected = jax.tree.map(lambda m: np.full(400, int(m.sum())), mask)
    jax.tree.map(np.testing.assert_array_equal, counts, expected)
    assert jax.tree.all(jax.tree.map(lambda g: bool(g.all()), good))
    assert not np.array_equal(last["a"], mask["a"])


def test_scores_that_are_no_numbers_come_last():
    params, mask = {"w": layer([2, 1, 0, 0, 0, 0])}, {"w": layer("110 000")}
    nan, inf = jnp.nan, jnp.inf
    for scores, expected in [
        ([9, nan, nan, nan, 0, nan], "100 010"),
        ([9, nan, nan, nan, nan, nan], "110 000"),
        ([9, 1, 3, 2, -inf, inf], "100 010"),
    ]:
        _, found = topology.evolve(params, mask, {"w": layer(scores)}, 0.5)
        np.testing.assert_array_equal(found["w"], layer(expected))


def test_evolve_vmaps_over_lanes():
    lanes = 5
    cases = random_case(6, 0.5, 4.0, lead=(lanes,))
    fractions = np.linspace(0.0, 1.0, lanes, dtype=np.float32)
    found = jax.device_get(jit(jax.vmap(topology.evolution))(*cases, fractions))
    for i in range(lanes):
        alone = EVOLVE["keep"](*jax.tree.map(lambda x, i=i: x[i], cases), fractions[i])
        lane = jax.tree.map(lambda x, i=i: x[i], found)
        jax.tree.map(np.testing.assert_array_equal, lane, alone)


def test_leaves_that_are_not_sparse_pass_through():
    tree = (layer([1, 2, 3, 4, 5, 6]), {"table": layer([6, 5, 4, 3, 2, 1])})
    mask = jax.tree.map(lambda x: jnp.ones(x.shape, bool), tree)
    sparse = lambda path, leaf: "table" not in jax.tree_util.keystr(path)  # noqa: E731
    (w, rest), _ = topology.evolve(tree, mask, tree, 0.5, regrow="zero", sparse=sparse)
    np.testing.assert_array_equal(w, layer([0, 0, 0, 4, 5, 6]))
    np.testing.assert_array_equal(rest["table"], tree[1]["table"])


@pytest.mark.parametrize(
    ("zeta0", "interval", "t_end", "due"),
    [(0.5, 3, 10, [3, 6, 9]), (0.5, 5, 10, [5]), (0.5, 5, 11, [5, 10]), (0.0, 3, 10, [])],
)
def test_schedule_by_hand(zeta0, interval, t_end, due):
    first = jnp.asarray(0)
    every, last = jnp.asarray(interval), jnp.asarray(t_end)
    schedule = topology.Schedule(jnp.asarray(zeta0), every, last, first, first)
    assert [t for t in range(1, 13) if lane_topology.RIGL.due(schedule, jnp.asarray(t))] == due


def test_drops_by_another_score():
    w, mask = layer([5, 1, 4, 2, 3, 0]), layer([1, 1, 1, 1, 1, 0]) > 0
    keep = layer([1, 9, -8, 7, 2, 0])  # by magnitude: the first and the fifth go
    new, left = topology.evolve(
        {"w": w}, {"w": mask}, {"w": w * 0}, 0.4, keep_scores={"w": keep}, regrow="forbid"
    )
    assert left["w"].sum() == 5  # only one place was free
    np.testing.assert_array_equal(np.asarray(left["w"]).ravel(), [0, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(np.asarray(new["w"]).ravel(), [0, 1, 4, 2, 3, 0])


def test_errors():
    w = {"w": jnp.ones((2, 3))}
    mask = {"w": jnp.ones((2, 3), bool)}
    with pytest.raises(ValueError, match="unknown regrow 'again'"):
        topology.evolve(w, mask, w, 0.5, regrow="again")
    for fraction in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=r"not in \[0, 1\]"):
            topology.evolve(w, mask, w, fraction)
    with pytest.raises(ValueError, match="params and masks must have the same tree"):
        topology.evolve(w, {"v": mask["w"]}, w, 0.5)
    with pytest.raises(ValueError, match=r"grow_scores\['w'\] \(3, 2\)"):
        topology.evolve(w, mask, {"w": jnp.ones((3, 2))}, 0.5)
