"""Sparse training as an optax transformation: around any optimizer, exactly on the mask."""

import warnings
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from lanes import gradient_step
from programs import jit, places

from rlx2_jax.networks import optimize
from rlx2_jax.sparse import masks, topology
from rlx2_jax.sparse.optimizer import sparsify
from rlx2_jax.sparse.state import SparsifyState, masks_of

pytestmark = pytest.mark.fast

INTERVAL, T_END, RATE = 4, 40, 0.1
SHAPES = {"kernel": (6, 7), "bias": (7,)}
PLAN: dict[str, Any] = {"interval": INTERVAL, "t_end": T_END}


def random_tree(seed):
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in SHAPES.items()}


def stepper(tx):
    """One update as a training loop makes it; sparsity and seed are in the state only."""

    @jit
    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return step


def adam(sparsity: float | list[float] = 0.5, **options: Any) -> Any:
    return sparsify(optax.adam(RATE), sparsity, **{**PLAN, **options})


RIGL = stepper(adam())
SET_AFTER = stepper(adam(method="set", mask_step="after"))


def run(tx: Any, updates: int, step: Any = None) -> list[tuple[Any, Any]]:
    """Parameters and states of a training run, from dense parameters on."""
    params = random_tree(0)
    trace = [(params, tx.init(params))]
    step = stepper(tx) if step is None else step
    for count in range(1, updates + 1):
        trace.append(step(*trace[-1], random_tree(count)))
    return trace


def is_on(tree, mask):
    return jax.tree.all(jax.tree.map(lambda x, m: bool(np.all((x == 0) | m)), tree, mask))


def differ(a, b):
    return any(jax.tree.leaves(jax.tree.map(lambda x, y: bool(np.any(x != y)), a, b)))


OPTIMIZERS = {
    "momentum": lambda: optax.sgd(RATE, momentum=0.9, nesterov=True),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(RATE)),
    "adamw": lambda: optax.adamw(
        optax.linear_schedule(RATE, 0.01, 20),
        weight_decay=0.1,
        mask={"kernel": True, "bias": False},
    ),
    "adafactor": lambda: optax.adafactor(RATE, min_dim_size_to_factor=2),
    "two": lambda: optax.multi_transform(
        {"a": optax.adam(RATE), "b": optax.sgd(RATE, momentum=0.9)}, {"kernel": "a", "bias": "b"}
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_exactly_on_the_mask_with_any_optimizer(name):
    """Although the parameters begin dense."""
    trace = run(sparsify(OPTIMIZERS[name](), 0.7, **PLAN), 13)
    first = masks_of(trace[0][1])
    links = masks.live(first)
    assert links == masks.links(SHAPES["kernel"], 0.7)
    assert not is_on(trace[0][0], first)
    for count, (params, state) in enumerate(trace[1:], 1):
        assert is_on(params, masks_of(state))
        assert masks.live(masks_of(state)) == links
        assert int(state.count) == count
        before = trace[count - 1]
        assert differ(masks_of(before[1]), masks_of(state)) == (count % INTERVAL == 0)
        # Newly grown links begin at zero; others keep their value, or move, as the bias does.
        if count % INTERVAL == 0:
            fresh = np.asarray(masks_of(state)["kernel"]) & ~np.asarray(
                masks_of(before[1])["kernel"]
            )
            assert fresh.any() and not np.asarray(params["kernel"])[fresh].any()
        if count > 1:
            assert differ(params["bias"], before[0]["bias"]) == (count % INTERVAL != 0)
    assert np.isfinite(np.asarray(trace[-1][0]["kernel"])).all()


@pytest.mark.parametrize("method", ["rigl", "set"])
def test_equals_optimize_step(method):
    """Adam from the same first mask, update for update; SET with its mask update after a step."""
    after = method == "set"
    step = SET_AFTER if after else RIGL
    state = adam(0.6, seed=5).init(random_tree(0))
    key = jax.random.wrap_key_data(state.key)
    first = masks_of(state)
    params = masks.apply(random_tree(0), first)
    net = optimize.init(params, first)
    plan = topology.Schedule(jnp.float32(0.5), *(jnp.int32(x) for x in (INTERVAL, T_END, after, 0)))
    reference = jit(
        lambda net, grads, count, key: gradient_step(
            net,
            grads,
            jnp.float32(RATE),
            count,
            plan,
            key,
            interval=INTERVAL,
            mask_step="after" if after else "skip",
        )
    )
    for count in range(1, 14):
        grads = random_tree(count)
        params, state = step(params, state, grads)
        net = reference(net, grads, count, jax.random.fold_in(key, count))
        jax.tree.map(np.testing.assert_array_equal, masks_of(state), net.masks)
        moments = state.inner[0]
        for ours, theirs in ((params, net.params), (moments[1:], net.moments[1:])):
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours, theirs
            )
        net = net._replace(params=params)  # rounding must not add up


@pytest.mark.parametrize(
    ("name", "moments"),
    [("adam", "zero"), ("momentum", "zero"), ("adagrad", "zero"), ("adam", "keep")],
)
@pytest.mark.parametrize("mask_step", ["skip", "after"])
def test_moments_of_links_dropped_and_grown(name, moments, mask_step):
    """They return to their initial value, which is not zero in every optimizer."""
    simple = {"adam": optax.adam, "adagrad": optax.adagrad}
    tx = simple[name](RATE) if name in simple else OPTIMIZERS[name]()
    start = 0.1 if name == "adagrad" else 0.0
    trace = run(sparsify(tx, 0.5, moments=moments, mask_step=mask_step, **PLAN), INTERVAL + 1)
    before, state = trace[INTERVAL - 1][1], trace[INTERVAL][1]
    old, new = (np.asarray(masks_of(s)["kernel"]) for s in (before, state))
    assert (old & ~new).any() and (new & ~old).any()
    for then, now in zip(kernels(before.inner), kernels(state.inner), strict=True):
        assert (now[old & new] != start).any()
        assert (now[old != new] != start).any() == (moments == "keep")
        if mask_step == "skip":
            kept = old & new if moments == "zero" else np.ones_like(old)
            np.testing.assert_array_equal(now[kept], then[kept])
    assert is_on(trace[-1][0], masks_of(trace[-1][1]))


def kernels(state):
    """The kernel's entries in an optimizer's state."""
    found = [np.asarray(x) for x in jax.tree.leaves(state) if np.shape(x) == SHAPES["kernel"]]
    assert found
    return found


def test_static_keeps_its_mask():
    trace = run(adam(0.7, method="ss"), 9)
    first = masks_of(trace[0][1])
    assert all(not differ(masks_of(state), first) for _, state in trace)
    assert all(is_on(params, first) for params, _ in trace[1:])
    for other in (adam(0.7, zeta0=0.0), sparsify(optax.adam(RATE), 0.7, method="static")):
        assert not differ(run(other, 9)[-1][0], trace[-1][0])


def test_dense_is_the_optimizer_itself():
    tx = optax.adam(RATE)
    params, state = run(sparsify(tx, 0.9, method="dense"), 6)[-1]
    plain, _ = run(tx, 6)[-1]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), params, plain)
    assert masks.sparsity(masks_of(state)) == 0.0


def test_seeds():
    one, again, other = (run(adam(method="set", seed=seed), 4, SET_AFTER)[-1] for seed in (0, 0, 1))
    assert not differ(one[0], again[0])
    assert differ(masks_of(one[1]), masks_of(other[1]))
    for raw in (jax.random.PRNGKey(1), jnp.int32(1)):  # old keys and arrays serve as well
        assert not differ(
            masks_of(adam(seed=raw).init(one[0])), masks_of(adam(seed=1).init(one[0]))
        )


@pytest.mark.parametrize("method", ["rigl", "set"])
def test_rigl_goes_by_the_gradient_and_set_does_not(method):
    state = adam().init(random_tree(0))._replace(count=jnp.int32(INTERVAL - 1))
    old = np.asarray(masks_of(state)["kernel"])
    ranks = np.arange(10, 52, dtype=np.float32).reshape(6, 7)
    outcomes = []
    for ranking in (ranks, -ranks[::-1]):  # outside the mask far larger than on it
        grads = random_tree(1) | {"kernel": np.where(old, np.float32(1e-3), ranking)}
        step = RIGL if method == "rigl" else SET_AFTER
        _, new = step(random_tree(0), state, grads)
        grown = np.asarray(masks_of(new)["kernel"]) & ~old
        outcomes.append(grown)
        best = np.sort(np.abs(ranking[~old]))[::-1][: grown.sum()]
        assert (set(best) == set(np.abs(ranking[grown]))) == (method == "rigl")
    assert differ(*outcomes) == (method == "rigl")


def test_nothing_evolves_from_t_end_on():
    """After that, the optimizer takes every step and the mask stays."""
    params, state = run(adam(), 1, RIGL)[-1]
    for count in range(T_END - 5, T_END + 10):
        before = state._replace(count=jnp.int32(count - 1))
        params, state = RIGL(params, before, random_tree(count))
        steps = int(state.inner[0].count) - int(before.inner[0].count)
        assert steps == (0 if count == T_END - INTERVAL else 1)
        assert count < T_END or not differ(masks_of(before), masks_of(state))


def test_any_tree():
    """Flax's, one named as Haiku does, lists, tuples, scalars, and empty modules."""
    shapes = jax.eval_shape(nn.Dense(7).init, jax.random.key(0), jnp.ones((1, 6)))
    rng = np.random.default_rng(0)
    params = (
        jax.tree.map(lambda s: rng.standard_normal(s.shape).astype(s.dtype), shapes),
        {"mlp/~/linear_0": {"w": random_tree(1)["kernel"], "b": np.ones(7, np.float32)}},
        [{}, np.ones((), np.float32)],
    )
    tx = adam(interval=1)
    step = stepper(tx)
    new, state = step(params, jit(tx.init)(params), params)
    assert jax.tree.structure(new) == jax.tree.structure(params)
    assert is_on(new, masks_of(state))
    assert masks.live(masks_of(state)) == 42
    assert np.shape(cast(Any, nn.Dense(7).apply(new[0], jnp.ones((3, 6))))) == (3, 7)


def test_a_choice_of_leaves_also_holds_for_evolution():
    """A table that is not sparse is unchanged, even if dropped links restart from zero."""
    params = {"kernel": random_tree(0)["kernel"], "table": random_tree(1)["kernel"]}
    tx = sparsify(
        optax.sgd(RATE),
        0.5,
        interval=1,
        t_end=10,
        regrow="zero",
        sparse=lambda path, leaf: "table" not in jax.tree_util.keystr(path),
    )
    new, state = stepper(tx)(params, tx.init(params), params)
    np.testing.assert_array_equal(new["table"], params["table"])
    assert masks_of(state)["table"].all()
    assert masks.live({"kernel": masks_of(state)["kernel"]}) == 21


def test_in_a_chain_and_in_half_precision():
    tx = optax.chain(optax.clip(1.0), adam(interval=2))
    half = lambda tree: jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree)  # noqa: E731
    params = half(random_tree(0))
    state = jit(tx.init)(params)
    step = stepper(tx)
    for count in (1, 2, 3):
        params, state = step(params, state, half(random_tree(count)))
        assert is_on(params, masks_of(state))
        assert params["kernel"].dtype == jnp.bfloat16


def test_optax_can_map_over_its_state():
    tx = adam()
    state = tx.init(random_tree(0))
    found: Any = optax.tree.map_params(tx, lambda x: np.shape(x), state)
    assert found.inner[0].mu == found.codes == SHAPES


def train(method, seed):
    """A layer of 90% sparsity on y = x W, where W has few links of its own: loss, mask, weight."""
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((20, 10)) * (rng.random((20, 10)) < 0.08)
    x = rng.standard_normal((64, 20)).astype(np.float32)
    y = (x @ truth).astype(np.float32)
    tx = sparsify(optax.adam(0.05), 0.9, method=method, interval=10, t_end=240, seed=seed)

    def loss(params: Any) -> Any:
        return jnp.mean((x @ params["w"] - y) ** 2)

    def go_on(carry: Any, _: None) -> tuple[Any, None]:
        params, state = carry
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return (optax.apply_updates(params, updates), state), None

    params = {"w": jnp.zeros((20, 10))}
    (params, state), _ = jax.lax.scan(go_on, (params, tx.init(params)), None, length=300)
    return loss(params), masks_of(state)["w"], params["w"]


def test_an_evolving_topology_beats_a_static_one():
    """Four seeds, vmapped."""
    keys = jax.random.split(jax.random.key(0), 4)
    trained: dict[str, Any] = {
        method: jax.device_get(jit(jax.vmap(lambda k, m=method: train(m, k)))(keys))
        for method in ("rigl", "ss")
    }
    for _, mask, weight in trained.values():
        assert (mask.sum((1, 2)) == 20).all() and not weight[~mask].any()
    (rigl, *_), (static, mask, weight) = trained["rigl"], trained["ss"]
    assert static.min() > 0.2
    assert rigl.max() < 0.1 * static.min()
    assert differ(mask[0], mask[1])
    alone = sparsify(optax.adam(RATE), 0.9, method="ss", seed=keys[2])
    np.testing.assert_array_equal(mask[2], masks_of(alone.init({"w": weight[2]}))["w"])


def test_lanes_keep_a_real_branch():
    """With the count outside of the lanes, links are chosen inside a conditional only; where the
    lanes have counts of their own, in a loop that runs when any lane is due."""
    tx = adam()
    lanes = jax.tree.map(lambda *x: np.stack(x), *(random_tree(i) for i in range(3)))
    axes: Any = SparsifyState(0, 0, None, 0, 0, 0)  # pyright: ignore[reportArgumentType]
    state: Any = jit(jax.vmap(tx.init, out_axes=axes))(lanes)
    update = jax.vmap(tx.update, in_axes=(0, axes, 0), out_axes=(0, axes))
    choosing = ("sort", "top_k", "cumsum", "scan", "while")
    assert places(update, lanes, state, lanes, names=choosing) == {True}
    update = jax.vmap(tx.update)
    first = state.masks
    state = state._replace(count=jnp.int32([0, INTERVAL - 1, 0]))
    updates, state = jit(update)(lanes, state, lanes)
    assert is_on(optax.apply_updates(lanes, updates), state.masks)
    changed = (np.asarray(state.masks["kernel"]) != first["kernel"]).any(axis=(1, 2))
    assert changed.tolist() == [False, True, False]


BAD = [
    ({"sparsity": 1.0}, r"sparsity 1.0 is not in \[0, 1\)"),
    ({"sparsity": float("nan")}, r"not in \[0, 1\)"),
    ({"sparsity": [0.5, -1.0]}, r"not in \[0, 1\)"),
    ({"method": "tiny"}, "method='tiny': use one of"),
    ({"interval": 0}, "interval=0: give an integer of at least 1"),
    ({"interval": 2.5}, "interval=2.5"),
    ({"interval": None}, "interval=None"),
    ({"interval": True}, "interval=True"),
    ({"t_end": None}, "t_end=None: give an integer"),
    ({"zeta0": 1.5}, r"zeta0=1.5: use a fraction in \[0, 1\]"),
    ({"zeta0": float("nan")}, "zeta0=nan"),
    ({"distribution": "er"}, "distribution='er': use one of"),
    ({"init": "best"}, "init='best': use one of"),
    ({"regrow": "never"}, "regrow='never': use one of"),
    ({"moments": "reset"}, "moments='reset': use one of"),
    ({"mask_step": "before"}, "mask_step='before': use one of"),
    ({"tx": 0.1}, "tx=0.1 is not an optax transformation"),
    ({"stacked": "1"}, "stacked='1': give a number of leading axes"),
    ({"stacked": {"a": -1}}, "give a number of leading axes"),
    ({"seed": 1.5}, "seed=1.5: give an integer or one key"),
    ({"seed": "a"}, "seed='a': give an integer"),
    ({"seed": jax.random.split(jax.random.key(0))}, "vmap over several"),
]


@pytest.mark.parametrize(("given", "message"), BAD)
def test_bad_options(given, message):
    options = {"tx": optax.adam(RATE), "sparsity": 0.5, **PLAN} | given
    with pytest.raises(ValueError, match=message):
        sparsify(**options)


def test_settings_that_never_take_effect_are_warned_about():
    """Once, at the line that calls `sparsify` or `init`."""
    calls = [
        ("rigl never updates its masks: interval=40 is not below t_end=40", {"interval": T_END}),
        ("rigl never moves a link: zeta0=0.04 of 21 links is less than one", {"zeta0": 0.04}),
        (
            "srigl never moves a link: zeta0=0.3 of 3 links",
            {"method": "srigl", "zeta0": 0.3},
        ),
    ]
    for message, options in calls:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("default")
            for _ in range(2):
                adam(**options).init(random_tree(0))
        assert [str(w.message)[: len(message)] for w in found] == [message]
        assert found[0].filename == __file__


def test_traced_settings_are_single_numbers():
    for name in ("interval", "t_end", "zeta0", "sparsity"):
        with pytest.raises(ValueError, match=rf"{name} of shape \(2,\): give one number, or vmap"):
            jit(lambda x, name=name: adam(**{name: x}).init(random_tree(0)))(jnp.ones(2))


def test_bad_calls():
    tx = adam()
    params = random_tree(0)
    state = tx.init(params)
    with pytest.raises(ValueError, match="needs the parameters"):
        tx.update(params, state)
    with pytest.raises(ValueError, match="params and grads must have the same tree"):
        tx.update({"kernel": params["kernel"]}, state, params)
    with pytest.raises(ValueError, match="params and masks must have the same tree"):
        tx.update({"w": 0.0}, state, {"w": 0.0})
    with pytest.raises(ValueError, match="2 sparsities for 1 layers"):
        adam([0.5, 0.5]).init(params)
    with pytest.raises(ValueError, match=r"stacked: pattern 'q\*' is the first match of no"):
        adam(stacked={"q*": 1}).init(params)
    with pytest.raises(ValueError, match=r"layouts: pattern 'q\*' is the first match of no"):
        adam(layouts={"q*": "io"}).init(params)
    with pytest.raises(ValueError, match="without the axes of stacked=1"):
        adam(stacked=1).init(params)
    with pytest.raises(ValueError, match="every layer needs one"):
        adam(0.99).init(params)
    with pytest.raises(ValueError, match="no leaf of params is sparse"):
        adam().init({"bias": params["bias"]})
    with pytest.raises(ValueError, match=r"those float arrays .* that match \['bias'\]"):
        sparsify(optax.adam(RATE), {"bias": 0.5}, **PLAN).init(params)
    shapes = jax.eval_shape(lambda: params)
    with pytest.raises(ValueError, match=r"use jax\.eval_shape\(tx\.init, params\)"):
        tx.init(shapes)
    assert jax.eval_shape(tx.init, shapes).codes["kernel"].shape == SHAPES["kernel"]
    with pytest.raises(ValueError, match="holds 0 states of sparsify"):
        masks_of(optax.adam(RATE).init(params))
