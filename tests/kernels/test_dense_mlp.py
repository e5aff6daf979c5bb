"""Dense networks through the kernels: error bounds, gradients, transformations, portability."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from instruction_sets import select_isa

from rlx2_jax import networks
from rlx2_jax.kernels import dense_mlp, native
from rlx2_jax.networks import masked

pytestmark = pytest.mark.fast

SIZES = [(14, 64, 64, 1), (11, 33, 3), (5, 9), (1, 1), (7, 19, 40, 17, 2), (3, 130, 6)]
BATCHES = [1, 7, 149, 256, 300]


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """The kernels, also where networks are too small for them to pay."""
    monkeypatch.setenv("RLX2_COMPACT", "native")
    monkeypatch.setattr(dense_mlp, "_FEWEST_ROWS", 1)
    monkeypatch.setattr(dense_mlp, "_LEAST_WORK", 1)


def make(rng, sizes, dtype: Any = np.float32):
    """Random weights and biases of one network."""
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0]), dtype)  # noqa: E731
    return {
        f"Dense_{i}": {"kernel": draw(n, m), "bias": draw(m)}
        for i, (n, m) in enumerate(itertools.pairwise(sizes))
    }


def exact(params, x):
    """Output in float64, and the sum of |a_i b_i| that bounds its rounding error."""
    y, size = np.asarray(x, np.float64), 0.0
    for i in range(len(params)):
        w, b = (np.asarray(params[f"Dense_{i}"][k], np.float64) for k in ("kernel", "bias"))
        size = (np.abs(y) + size) @ np.abs(w) + np.abs(b)[None]
        y = y @ w + b[None]
        y = np.maximum(y, 0) if i + 1 < len(params) else y
    return y, size


def mlp(nets, x):
    """The kernels on a list of networks."""
    return dense_mlp.mlp(jax.tree.map(lambda *x: jnp.stack(x), *nets), x)


def plain(nets, x):
    """The same in plain XLA, for its gradients."""
    return jnp.stack([dense_mlp._plain_forward(dense_mlp.layers(net), x)[0] for net in nets])


def loss_of(nets, x, mlp=mlp):
    return jnp.sin(mlp(nets, x)).sum()


@pytest.mark.parametrize("sizes", SIZES)
def test_forward_error(sizes):
    rng = np.random.default_rng(0)
    nets = [make(rng, sizes) for _ in range(2)]
    run = jax.jit(mlp)
    for batch in BATCHES:
        x = jnp.asarray(rng.normal(size=(batch, sizes[0])), jnp.float32)
        got = run(nets, x)
        assert got.shape == (2, batch, sizes[-1])
        for y, net in zip(got, nets):
            want, size = exact(net, x)
            assert (np.abs(y - want) <= 2e-6 * size).all()


@pytest.mark.long
@pytest.mark.parametrize("nets", [1, 2])
@pytest.mark.parametrize("sizes", SIZES)
def test_gradients_in_float64(sizes, nets):
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        params = [make(rng, sizes, np.float64) for _ in range(nets)]
        for batch in BATCHES:
            x = jnp.asarray(rng.normal(size=(batch, sizes[0])))
            want = jax.grad(functools.partial(loss_of, mlp=plain), (0, 1))(params, x)
            got = jax.jit(jax.grad(loss_of, (0, 1)))(params, x)
            check = functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-11)
            jax.tree.map(check, got, want)
            for i in (0, 1):  # alone: the same result
                jax.tree.map(check, jax.jit(jax.grad(loss_of, i))(params, x), want[i])


def test_gradients_in_float32_are_as_good_as_those_of_xla():
    rng = np.random.default_rng(2)
    nets = [make(rng, (14, 256, 256, 1)) for _ in range(2)]
    x = jnp.asarray(rng.normal(size=(256, 14)), jnp.float32)
    got = jax.jit(jax.grad(loss_of, (0, 1)))(nets, x)
    xla = jax.jit(jax.grad(functools.partial(loss_of, mlp=plain), (0, 1)))(nets, x)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), (nets, x))
        want = jax.grad(functools.partial(loss_of, mlp=plain), (0, 1))(*wide)
    for leaves in zip(*map(jax.tree.leaves, (got, xla, want))):
        a, b, c = (np.asarray(leaf, np.float64) for leaf in leaves)
        scale = np.abs(c).max()
        assert np.abs(a - c).max() <= max(3 * np.abs(b - c).max(), 1e-5 * scale)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("isa", native.ISAS)
def test_instruction_sets_agree(isa, dtype):
    if select_isa(isa) != isa:
        pytest.skip(f"this CPU has no {isa}")
    tolerance = 2e-4 if dtype == np.float32 else 1e-11
    check = functools.partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance)
    try:
        with jax.enable_x64(True):
            rng = np.random.default_rng(3)
            nets = [make(rng, (14, 67, 35, 3), dtype) for _ in range(2)]
            x = jnp.asarray(rng.normal(size=(141, 14)), dtype)
            both = jax.value_and_grad(loss_of, (0, 1))
            want = jax.value_and_grad(functools.partial(loss_of, mlp=plain), (0, 1))(nets, x)
            jax.tree.map(check, both(nets, x), want)
    finally:
        select_isa("avx512")


@pytest.mark.parametrize("batch", [64, 256, 700])
def test_lanes_equal_one_by_one(batch):
    """Bit for bit: a single lane is split into parts, several lanes are one task each."""
    rng = np.random.default_rng(4)
    sizes = (14, 128, 96, 2)
    lanes = [[make(rng, sizes)] for _ in range(5)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *lanes)
    xs = jnp.asarray(rng.normal(size=(5, batch, 14)), jnp.float32)
    both = jax.value_and_grad(loss_of, (0, 1))
    many, single = jax.jit(jax.vmap(both))(stacked, xs), jax.jit(both)
    outputs = jax.jit(jax.vmap(mlp))(stacked, xs)
    for i in range(5):
        got = jax.tree.map(lambda leaf, i=i: leaf[i], many)
        jax.tree.map(np.testing.assert_array_equal, got[1], single(lanes[i], xs[i])[1])
        np.testing.assert_array_equal(outputs[i], jax.jit(mlp)(lanes[i], xs[i]))


@pytest.mark.parametrize("density", [0.0, 0.01, 0.1])
def test_sparse_weights(density):
    """Skipping rows of zero weights changes neither values nor gradients."""
    rng = np.random.default_rng(6)
    with jax.enable_x64(True):
        nets = [make(rng, (14, 130, 70, 3), np.float64) for _ in range(2)]
        for net, layer in itertools.product(nets, ("Dense_0", "Dense_1")):
            kernel = net[layer]["kernel"]
            net[layer]["kernel"] = kernel * (rng.random(kernel.shape) < density)
        x = jnp.asarray(rng.normal(size=(70, 14)))
        want = jax.value_and_grad(functools.partial(loss_of, mlp=plain), (0, 1))(nets, x)
        got = jax.jit(jax.value_and_grad(loss_of, (0, 1)))(nets, x)
        check = functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-11)
        jax.tree.map(check, got, want)


def test_shared_arguments_and_nested_lanes():
    """Axes of some arguments only, and two of them."""
    rng = np.random.default_rng(5)
    lanes = [[make(rng, (6, 40, 2)) for _ in range(2)] for _ in range(4)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x).reshape(2, 2, *x[0].shape), *lanes)
    xs = jnp.asarray(rng.normal(size=(2, 150, 6)), jnp.float32)
    inner = jax.vmap(jax.grad(loss_of, (0, 1)), in_axes=(0, None))
    got = jax.jit(jax.vmap(inner))(stacked, xs)
    for i in range(4):
        want = jax.jit(jax.grad(loss_of, (0, 1)))(lanes[i], xs[i // 2])
        mine = jax.tree.map(lambda leaf, i=i: leaf[i // 2, i % 2], got)
        jax.tree.map(np.testing.assert_array_equal, mine, want)
    shared = jax.vmap(mlp, in_axes=(None, 0))(lanes[0], xs)
    np.testing.assert_array_equal(shared[1], mlp(lanes[0], xs[1]))


def test_twins_are_two_networks():
    rng = np.random.default_rng(6)
    nets = [make(rng, (5, 64, 64, 1)) for _ in range(2)]
    twins = masked.bind(jax.tree.map(lambda *x: jnp.stack(x), *nets), members=2)
    obs, action = (jnp.asarray(rng.normal(size=(128, d)), jnp.float32) for d in (3, 2))
    q1, q2 = networks.q_values(twins, obs, action)
    both = jnp.concatenate([obs, action], -1)
    np.testing.assert_array_equal(q1, masked.bind(nets[0])(both)[:, 0])
    np.testing.assert_array_equal(q2, masked.bind(nets[1])(both)[:, 0])
    np.testing.assert_array_equal(q1, networks.q_value(twins, obs, action))


def test_the_first_network_alone_has_no_gradient_by_parameters():
    rng = np.random.default_rng(8)
    params = jax.tree.map(lambda *x: jnp.stack(x), *[make(rng, (6, 30, 2)) for _ in range(3)])
    x = jnp.asarray(rng.normal(size=(50, 6)), jnp.float32)
    first = lambda params, x: dense_mlp.mlp(params, x, first=1).sum()  # noqa: E731
    alone = jax.tree.map(lambda leaf: leaf[:1], params)
    np.testing.assert_array_equal(jax.grad(first, 1)(params, x), jax.grad(first, 1)(alone, x))
    with pytest.raises(ValueError, match="only the first 1 networks"):
        jax.grad(first)(params, x)


def test_half_of_a_gradient():
    """One network of two in the loss, one layer of a network trained."""
    rng = np.random.default_rng(7)
    nets = [make(rng, (6, 30, 2)) for _ in range(2)]
    x = jnp.asarray(rng.normal(size=(50, 6)), jnp.float32)

    def first(nets, mlp):
        return jnp.sin(mlp(nets, x)[0]).sum()

    def last_layer(layer, mlp):
        return jnp.sin(mlp([{**nets[0], "Dense_1": layer}], x)).sum()

    check = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    for loss, at in ((first, nets), (last_layer, nets[0]["Dense_1"])):
        got, want = (jax.grad(loss)(at, f) for f in (mlp, plain))
        jax.tree.map(check, got, want)


def test_scan_equals_loop():
    rng = np.random.default_rng(8)
    nets = [make(rng, (6, 64, 64, 2))]
    x = jnp.asarray(rng.normal(size=(200, 6)), jnp.float32)

    def step(nets, _):
        grads = jax.grad(loss_of)(nets, x)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, nets, grads), None

    scanned, _ = jax.jit(lambda n: jax.lax.scan(step, n, None, length=5))(nets)
    once = jax.jit(step)
    for _ in range(5):
        nets, _ = once(nets, None)
    check = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(check, scanned, nets)


def test_repeated_runs_are_equal():
    rng = np.random.default_rng(9)
    nets = [make(rng, (14, 256, 256, 1))]
    x = jnp.asarray(rng.normal(size=(512, 14)), jnp.float32)
    grad = jax.jit(jax.grad(loss_of))
    want = grad(nets, x)
    for _ in range(20):
        jax.tree.map(np.testing.assert_array_equal, grad(nets, x), want)


def test_nan_is_not_hidden():
    net = make(np.random.default_rng(0), (2, 20, 1))
    y = mlp([net], jnp.array([[jnp.nan, 1.0], [1.0, 1.0]]))[0]
    assert np.isnan(y[0]).all() and not np.isnan(y[1]).any()


@pytest.mark.parametrize("choice", ["xla", "off"])
def test_plain_xla_when_asked_for(choice, monkeypatch):
    net, x = make(np.random.default_rng(0), (4, 64, 2)), jnp.ones((64, 4))
    monkeypatch.setenv("RLX2_COMPACT", choice)
    assert "ffi_call" not in str(jax.make_jaxpr(jax.grad(loss_of))([net], x))


def test_small_networks_and_other_dtypes_stay_with_xla(monkeypatch):
    net = make(np.random.default_rng(0), (4, 64, 2))
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), net)
    traced = lambda *args: jax.make_jaxpr(lambda *a: mlp(*a))(*args)  # noqa: E731
    assert "ffi_call" in str(traced([net], jnp.ones((64, 4))))
    assert "ffi_call" not in str(traced([half], jnp.ones((64, 4), jnp.bfloat16)))
    monkeypatch.setattr(dense_mlp, "_FEWEST_ROWS", 65)
    assert "ffi_call" not in str(traced([net], jnp.ones((64, 4))))


@pytest.mark.parametrize("platform", ["cuda", "tpu", "cpu"])
def test_lowers_for(platform):
    rng = np.random.default_rng(0)
    nets, x = [make(rng, (4, 64, 2))], jnp.ones((3, 64, 4))
    run = jax.jit(jax.vmap(jax.grad(loss_of, (0, 1)), in_axes=(None, 0)))
    text = run.trace(nets, x).lower(lowering_platforms=(platform,)).as_text()
    assert ("rlx2_dense" in text) == (platform == "cpu")


@pytest.mark.long
def test_plain_form_of_the_gradients(monkeypatch):
    """The code of other platforms, run on the CPU."""
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *a, cpu, default: default(*a))
    rng = np.random.default_rng(10)
    nets = [make(rng, (6, 30, 20, 2)) for _ in range(2)]
    x = jnp.asarray(rng.normal(size=(50, 6)), jnp.float32)
    got = jax.value_and_grad(loss_of, (0, 1))(nets, x)
    want = jax.value_and_grad(functools.partial(loss_of, mlp=plain), (0, 1))(nets, x)
    check = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(check, got, want)
