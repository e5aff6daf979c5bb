"""A network's step: Adam on live links, or drop and grow with the state of links."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from lanes import gradient_step
from programs import jit, places, unconditional

from rlx2_jax.networks import optimize
from rlx2_jax.sparse import masks, topology
from rlx2_jax.types import Network

pytestmark = pytest.mark.fast

SHAPES = {"l0": {"kernel": (6, 7), "bias": (7,)}}
RATE, INTERVAL, T_END = jnp.float32(0.1), 4, 100
OPTIONS = ("interval", "mask_step", "moments", "regrow", "remask_target")
STEP = jit(gradient_step, static_argnames=OPTIONS)
EVOLUTION = jit(topology.evolution)
ADAM = jit(optax.adam(float(RATE)).update)
# Operations that select links, by sorting or by bisection.
CHOOSING = ("sort", "top_k", "cumsum", "scan", "while", "approx_top_k")


def is_shape(x):
    return isinstance(x, tuple)


def random_tree(seed, lead=()):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda s: rng.standard_normal((*lead, *s)).astype(np.float32), SHAPES, is_leaf=is_shape
    )


def network(seed=0, density=0.5):
    rng = np.random.default_rng(seed)
    draw = lambda s: rng.random(s) < (density if len(s) > 1 else 2)  # noqa: E731
    mask = jax.tree.map(draw, SHAPES, is_leaf=is_shape)
    params, target = (
        jax.tree.map(lambda p, m: np.where(m, p, np.float32(0)), random_tree(seed + i), mask)
        for i in (1, 2)
    )
    return optimize.init(params, mask, target=target)


def schedule(zeta0=0.5, interval=INTERVAL, t_end=T_END, grow=0, drop=0):
    return topology.Schedule(
        jnp.float32(zeta0), *(jnp.int32(x) for x in (interval, t_end, grow, drop))
    )


def step(net, grads, count, plan=None, key=0, **options):
    plan = schedule() if plan is None else plan
    options = {"interval": INTERVAL, **options}
    return STEP(net, grads, RATE, count, plan, jax.random.key(key), **options)


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def assert_close(a, b):
    """Equal up to rounding (two programs may fuse a product and a sum, or not); equal masks."""
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-7), a, b)


def is_on_mask(tree, mask):
    return jax.tree.all(jax.tree.map(lambda x, m: bool(np.all((x == 0) | m)), tree, mask))


def warmed(updates=3):
    """A network with moments everywhere on its mask."""
    net = network()
    for count in range(1, updates + 1):
        net = step(net, random_tree(10 + count), count)
    return net


@pytest.fixture(scope="module")
def warm():
    return warmed()


def test_an_ordinary_update_is_masked_adam():
    net, reference = network(), optax.adam(float(RATE))
    params, state = net.params, reference.init(net.params)
    for count in (1, 2, 3):
        grads = random_tree(10 + count)
        net = step(net, grads, count)
        masked = masks.apply(grads, net.masks)
        updates, state = ADAM(masked, state)
        params = optax.apply_updates(params, updates)
    assert_close(net.params, params)
    assert_equal(net.masks, network().masks)
    assert int(net.moments.count) == 3


def test_a_mask_update_in_detail(warm):
    grads = random_tree(20)
    new = step(warm, grads, INTERVAL)
    fraction = topology.update_fraction(INTERVAL, 0.5, T_END)
    expected = EVOLUTION(warm.params, warm.masks, grads, fraction)
    assert_equal(new.params, expected.params)
    assert_equal(new.masks, expected.masks)
    assert int(new.moments.count) == int(warm.moments.count)  # no optimizer step
    for name in SHAPES:
        old_mask, new_mask = (np.asarray(n.masks[name]["kernel"]) for n in (warm, new))
        fresh, gone, stays = new_mask & ~old_mask, old_mask & ~new_mask, new_mask & old_mask
        assert fresh.sum() == gone.sum()
        trees = {
            "params": (warm.params, new.params),
            "target": (warm.target, new.target),
            "mu": (warm.moments.mu, new.moments.mu),
            "nu": (warm.moments.nu, new.moments.nu),
        }
        for before, after in trees.values():
            before, after = (np.asarray(t[name]["kernel"]) for t in (before, after))
            assert not after[fresh].any() and not after[gone].any()
            np.testing.assert_array_equal(after[stays], before[stays])
    assert any(
        (np.asarray(new.masks[n]["kernel"]) != warm.masks[n]["kernel"]).any() for n in SHAPES
    )


def test_moments_kept_and_no_target(warm):
    grads = random_tree(20)
    zeroed = step(warm, grads, INTERVAL)
    kept = step(warm._replace(target=None), grads, INTERVAL, moments="keep")
    assert kept.target is None
    assert_equal(kept.masks, zeroed.masks)
    assert_equal(kept.params, zeroed.params)
    assert_equal(kept.moments, warm.moments)
    assert not is_on_mask(kept.moments.mu, kept.masks)
    after = step(kept, random_tree(22), INTERVAL + 1, moments="keep")
    assert is_on_mask(after.params, after.masks)  # although a dead link still has momentum


@pytest.mark.parametrize("regrow", ["keep", "zero", "forbid"])
def test_regrow_is_passed_on(warm, regrow):
    """Where live links have the largest scores, dropped ones grow again if they may."""
    grads = jax.tree.map(lambda m: np.where(m, np.float32(9), np.float32(1)), warm.masks)
    new = step(warm, grads, INTERVAL, regrow=regrow)
    old_mask, mask = (np.asarray(n.masks["l0"]["kernel"]) for n in (warm, new))
    k = int(topology.links_to_move(old_mask.sum(), topology.update_fraction(INTERVAL, 0.5, T_END)))
    assert 0 < k < old_mask.sum() / 2
    assert (old_mask & ~mask).sum() == (k if regrow == "forbid" else 0)
    inherited = old_mask.sum() - (0 if regrow == "keep" else k)
    for tree in (new.params, new.target, new.moments.mu, new.moments.nu):
        assert (np.asarray(tree["l0"]["kernel"]) != 0).sum() == inherited


def test_mask_step_after_is_a_step_then_an_evolution(warm):
    grads = random_tree(20)
    new = step(warm, grads, INTERVAL, mask_step="after")
    stepped = step(warm, grads, 1)
    fraction = topology.update_fraction(INTERVAL, 0.5, T_END)
    expected = EVOLUTION(stepped.params, stepped.masks, grads, fraction)
    assert_equal(new.masks, expected.masks)
    assert_close(new.params, expected.params)
    assert int(new.moments.count) == int(warm.moments.count) + 1
    assert is_on_mask(new.moments.mu, new.masks)


def test_leaked_gradients_and_a_target_that_waits_for_its_polyak_step(warm):
    grads, leak = random_tree(20), random_tree(21)
    new = step(warm, grads, INTERVAL, leak=leak, remask_target=False)
    both = jax.tree.map(np.add, grads, leak)
    assert_equal(new.masks, step(warm, both, INTERVAL).masks)  # growth goes by the sum
    assert_equal(new.target, warm.target)
    assert not is_on_mask(new.target, new.masks)
    assert is_on_mask(optimize.polyak(new, jnp.float32(0.1)).target, new.masks)


def test_polyak_by_hand():
    net = Network(
        params={"w": jnp.asarray([[1.0, 2.0]])},
        masks={"w": jnp.asarray([[True, False]])},
        moments=None,
        target={"w": jnp.asarray([[3.0, 5.0]])},
    )
    new = optimize.polyak(net, jnp.float32(0.25))
    assert_equal(new, net._replace(target={"w": np.asarray([[2.5, 0.0]], np.float32)}))


@pytest.mark.parametrize("count", [3, 5, 104, 100])
def test_when_no_mask_update_is_due_adam_steps(warm, count):
    """Between intervals, at T_end and after it."""
    grads = random_tree(20)
    new = step(warm, grads, count)
    assert_equal(new.masks, warm.masks)
    assert_close(new, step(warm, grads, 1))


def test_static_never_changes(warm):
    for count in (INTERVAL, 2 * INTERVAL):
        new = step(warm, random_tree(20), count, schedule(zeta0=0.0))
        assert_equal(new.masks, warm.masks)
        assert_close(new, step(warm, random_tree(20), 1))


def test_set_grows_at_random_and_never_by_gradient(warm):
    plan = schedule(grow=1)
    new, again, other = (
        step(warm, random_tree(seed), INTERVAL, plan, key)
        for seed, key in ((20, 0), (21, 0), (20, 1))
    )
    assert_equal(new.masks, again.masks)  # another gradient, the same key
    assert_equal(new, step(warm, random_tree(20), INTERVAL, plan, 0))
    different = jax.tree.map(lambda a, b: bool((a != b).any()), new.masks, other.masks)
    assert any(jax.tree.leaves(different))
    # What is dropped does not depend on chance: the smallest links.
    for name in SHAPES:
        weight, mask = (np.asarray(t[name]["kernel"]) for t in (warm.params, warm.masks))
        kept = (
            np.asarray(new.masks[name]["kernel"]) & np.asarray(other.masks[name]["kernel"]) & mask
        )
        count = int(mask.sum() - np.floor(mask.sum() * 0.5 * 0.5 * (1 + np.cos(np.pi * 0.04))))
        largest = np.sort(np.abs(weight[mask]))[::-1][:count]
        assert np.isin(largest, np.abs(weight[kept])).all()


@jit
def many_updates(net, plan, grads):
    """Updates with all gradients in turn; whether all is zero off the mask, and link counts."""

    def go_on(net, now):
        count, grads = now
        key = jax.random.fold_in(jax.random.key(0), count)
        net = gradient_step(net, grads, RATE, count, plan, key, interval=5)
        net = optimize.polyak(net, jnp.float32(0.05))
        off = lambda tree: jax.tree.map(  # noqa: E731
            lambda x, m: (jnp.where(m, 0.0, x) == 0.0).all(), tree, net.masks
        )
        good = [off(t) for t in (net.params, net.target, net.moments.mu, net.moments.nu)]
        return net, (good, jax.tree.map(lambda m: m.sum(dtype=jnp.int32), net.masks))

    return jax.lax.scan(go_on, net, (jnp.arange(1, 301), grads))


@pytest.mark.parametrize("random", [False, True])
def test_exactly_zero_off_the_mask_after_many_updates(random):
    """Default options, 300 updates, 57 mask updates: parameters, moments, targets, counts."""
    net, plan = network(3, 0.4), schedule(t_end=290, interval=5, grow=int(random))
    last, (good, links) = many_updates(net, plan, random_tree(4, (300,)))
    assert jax.tree.all(jax.tree.map(lambda g: bool(g.all()), good))
    assert_equal(links, jax.tree.map(lambda m: np.full(300, int(m.sum())), net.masks))
    assert (np.asarray(last.masks["l0"]["kernel"]) != net.masks["l0"]["kernel"]).any()
    assert jax.tree.all(jax.tree.map(lambda x: bool(np.isfinite(x).all()), last))


LANES = [
    # zeta0, own interval, T_end, random growth: rigl, set, static, slower, ended early, all at once
    (0.5, 4, 100, False), (0.5, 4, 100, True), (0.0, 4, 100, False), (0.3, 8, 100, False),
    (0.5, 4, 6, False), (1.0, 12, 100, True), (0.9, 4, 50, True), (0.5, 8, 14, False),
]  # fmt: skip


def one_lane(net, grads, count, plan, key):
    return gradient_step(net, grads, RATE, count, plan, key, interval=4)


RUN = jax.vmap(one_lane, in_axes=(0, 0, None, 0, 0))


def lane(tree, i):
    return jax.tree.map(lambda x: x[i], tree)


def lane_arguments():
    """Eight lanes with different schedules and one shared count."""
    nets = jax.tree.map(lambda *x: np.stack(x), *(network(seed, 0.5) for seed in range(8)))
    plans = jax.tree.map(lambda *x: np.stack(x), *(schedule(*lane) for lane in LANES))
    keys = jax.random.split(jax.random.key(7), 8)
    return nets, random_tree(30, (8,)), np.int32(4), plans, keys


@pytest.fixture(scope="module")
def program():
    """The compiled program of the eight lanes; what it returns is on the host."""
    return jit(RUN).lower(*lane_arguments()).compile()


def test_lanes_share_a_program_and_equal_lanes_alone(program):
    nets, _, _, plans, keys = lane_arguments()
    start, order = nets, np.asarray([5, 2, 7, 0, 1, 4, 6, 3])
    mixed = lane((nets, plans, keys), order)
    for count in range(1, 17):
        grads, before = random_tree(40 + count, (8,)), nets
        nets = jax.device_get(program(before, grads, np.int32(count), plans, keys))
        # Nothing depends on a lane's place or neighbours, to the last bit.
        moved = program(mixed[0], lane(grads, order), np.int32(count), *mixed[1:])
        mixed = (jax.device_get(moved), *mixed[1:])
        assert_equal(mixed[0], lane(nets, order))
        for i in range(8) if count % 4 == 0 or count == 1 else ():
            own = lane((before, grads, plans), i)
            alone = STEP(own[0], own[1], RATE, count, own[2], keys[i], interval=4)
            assert_equal(lane(nets.masks, i), alone.masks)
            assert_close(lane(nets, i), alone)
    changed = (start.masks["l0"]["kernel"] != nets.masks["l0"]["kernel"]).any((1, 2))
    assert changed.tolist() == [
        zeta0 > 0 and t_end > interval for zeta0, interval, t_end, _ in LANES
    ]


def test_a_lane_that_is_not_due_takes_its_adam_step(program):
    args = lane_arguments()
    new = jax.device_get(program(*args))  # update 4: lanes of interval 8 and 12 are not due
    due = [zeta0 > 0 and interval == 4 for zeta0, interval, *_ in LANES]
    assert np.asarray(new.moments.count).tolist() == [0 if d else 1 for d in due]
    for i in range(8):
        net, grads, plan = lane((args[0], args[1], args[3]), i)
        if not due[i]:
            plain = STEP(net, grads, RATE, 1, plan, args[4][i], interval=4)
            assert_equal(lane(new.masks, i), net.masks)
            assert_close(lane(new, i), plain)


def test_links_are_chosen_only_inside_a_real_conditional(program):
    args = lane_arguments()
    assert places(RUN, *args, names=CHOOSING) == {True}
    compiled = program.as_text()
    always = unconditional(compiled)
    assert len(re.findall(r" while\(", always)) == 1 and len(always) < len(compiled) / 2
    for name in (" sort(", "topk", "TopK", " reduce-window("):
        assert name not in always
    # A count that is of a lane would turn the branch into a selection between both outcomes.
    args = (*args[:2], np.full(8, 4), *args[3:])
    assert False in places(jax.vmap(one_lane), *args, names=CHOOSING)


def test_errors(warm):
    with pytest.raises(ValueError, match=r"mask_step='before'.*use one of"):
        step(warm, random_tree(0), 1, mask_step="before")
    with pytest.raises(ValueError, match=r"moments='reset'.*use one of"):
        step(warm, random_tree(0), 1, moments="reset")
    with pytest.raises(ValueError, match="regrow='maybe': use one of"):
        step(warm, random_tree(0), 1, regrow="maybe")
    with pytest.raises(ValueError, match="interval=0"):
        step(warm, random_tree(0), 1, interval=0)
    with pytest.raises(ValueError, match="tree"):
        step(warm._replace(masks={"l1": warm.masks["l0"]}), random_tree(0), 1)
