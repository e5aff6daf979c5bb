"""Initial weights, the forward pass against NumPy, and the density of SAC's squashed Gaussian."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lanes import quick

from rlx2_jax import networks
from rlx2_jax.networks import masked
from rlx2_jax.sparse import masks

pytestmark = pytest.mark.fast
DEPTHS = [(5, 3), (5, 8, 6, 3), (7, 6, 5, 4, 3, 2)]


def of_mlp(key, sizes, scheme="uniform", width=None):
    """Initial weights and block of an MLP of `sizes = (in, hidden..., out)`."""
    module = networks.MLP(tuple(sizes[1:]), scheme)
    params, block, stats = networks.init(key, module, sizes[0], width=width)
    assert stats is None
    return params, block


init = quick(of_mlp, static_argnames=("sizes", "scheme", "width"))
mlp = quick(lambda params, x: masked.bind(params)(x))
policy = quick(lambda params, x: networks.policy(masked.bind(params), x))
KEY = jax.random.key(0)


def shapes(params: dict) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Kernel and bias shapes, layer by layer."""
    layers = [params[f"Dense_{i}"] for i in range(len(params))]
    return [(layer["kernel"].shape, layer["bias"].shape) for layer in layers]


@pytest.mark.parametrize("scheme", ["uniform", "orthogonal"])
@pytest.mark.parametrize("sizes", DEPTHS)
def test_any_depth(sizes, scheme):
    make = functools.partial(of_mlp, sizes=sizes, scheme=scheme)
    params, block = jax.eval_shape(make, KEY)
    pairs = itertools.pairwise(sizes)
    assert shapes(params) == [((i, o), (o,)) for i, o in pairs]
    assert all(b.dtype == bool for b in jax.tree.leaves(block))
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(params))
    masks.check_same_tree(params, block, "params", "block")


def test_uniform_scheme():
    params, _ = init(KEY, (16, 100, 100, 4))
    for i, fan_in in enumerate((16, 100, 100)):
        bound = 1 / math.sqrt(fan_in)
        for leaf in params[f"Dense_{i}"].values():
            assert float(jnp.abs(leaf).max()) <= bound
        kernel = np.asarray(params[f"Dense_{i}"]["kernel"])
        assert np.abs(kernel).max() > 0.97 * bound
        assert abs(kernel.mean()) < 4 * bound / math.sqrt(3 * kernel.size)
        assert kernel.std() == pytest.approx(bound / math.sqrt(3), rel=0.15)
    assert float(jnp.abs(params["Dense_0"]["bias"]).max()) > 0  # biases are drawn, too


def test_orthogonal_scheme():
    params, _ = init(KEY, (5, 6, 6, 2), scheme="orthogonal")
    for layer in params.values():
        kernel = np.asarray(layer["kernel"])
        small = kernel @ kernel.T if kernel.shape[0] <= kernel.shape[1] else kernel.T @ kernel
        np.testing.assert_allclose(small, np.eye(len(small)), atol=1e-5)  # gain 1
        assert not layer["bias"].any()


def test_keys_decide():
    one, same, other = (
        init(jax.random.key(k), (3, 8, 2))[0]["Dense_0"]["kernel"] for k in (0, 0, 1)
    )
    assert (one == same).all() and (one != other).any()


@pytest.mark.parametrize("scheme", ["uniform", "orthogonal"])
def test_tiny_block(scheme):
    sizes, h = (5, 32, 24, 2), 6
    params, block = init(KEY, sizes, scheme=scheme, width=h)
    small, _ = init(KEY, (5, h, h, 2), scheme=scheme)
    assert shapes(params) == [((5, 32), (32,)), ((32, 24), (24,)), ((24, 2), (2,))]
    for name, layer in small.items():
        for leaf, inner in layer.items():
            corner = tuple(slice(n) for n in inner.shape)
            np.testing.assert_array_equal(params[name][leaf][corner], inner)  # by its fan-in
            covered = np.zeros(params[name][leaf].shape, bool)
            covered[corner] = True
            np.testing.assert_array_equal(block[name][leaf], covered)
            assert not np.asarray(params[name][leaf])[~covered].any()
    x = jax.random.normal(jax.random.key(4), (9, 5))
    np.testing.assert_allclose(mlp(params, x), mlp(small, x), atol=1e-6)


def test_tiny_width_grows_no_layer():
    params, block = init(KEY, (3, 8, 2), width=99)
    whole, everything = init(KEY, (3, 8, 2))
    jax.tree.map(np.testing.assert_array_equal, params, whole)
    jax.tree.map(np.testing.assert_array_equal, block, everything)
    assert all(b.all() for b in jax.tree.leaves(everything))


def random_params(*sizes: int, seed: int = 0) -> dict:
    """Weights and biases of an MLP."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape) / 2, jnp.float32)  # noqa: E731
    return {
        f"Dense_{i}": {"kernel": draw(n, m), "bias": draw(m)}
        for i, (n, m) in enumerate(itertools.pairwise(sizes))
    }


def numpy_mlp(params: dict, x: np.ndarray) -> np.ndarray:
    """ReLU between layers, linear at the end."""
    for i in range(len(params)):
        layer = {k: np.asarray(v, np.float64) for k, v in params[f"Dense_{i}"].items()}
        x = x @ layer["kernel"] + layer["bias"]
        x = np.maximum(x, 0.0) if i < len(params) - 1 else x
    return x


@pytest.mark.parametrize("lead", [(), (4,), (2, 3, 4)])
@pytest.mark.parametrize("sizes", DEPTHS)
def test_mlp_and_policy_with_any_batch_axes(sizes, lead):
    params = random_params(*sizes)
    x = np.random.default_rng(0).normal(size=(*lead, sizes[0])).astype(np.float32)
    expected = numpy_mlp(params, x)
    np.testing.assert_allclose(mlp(params, jnp.asarray(x)), expected, atol=1e-5)
    np.testing.assert_allclose(policy(params, jnp.asarray(x)), np.tanh(expected), atol=1e-5)


@pytest.mark.parametrize("lead", [(4,), (2, 3)])
def test_critics(lead):
    q1, q2 = (random_params(5, 8, 8, 1, seed=k) for k in (6, 7))
    rng = np.random.default_rng(1)
    obs, action = (rng.normal(size=(*lead, d)).astype(np.float32) for d in (3, 2))
    both = np.concatenate([obs, action], -1)
    twins = masked.bind(jax.tree.map(lambda *x: jnp.stack(x), q1, q2), members=2)
    one, two = networks.q_values(twins, jnp.asarray(obs), jnp.asarray(action))
    np.testing.assert_allclose(one, numpy_mlp(q1, both)[..., 0], atol=1e-5)
    np.testing.assert_allclose(two, numpy_mlp(q2, both)[..., 0], atol=1e-5)
    first = networks.q_value(twins, jnp.asarray(obs), jnp.asarray(action))
    np.testing.assert_array_equal(first, one)


def gaussian_of(mean: float, raw: float) -> masked.Bound:
    """A policy with one action dimension and constant outputs."""
    return masked.bind({"Dense_0": {"kernel": jnp.zeros((2, 2)), "bias": jnp.array([mean, raw])}})


def test_log_sigma_range():
    outputs = (-50.0, 0.0, 50.0)
    got = [float(networks.gaussian(gaussian_of(0.0, raw), jnp.zeros(2))[1][0]) for raw in outputs]
    np.testing.assert_allclose(got, [-5.0, -5.0 + 3.5, 2.0])


@pytest.mark.parametrize("mean", [-1.0, 0.0, 0.7])
@pytest.mark.parametrize("raw", [0.0, 0.35, 0.6])
def test_squashed_density_integrates_to_one(mean, raw):
    params = gaussian_of(mean, raw)
    log_std = float(networks.gaussian(params, jnp.zeros(2))[1][0])
    # ε on a grid: ∫ π(a) da = Σ exp(log π) Δa, with a = tanh(mean + σ ε) at the cells' edges
    edges = np.linspace(-6.0, 6.0, 20_001)
    noise = jnp.asarray(0.5 * (edges[1:] + edges[:-1]), jnp.float32)[:, None]
    obs = jnp.zeros((len(noise), 2))
    action, log_prob = networks.squashed_sample(params, obs, noise)
    area = np.diff(np.tanh(mean + math.exp(log_std) * edges))
    assert float((np.exp(np.asarray(log_prob, np.float64)) * area).sum()) == pytest.approx(
        1.0, abs=1e-3
    )
    u = mean + math.exp(log_std) * np.asarray(noise[:, 0], np.float64)
    np.testing.assert_allclose(action[:, 0], np.tanh(u), atol=1e-5)


def test_log_prob_is_the_sum_over_dimensions_and_stays_finite():
    params = random_params(3, 8, 4)
    rng = np.random.default_rng(2)
    obs, noise = (rng.normal(size=(2, 5, d)).astype(np.float32) for d in (3, 2))
    out = numpy_mlp(params, obs)
    mean, log_std = out[..., :2], -5.0 + 3.5 * (np.tanh(out[..., 2:]) + 1.0)
    u = mean + np.exp(log_std) * noise
    normal = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)
    expected = (normal - np.log(1.0 - np.tanh(u) ** 2)).sum(-1)
    action, got = networks.squashed_sample(
        masked.bind(params), jnp.asarray(obs), jnp.asarray(noise)
    )
    assert action.shape == (2, 5, 2)
    np.testing.assert_allclose(got, expected, atol=1e-4)
    np.testing.assert_allclose(
        networks.squashed_mean(masked.bind(params), jnp.asarray(obs)), np.tanh(mean), atol=1e-5
    )

    def far(u: float) -> jax.Array:  # where 1 - tanh² u is 0 in float32
        return networks.squashed_sample(gaussian_of(u, 0.0), jnp.zeros(2), jnp.zeros(1))[1]

    slope = jax.grad(far)(40.0)
    assert np.isfinite(far(40.0)) and float(slope) == pytest.approx(2.0)  # log(1 - tanh²) ~ -2u
