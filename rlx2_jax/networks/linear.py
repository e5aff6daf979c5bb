"""The one linear layer that all architectures share, with a kernel of either form."""

import dataclasses
import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from rlx2_jax.kernels import compact_mlp, layout
from rlx2_jax.types import Array


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["values", "index", "probe"], meta_fields=[]
)
@dataclasses.dataclass(frozen=True)
class CompactKernel:
    """The live links of one layer, where the masked form has an array [in, out]."""

    values: Array  # [links]
    index: layout.Index  # of this layer alone
    probe: compact_mlp.Probe | None = None


def linear(x: Array, kernel: Array | CompactKernel, bias: Array) -> Array:
    """y = x θ + b: `[batch, in] -> [batch, out]`."""
    if isinstance(kernel, CompactKernel):
        flat = jnp.concatenate([kernel.values, bias])
        return compact_mlp.mlp(flat, kernel.index, x, probe=kernel.probe)
    y = x @ kernel
    return y + jnp.broadcast_to(bias, y.shape)


class Linear(nn.Module):
    """A linear layer whose kernel can be sparse. `scheme` is how weights begin:

    `uniform`: weights and biases U(-1/√fan_in, 1/√fan_in);
    `orthogonal`: orthogonal weights of gain 1, zero biases;
    `he_normal`: weights N(0, 2 / fan_in), truncated at two σ, zero biases.
    """

    features: int
    scheme: str = "uniform"
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        if self.is_initializing():
            kernel_init, bias_init = self._initializers(x.shape[-1])
            dtype = jnp.dtype(self.dtype)
            kernel = self.param("kernel", kernel_init, (x.shape[-1], self.features), dtype)
            bias = self.param("bias", bias_init, (self.features,), dtype)
        else:  # not `param`, which compares shapes: the kernel may be a `CompactKernel`
            kernel, bias = (self.get_variable("params", name) for name in ("kernel", "bias"))
        return linear(x, kernel, bias)

    def _initializers(self, fan_in: int):
        if self.scheme == "uniform":
            bound = 1.0 / math.sqrt(fan_in)
            draw = lambda key, shape, dtype: jax.random.uniform(  # noqa: E731
                key, shape, dtype, -bound, bound
            )
            return draw, draw
        return getattr(nn.initializers, self.scheme)(), nn.initializers.zeros_init()
