"""The paper's networks: multilayer perceptrons of any width and depth."""

import math
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from rlx2_jax.types import Array, Masks, Params


class MLP(nn.Module):
    """Dense layers with ReLU between them. `scheme` is how weights begin:

    `uniform`: weights and biases U(-1/√fan_in, 1/√fan_in) (TD3);
    `orthogonal`: orthogonal weights of gain 1, zero biases (SAC).
    """

    features: Sequence[int]
    scheme: str = "uniform"
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for i, size in enumerate(self.features):
            if self.scheme == "uniform":
                bound = 1.0 / math.sqrt(x.shape[-1])
                draw = lambda key, shape, dtype, b=bound: jax.random.uniform(  # noqa: E731
                    key, shape, dtype, -b, b
                )
                kernel_init, bias_init = draw, draw
            else:
                kernel_init, bias_init = nn.initializers.orthogonal(), nn.initializers.zeros_init()
            x = nn.Dense(
                size,
                kernel_init=kernel_init,
                bias_init=bias_init,
                param_dtype=jnp.dtype(self.dtype),
            )(x)
            x = nn.relu(x) if i + 1 < len(self.features) else x
        return x


def init(
    key: Array,
    sizes: Sequence[int],
    *,
    scheme: str = "uniform",
    width: int | None = None,
    dtype: str = "float32",
) -> tuple[Params, Masks]:
    """Initial weights of an MLP of `sizes = (in, hidden..., out)`, and the block they fill.

    With `width` (the Tiny baseline) every hidden layer has `width` units: a small MLP is created
    with its own fan-ins and put into the corner of arrays of the full shape, zeros around it.

    Returns:
      params: `{"Dense_l": {"kernel": [in, out], "bias": [out]}}`.
      block: the same tree, True where the small network lies (everywhere without `width`).
    """
    inner = [min(h, width or h) for h in sizes[1:-1]]
    module = MLP([*inner, sizes[-1]], scheme, dtype)
    small = module.init(key, jnp.zeros((1, sizes[0]), jnp.dtype(dtype)))["params"]
    full = {
        f"Dense_{i}": {"kernel": (sizes[i], sizes[i + 1]), "bias": (sizes[i + 1],)}
        for i in range(len(sizes) - 1)
    }

    def corner(shape: tuple[int, ...], block: Array) -> Array:
        return jnp.pad(block, [(0, n - m) for n, m in zip(shape, block.shape)])

    put = lambda shape, leaf: corner(shape, leaf)  # noqa: E731
    is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
    params = jax.tree.map(put, full, small, is_leaf=is_shape)
    block = jax.tree.map(lambda s, x: put(s, jnp.ones_like(x, bool)), full, small, is_leaf=is_shape)
    return params, block
