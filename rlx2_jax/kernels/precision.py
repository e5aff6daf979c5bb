"""Matrix products in reduced precision."""

import jax
import jax.numpy as jnp

from rlx2_jax.types import Array


def product(x: Array, kernel: Array, precision: str = "float32") -> Array:
    """x θ: `[batch, in] x [in, out] -> [batch, out]`.

    With `bfloat16`, the operands of this product and of its two gradient products are rounded, with
    float32 accumulation. Weights, gradients and everything between layers keep their precision.
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
