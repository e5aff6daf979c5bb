"""The state of `sparsify`: masks, sparsity, summary, serialization."""

from typing import Any

import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from programs import jit

import rlx2_jax as rlx2
from rlx2_jax.sparse import masks

pytestmark = pytest.mark.fast
PARAMS = {"a": {"kernel": jnp.ones((20, 10)), "bias": jnp.ones(10)}, "log_alpha": jnp.ones(())}
RIGL: Any = rlx2.sparsify(optax.adam(0.1), 0.9, interval=2, t_end=10)


def step(tx: Any, params: Any, state: Any, **extra: Any) -> tuple[Any, Any]:
    grads = jax.tree.map(
        lambda x: jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape), params
    )
    updates, state = tx.update(grads, state, params, **extra)
    return optax.apply_updates(params, updates), state


def test_targets_and_averages_are_masked():
    state = RIGL.init(PARAMS)
    target = jit(rlx2.mask)(PARAMS, state)
    np.testing.assert_array_equal(target["a"]["kernel"], rlx2.masks_of(state)["a"]["kernel"])
    assert float(target["log_alpha"]) == 1 and (target["a"]["bias"] == 1).all()
    partial = rlx2.mask({"a": {"kernel": PARAMS["a"]["kernel"]}}, state)
    assert int(partial["a"]["kernel"].sum()) == 20
    both = rlx2.mask(optax.LookaheadParams.init_synced(PARAMS), state)
    assert int(both.slow["a"]["kernel"].sum()) == 20
    with pytest.raises(ValueError, match="no leaf of params has a mask"):
        rlx2.mask({"b": jnp.ones(3)}, state)
    with pytest.raises(ValueError, match=r"a/kernel has shape \(2,\), its mask \(20, 10\)"):
        rlx2.mask({"a": {"kernel": jnp.ones(2)}}, state)


def test_sparsity_and_counts_under_jit():
    state = RIGL.init(PARAMS)
    assert rlx2.sparsity(state) == pytest.approx(0.9)
    assert float(jit(rlx2.sparsity)(state)) == pytest.approx(0.9)
    tree = rlx2.masks_of(state)
    assert int(jit(masks.live)(tree)) == masks.live(tree) == 20
    assert float(jit(masks.sparsity)(tree)) == pytest.approx(0.9)
    lanes = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), PARAMS)
    assert rlx2.sparsity(jax.vmap(RIGL.init)(lanes)) == pytest.approx(0.9)


def test_summary():
    found = rlx2.summary(PARAMS, RIGL.init(PARAMS))
    kernel = next(row for row in found.rows if row.layer == "a/kernel")
    assert kernel == ("a/kernel", (20, 10), 20, 0.1, 20 * 39 / 20, True)
    text = str(found).splitlines()
    assert text[0].split() == ["layer", "shape", "links", "density", "FLOPs"]
    assert text[-1].startswith("sparse leaves: float arrays of two or more axes")
    assert "log_alpha" in text[3] and "dense" in text[3]
    custom = rlx2.sparsify(optax.sgd(0.1), 0.5, method="static", sparse="a/*").init(
        {"a": {"table": jnp.ones((4, 4))}}
    )
    shown = str(rlx2.summary({"a": {"table": jnp.ones((4, 4))}}, custom))
    assert "as given to sparsify" in shown and "0.5000" in shown
    with pytest.raises(ValueError, match="summary needs concrete arrays"):
        jit(lambda state: rlx2.summary(PARAMS, state).rows[0].links)(RIGL.init(PARAMS))


def test_in_other_transformations():
    only = optax.multi_transform(
        {"s": RIGL, "d": optax.sgd(0.1)}, {"a": {"kernel": "s", "bias": "d"}, "log_alpha": "d"}
    )
    for tx in (optax.MultiSteps(RIGL, 2), only, optax.apply_if_finite(RIGL, 3)):
        params, state = PARAMS, tx.init(PARAMS)
        for _ in range(2):
            params, state = step(tx, params, state)
        assert rlx2.sparsity(state) == pytest.approx(0.9)
        assert int((params["a"]["kernel"] != 0).sum()) <= 20
        assert int((rlx2.mask(PARAMS, state)["a"]["kernel"]).sum()) == 20


LATER = {
    "chain": optax.chain(RIGL, optax.scale(0.5)),
    "named": optax.named_chain(("sparse", RIGL), ("half", optax.scale(0.5))),
    "inner": optax.chain(optax.chain(RIGL), optax.add_decayed_weights(0.1)),
    "skipping": optax.conditionally_transform(RIGL, lambda step, **_: jnp.equal(step, 0)),
    "free": optax.contrib.schedule_free(RIGL, learning_rate=0.1),
}


@pytest.mark.parametrize("name", LATER)
def test_transformations_that_would_leave_the_mask_are_refused(name):
    tx = LATER[name]
    with pytest.raises(ValueError, match="would change sparsify's updates and leave"):
        jit(lambda p, s: step(tx, p, s))(PARAMS, tx.init(PARAMS))


def test_lookahead():
    """Refused around `sparsify`, unless parameters are masked after every update."""
    params: Any = optax.LookaheadParams.init_synced(PARAMS)
    tx = optax.lookahead(RIGL, sync_period=2, slow_step_size=0.5)
    with pytest.raises(ValueError, match="lookahead would change"):
        tx.update(PARAMS, tx.init(params), params)
    own: Any = rlx2.sparsify(optax.adam(0.1), 0.9, interval=2, t_end=10, outermost=False)
    tx = optax.lookahead(own, sync_period=2, slow_step_size=0.5)
    state = tx.init(params)
    for _ in range(3):
        updates, state = tx.update(PARAMS, state, params)
        params = rlx2.mask(optax.apply_updates(params, updates), state)
        for tree in params:
            off = ~np.asarray(rlx2.masks_of(state)["a"]["kernel"])
            assert not np.asarray(tree["a"]["kernel"])[off].any()


def test_last_in_a_chain_is_allowed():
    tx = optax.chain(optax.clip(0.5), optax.chain(optax.zero_nans(), RIGL))
    params, state = step(tx, PARAMS, tx.init(PARAMS))
    assert int((params["a"]["kernel"] != 0).sum()) == 20 and rlx2.sparsity(state) > 0.89


def test_state_is_plain_arrays():
    """Serializable, and no buffer is shared: with the caller's key, or between two states."""
    key = jax.random.key(3)
    tx: Any = rlx2.sparsify(optax.adam(0.1), 0.9, interval=2, t_end=10, seed=key, method="snfs")
    one, two = tx.init(PARAMS), tx.init(PARAMS)
    arrays = jax.tree.map(np.asarray, one)
    restored = flax.serialization.from_bytes(two, flax.serialization.to_bytes(one))
    jax.tree.map(np.testing.assert_array_equal, restored, arrays)
    pointers = [x.unsafe_buffer_pointer() for x in jax.tree.leaves((one, two, PARAMS))]
    assert len(set(pointers)) == len(pointers)
    donated = jax.jit(lambda p, s: step(tx, p, s), donate_argnums=1)
    donated(PARAMS, one)
    donated(PARAMS, two)
    assert jax.random.key_data(key).shape == (2,)  # the caller's key is still there


def test_train_state_and_nnx_optimizer():
    params = nn.Dense(8).init(jax.random.key(0), jnp.ones((1, 16)))["params"]
    state: Any = TrainState.create(apply_fn=nn.Dense(8).apply, params=params, tx=RIGL)
    for _ in range(3):
        state = state.apply_gradients(grads=params)
    assert int(np.count_nonzero(state.params["kernel"])) <= 13 == masks.live(rlx2.masks_of(state))
    model = nnx.Linear(16, 8, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, RIGL, wrt=nnx.Param)
    train = nnx.jit(lambda m, o: o.update(m, nnx.grad(lambda m: m(jnp.ones((1, 16))).sum())(m)))
    for _ in range(3):
        train(model, optimizer)
    live = int(np.count_nonzero(model.kernel[...]))
    assert 0 < live <= 13
    target = rlx2.mask(
        nnx.state(nnx.Linear(16, 8, rngs=nnx.Rngs(1)), nnx.Param), optimizer.opt_state
    )
    assert int((target["kernel"][...] != 0).sum()) == 13
    assert "kernel" in str(rlx2.summary(nnx.state(model, nnx.Param), optimizer.opt_state))


def test_unusual_trees():
    empty = RIGL.init({})
    assert RIGL.update({}, empty, {})[0] == {} and rlx2.sparsity(empty) == 0.0
    with pytest.raises(ValueError, match=r"no leaf of params is sparse: log_alpha \(\)"):
        RIGL.init({"log_alpha": jnp.zeros(())})
    with pytest.raises(ValueError, match=r"put sparsify around optax\.flatten"):
        optax.flatten(RIGL).init(PARAMS)
    mixed = {**PARAMS, "steps": jnp.zeros((3, 3), jnp.int32)}
    params, state = mixed, RIGL.init(mixed)
    params, state = step(RIGL, params, state)
    assert params["steps"].dtype == jnp.int32 and rlx2.sparsity(state) == pytest.approx(0.9)


def test_flatten_inside():
    with pytest.raises(ValueError, match="moments='keep'"):
        rlx2.sparsify(optax.flatten(optax.adam(0.1)), 0.9, interval=2, t_end=9).init(PARAMS)
    flat = optax.flatten(optax.adam(0.1))
    tx: Any = rlx2.sparsify(flat, 0.9, interval=2, t_end=9, moments="keep")
    params, state = PARAMS, tx.init(PARAMS)
    for _ in range(3):
        params, state = step(tx, params, state)
    assert not np.asarray(params["a"]["kernel"])[~np.asarray(state.masks["a"]["kernel"])].any()


def test_lbfgs():
    """Its line search sees the masked problem."""
    x = jnp.sin(jnp.arange(200.0)).reshape(10, 20)

    def loss(p):
        return jnp.mean((x @ p["a"]["kernel"] + p["a"]["bias"][None]) ** 2) + p["log_alpha"] ** 2

    tx: Any = rlx2.sparsify(optax.lbfgs(), 0.9, interval=4, t_end=20)

    @jit
    def train(params, state):
        value, grads = jax.value_and_grad(loss)(params)
        updates, state = tx.update(grads, state, params, value=value, grad=grads, value_fn=loss)
        return optax.apply_updates(params, updates), state

    state = tx.init(PARAMS)
    params = rlx2.mask(PARAMS, state)
    before = float(loss(params))
    for _ in range(8):
        params, state = train(params, state)
        assert not np.asarray(params["a"]["kernel"])[~np.asarray(state.masks["a"]["kernel"])].any()
    assert float(loss(params)) < 0.1 * before


def test_default_masks_differ():
    """Of runs, and of networks of one shape; but not from one call to the next."""
    make = lambda key: {"kernel": jax.random.normal(key, (20, 10))}  # noqa: E731
    keys = jax.random.split(jax.random.key(0), 3)
    found = jax.vmap(lambda k: RIGL.init(make(k)).masks["kernel"])(keys)
    assert not (found[0] == found[1]).all() and not (found[1] == found[2]).all()
    np.testing.assert_array_equal(found[1], RIGL.init(make(keys[1])).masks["kernel"])
    zeros = {"actor": {"kernel": jnp.zeros((20, 10))}}, {"critic": {"kernel": jnp.zeros((20, 10))}}
    actor, critic = (jax.tree.leaves(RIGL.init(tree).masks)[0] for tree in zeros)
    assert not (actor == critic).all()


def test_traced_settings():
    """Sparsity, ζ0, interval and T_end vmapped over runs match single runs."""
    table = [(0.9, 0.5, 2, 10), (0.75, 0.3, 3, 10), (0.5, 0.0, 1, 10), (0.9, 0.5, 2, 2)]
    params = {**PARAMS, "b": {"kernel": jnp.ones((10, 6))}}

    def run(sparsity, zeta0, interval, t_end):
        tx: Any = rlx2.sparsify(
            optax.adam(0.1), sparsity, zeta0=zeta0, interval=interval, t_end=t_end, seed=1
        )
        one = tx.init(params)
        return [one.masks, *(step_masks(tx, one, n) for n in (2, 3))]

    def step_masks(tx, state, count):
        return step(tx, params, state._replace(count=jnp.int32(count - 1)))[1].masks

    columns = [jnp.array(column) for column in zip(*table)]
    lanes = jit(jax.vmap(run))(*columns)
    for i, row in enumerate(table[:3]):
        alone = run(*row)
        for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(lanes)):
            np.testing.assert_array_equal(a, b[i])
    moved = [
        bool((lanes[0]["a"]["kernel"][i] != lanes[1]["a"]["kernel"][i]).any()) for i in range(4)
    ]
    assert moved == [True, False, False, False]


def test_explicit_mesh():
    """Sharded parameters keep their sharding, and so do their masks."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        kernel = jax.device_put(jnp.ones((8, 6)), jax.P("x", None))
        params = {"a": {"kernel": kernel, "bias": jnp.ones(6)}}
        state = RIGL.init(params)
        for _ in range(2):
            params, state = jit(step_sharded)(params, state)
        for x in (params["a"]["kernel"], state.masks["a"]["kernel"]):
            assert jax.typeof(x).sharding.spec == jax.P("x", None)
    assert int((params["a"]["kernel"] != 0).sum()) <= 5 == masks.live(rlx2.masks_of(state))


def step_sharded(params, state):
    grads = jax.tree.map(jnp.sin, params)
    updates, state = RIGL.update(grads, state, params)
    return optax.apply_updates(params, updates), state
