"""The compact network call: error bounds, gradients, transformations, portability."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compact_nets import compress, dense_mlp, expand, masked_network, stack
from instruction_sets import select_isa

from rlx2_jax.kernels import compact_mlp as ops
from rlx2_jax.kernels import compact_xla as fallback
from rlx2_jax.kernels import layout, native

pytestmark = pytest.mark.fast

NETWORKS = [
    ((14, 64, 64, 1), (300, 200, 64)),
    ((11, 32, 3), (40, 50)),
    ((1, 1), (1,)),
    ((3, 8, 2), (0, 0)),
    ((5, 9), (20,)),
]


@pytest.fixture(params=["native", "csr", "dense"])
def how(request, monkeypatch):
    """The three ways to run: the kernels, jaxlib's CSR product, dense matrices."""
    if request.param == "csr" and not fallback.has_csr():
        pytest.skip("this jaxlib has no CSR product")
    monkeypatch.setenv("RLX2_COMPACT", "native" if request.param == "native" else "xla")
    monkeypatch.setattr(fallback, "has_csr", lambda: request.param == "csr")
    return request.param


def bound(params, x):
    """Per output, the sum of |a_i b_i| with errors of earlier layers carried along."""
    names = sorted(params)
    size = 0.0
    exact = np.asarray(x, np.float64)
    for name in names:
        w, b = (np.asarray(params[name][k], np.float64) for k in ("kernel", "bias"))
        size = (np.abs(exact) + size) @ np.abs(w) + np.abs(b)[None]
        exact = exact @ w + b[None]
        if name != names[-1]:
            exact = np.maximum(exact, 0)
    return exact, size


@pytest.mark.parametrize("widths,live", NETWORKS)
def test_forward_error(how, widths, live):
    rng = np.random.default_rng(0)
    params, masks = masked_network(rng, widths, live)
    net = compress(params, masks)
    run = jax.jit(ops.mlp, static_argnames="feature_major")
    for batch in (1, 7, 149):
        x = rng.normal(size=(batch, widths[0])).astype(np.float32)
        exact, size = bound(params, x)
        y = np.asarray(run(net.flat, net.index, x))
        assert y.shape == (batch, widths[-1])
        assert (np.abs(y - exact) <= 2e-6 * size).all()
        other = run(net.flat, net.index, x.T, feature_major=True).T
        np.testing.assert_allclose(other, y, rtol=1e-6, atol=1e-6)


def test_one_observation_without_batch_axis(how):
    params, masks = masked_network(np.random.default_rng(0), (3, 8, 2), (9, 9))
    net, x = compress(params, masks), jnp.array([1.0, -2.0, 3.0])
    y = ops.mlp(net.flat, net.index, x)
    np.testing.assert_allclose(y, ops.mlp(net.flat, net.index, x[None])[0], rtol=1e-6)
    other = ops.mlp(net.flat, net.index, x, feature_major=True)
    np.testing.assert_allclose(y, other, rtol=1e-6)


@pytest.mark.parametrize("isa", native.ISAS)
def test_instruction_sets_agree(isa, monkeypatch):
    monkeypatch.setenv("RLX2_COMPACT", "native")
    if select_isa(isa) != isa:
        pytest.skip(f"this CPU has no {isa}")
    try:
        rng = np.random.default_rng(1)
        params, masks = masked_network(rng, (14, 64, 64, 1), (300, 200, 64))
        net = compress(params, masks)
        x = jnp.asarray(rng.normal(size=(85, 14)).astype(np.float32))
        exact, size = bound(params, x)
        assert (np.abs(ops.mlp(net.flat, net.index, x) - exact) <= 2e-6 * size).all()
        grad = jax.grad(lambda f: (ops.mlp(f, net.index, x) ** 2).sum())(net.flat)
        want = jax.grad(lambda p: (dense_mlp(p, x) ** 2).sum())(params)
        got, _ = expand(layout.Compact(grad, net.index))
        for name, mask in masks.items():
            dense = np.where(mask["kernel"], want[name]["kernel"], 0)
            np.testing.assert_allclose(got[name]["kernel"], dense, rtol=1e-3, atol=2e-2)
    finally:
        select_isa("avx512")


@pytest.mark.long
@pytest.mark.parametrize(
    "widths,live,relu_last", [(*net, i % 2 == 1) for i, net in enumerate(NETWORKS)]
)
def test_gradients_in_float64(how, widths, live, relu_last):
    rng = np.random.default_rng(2)
    params, masks = masked_network(rng, widths, live, np.float64)
    batch = 149 if how == "native" else 5
    x, target = rng.normal(size=(batch, widths[0])), rng.normal(size=(batch, widths[-1]))
    with jax.enable_x64(True):
        net = compress(params, masks)

        def loss(flat, x, probe=None):
            y = ops.mlp(flat, net.index, x, relu_last=relu_last, probe=probe)
            return ((y - target) ** 2).mean()

        def dense_loss(params, x):
            return ((dense_mlp(params, x, relu_last) - target) ** 2).mean()

        want, want_x = jax.grad(dense_loss, (0, 1))(params, x)
        probe = ops.make_probe(net.index.spec, batch, jnp.float64, relu_last=relu_last)
        both = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))
        value, (grad, grad_x, grown) = both(net.flat, x, probe)
        np.testing.assert_allclose(value, dense_loss(params, x), rtol=1e-12)
        np.testing.assert_allclose(grad_x, want_x, rtol=1e-10, atol=1e-13)
        for alone, argnum in ((grad, 0), (grad_x, 1)):  # alone: the same result
            one = jax.jit(jax.grad(loss, argnum))(net.flat, x)
            np.testing.assert_allclose(one, alone, rtol=1e-12, atol=1e-15)
        got, _ = expand(layout.Compact(grad, net.index))
        pairs = ops.growth_inputs(net.index.spec, grown, batch)
        for name, mask, (inputs, outputs) in zip(masks, masks.values(), pairs):
            dense = np.where(mask["kernel"], want[name]["kernel"], 0)
            np.testing.assert_allclose(got[name]["kernel"], dense, rtol=1e-10, atol=1e-13)
            np.testing.assert_allclose(got[name]["bias"], want[name]["bias"], atol=1e-13)
            np.testing.assert_allclose(inputs @ outputs.T, want[name]["kernel"], atol=1e-13)


def lanes(count, dtype=np.float32):
    """Networks of slightly different live counts (so padded), stacked."""
    rng = np.random.default_rng(3)
    nets = [masked_network(rng, (6, 16, 16, 2), (50, 60 - i % 3, 20), dtype) for i in range(count)]
    spec = layout.spec_of(*(m for _, m in nets))
    xs = rng.normal(size=(count, 200, 6)).astype(dtype)
    return stack([compress(p, m, spec) for p, m in nets]), jnp.asarray(xs)


def loss_of(flat, index, x):
    return jnp.sin(ops.mlp(flat, index, x)).sum()


def test_lanes_equal_one_by_one(how):
    nets, xs = lanes(5)
    both = jax.value_and_grad(loss_of, (0, 2))
    many = jax.jit(jax.vmap(both))(nets.flat, nets.index, xs)
    single = jax.jit(both)
    for i in range(5):
        net, got = jax.tree.map(lambda leaf, i=i: leaf[i], (nets, many))
        want = single(net.flat, net.index, xs[i])
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5), got, want)
        if how == "native":
            live = net.index.live()[1]
            assert (got[1][0][50 + live : 110] == 0).all()  # padding gets no gradient


def test_shared_arguments_and_nested_lanes(monkeypatch):
    """Twin networks on one batch, within lanes: axes of some arguments only."""
    monkeypatch.setenv("RLX2_COMPACT", "native")
    nets, xs = lanes(4)
    twins = jax.tree.map(lambda leaf: leaf.reshape(2, 2, *leaf.shape[1:]), nets)
    inner = jax.vmap(loss_of, in_axes=(0, 0, None))

    def loss(flat, index, x):
        return jax.vmap(inner)(flat, index, x).sum()

    grad, grad_x = jax.jit(jax.grad(loss, (0, 2)))(twins.flat, twins.index, xs[:2])
    single = jax.jit(jax.grad(loss_of, (0, 2)))
    for lane in range(2):
        sum_x = 0.0
        for twin in range(2):
            net = jax.tree.map(lambda leaf, i=lane, j=twin: leaf[i, j], twins)
            want, want_x = single(net.flat, net.index, xs[lane])
            np.testing.assert_array_equal(grad[lane, twin], want)
            sum_x = sum_x + want_x
        np.testing.assert_allclose(grad_x[lane], sum_x, rtol=1e-5, atol=1e-5)
    shared = jax.vmap(ops.mlp, in_axes=(0, None, None))(
        nets.flat, jax.tree.map(lambda leaf: leaf[0], nets.index), xs[0]
    )
    net = jax.tree.map(lambda leaf: leaf[0], nets)
    np.testing.assert_array_equal(shared[0], ops.mlp(net.flat, net.index, xs[0]))


def test_scan_equals_loop(how):
    nets, xs = lanes(1)
    net, x = jax.tree.map(lambda leaf: leaf[0], (nets, xs))

    def step(flat, _):
        return flat - 1e-3 * jax.grad(loss_of)(flat, net.index, x), None

    scanned, _ = jax.jit(lambda f: jax.lax.scan(step, f, None, length=5))(net.flat)
    flat, once = net.flat, jax.jit(step)
    for _ in range(5):
        flat, _ = once(flat, None)
    np.testing.assert_allclose(scanned, flat, rtol=1e-6, atol=1e-6)


def test_enough_work_for_threads_changes_nothing(monkeypatch):
    monkeypatch.setenv("RLX2_COMPACT", "native")
    rng = np.random.default_rng(5)
    params, masks = masked_network(rng, (64, 256, 256, 8), (4000, 6000, 1000))
    net = compress(params, masks)
    x = rng.normal(size=(512, 64)).astype(np.float32)
    grad = jax.jit(jax.value_and_grad(loss_of, (0, 2)))
    want = grad(net.flat, net.index, x)
    many = jax.jit(jax.vmap(jax.value_and_grad(loss_of, (0, 2)), in_axes=(0, None, None)))
    for _ in range(5):
        got = many(jnp.stack([net.flat] * 4), net.index, x)
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[3], b), got[1], want[1])


def test_nan_is_not_hidden(how):
    params, masks = masked_network(np.random.default_rng(0), (2, 3, 1), (6, 3))
    net = compress(params, masks)
    y = ops.mlp(net.flat, net.index, jnp.array([[jnp.nan, 1.0], [1.0, 1.0]]))
    assert np.isnan(y[0]).all() and not np.isnan(y[1]).any()


def test_damaged_index_is_an_error_not_a_crash(monkeypatch):
    monkeypatch.setenv("RLX2_COMPACT", "native")
    params, masks = masked_network(np.random.default_rng(0), (6, 8, 4), (24, 16))
    net = compress(params, masks)
    x = jnp.ones((4, 6))
    for field in ("rowptr", "cols", "colptr", "rows", "perm"):
        bad = {**{f: getattr(net.index, f) for f in ("rowptr", "cols", "colptr", "rows", "perm")}}
        bad[field] = bad[field].at[2].set(10**8)
        index = layout.Index(**bad, spec=net.index.spec)
        with pytest.raises(Exception, match="leads outside"):
            jax.block_until_ready(jax.grad(loss_of)(net.flat, index, x))


def test_bad_arguments():
    params, masks = masked_network(np.random.default_rng(0), (3, 4), (5,))
    net = compress(params, masks)
    with pytest.raises(ValueError, match="3 inputs"):
        ops.mlp(net.flat, net.index, jnp.ones((2, 4)))
    with pytest.raises(ValueError, match="parameters"):
        ops.mlp(net.flat[1:], net.index, jnp.ones((2, 3)))
    with pytest.raises(ValueError, match="one dtype"):
        ops.mlp(net.flat, net.index, jnp.ones((2, 3), jnp.bfloat16))


@pytest.mark.parametrize("platform", ["cuda", "tpu", "cpu"])
def test_lowers_for(platform):
    nets, xs = lanes(2)
    traced = jax.jit(jax.vmap(jax.grad(loss_of))).trace(nets.flat, nets.index, xs)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert ("rlx2_mlp" in text) == (platform == "cpu" and native.execution() == "native")
