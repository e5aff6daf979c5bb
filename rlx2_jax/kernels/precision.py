"""Products of matrices in the precision that a network asks for."""

import jax
import jax.numpy as jnp

from rlx2_jax.types import Array

PRECISIONS = ("float32", "bfloat16")


def product(x: Array, kernel: Array, precision: str = "float32") -> Array:
    """x θ: `[batch, in] x [in, out] -> [batch, out]`.

    With `bfloat16`, both are rounded to it for this product and the two of its gradient, which add
    up in float32. Weights, gradients and everything between layers stay as they are.
    """
    return x @ kernel if precision == "float32" else _rounded(x, kernel)


def _dot(a: Array, b: Array) -> Array:
    low = jnp.bfloat16
    return jnp.matmul(a.astype(low), b.astype(low), preferred_element_type=jnp.float32)


@jax.custom_vjp
def _rounded(x: Array, kernel: Array) -> Array:
    return _dot(x, kernel)


def _backward(inputs: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    x, kernel = inputs
    return _dot(dy, kernel.T), _dot(x.T, dy)


_rounded.defvjp(lambda x, kernel: (_dot(x, kernel), (x, kernel)), _backward)
