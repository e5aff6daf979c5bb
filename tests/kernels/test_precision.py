"""bfloat16 products: what is rounded, what is not, and what rejects them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lanes import setting

from rlx2_jax import config
from rlx2_jax.kernels.precision import product
from rlx2_jax.training import lane, plan
from rlx2_jax.types import TimeStep


def rounded(x: np.ndarray) -> np.ndarray:
    return np.asarray(jnp.asarray(x).astype(jnp.bfloat16).astype(jnp.float32), np.float64)


@pytest.mark.fast
def test_factors_are_rounded_and_sums_are_not():
    draw = np.random.default_rng(0).normal
    x, kernel, dy = (draw(size=shape).astype(np.float32) for shape in ((8, 300), (300, 5), (8, 5)))
    y, back = jax.vjp(lambda a, b: product(a, b, "bfloat16"), jnp.asarray(x), jnp.asarray(kernel))
    close: Any = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(y, rounded(x) @ rounded(kernel), **close)
    dx, dkernel = back(jnp.asarray(dy))
    np.testing.assert_allclose(dx, rounded(dy) @ rounded(kernel).T, **close)
    np.testing.assert_allclose(dkernel, rounded(x).T @ rounded(dy), **close)
    assert {a.dtype for a in (y, dx, dkernel)} == {jnp.dtype("float32")}
    assert float(abs(y - x @ kernel).max()) > 1e-3  # it does something
    np.testing.assert_array_equal(
        product(jnp.asarray(x), jnp.asarray(kernel)), jnp.asarray(x) @ kernel
    )


@pytest.mark.fast
def test_only_the_masked_form_and_known_architectures():
    cfg = setting("td3", precision="bfloat16")
    with pytest.raises(
        ValueError, match="execution='compact' supports only float32 products, not pre"
    ):
        config.make("td3", 3, 1, precision="bfloat16", execution="compact")
    with pytest.raises(ValueError, match="precision='half': use one of"):
        config.make("td3", 3, 1, precision="half")
    lanes = [config.resolve(cfg, config.Lane(seed=0))]
    assert plan.choose(cfg, lanes, "auto")[0].execution == "masked"
    with pytest.raises(ValueError, match="precision"):
        plan.choose(cfg, lanes, "compact")


def lowered(algo: str, platform: str, **fields) -> str:
    """A plain step of one lane."""
    cfg = setting(algo, precision="bfloat16", warmup=9, steps=60, capacity=40, oldest_k=8, **fields)
    own = config.resolve(cfg, config.Lane(actor_sparsity=0.5, critic_sparsity=0.5))
    obs, ends = jnp.zeros((1, 4)), jnp.zeros(1, bool)
    state = jax.eval_shape(lambda: lane.init(cfg, own, obs))
    after = TimeStep(obs, obs, jnp.zeros(1), ends, ends)

    def step(state, t):
        return lane.step(state, after, t, cfg, config.hyper(cfg, own), learn=True)

    found = jax.jit(step).trace(state, jnp.int32(20))
    new = jax.eval_shape(step, state, jnp.int32(20))[0]
    kinds = [{str(x.dtype) for x in jax.tree.leaves(tree)} for tree in (state, new)]
    assert "bfloat16" not in kinds[0] | kinds[1]  # weights, moments and targets are float32
    return found.lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize(
    ("algo", "fields"),
    [("td3", {}), ("sac", {}), ("td3", {"architecture": "simba", "width": 8, "hidden": None})],
)
def test_products_of_networks_are_in_bfloat16(algo, fields, platform):
    text = lowered(algo, platform, **fields)
    products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    assert len(products) > 10
    assert all("bf16" in line and "-> tensor<" in line for line in products)
    assert not any(line.rstrip().endswith("xbf16>") for line in products)
