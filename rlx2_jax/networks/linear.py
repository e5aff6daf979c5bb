"""The linear layer that all architectures share, with dense or compact kernels."""

import dataclasses
import functools
import math
from typing import cast

import flax.linen as nn
import jax
import jax.numpy as jnp

from rlx2_jax.kernels import compact_mlp, layout
from rlx2_jax.kernels.precision import product
from rlx2_jax.types import Array


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["values", "index", "probe"], meta_fields=[]
)
@dataclasses.dataclass(frozen=True)
class CompactKernel:
    """The live links of one layer, in place of a kernel [in, out]."""

    values: Array  # [links]
    index: layout.Index  # of this layer alone
    probe: compact_mlp.Probe | None = None


Weights = tuple[Array | CompactKernel, Array]  # kernel and bias


def linear(x: Array, *layers: Weights, precision: str = "float32") -> Array:
    """y = x θ + b: `[batch, in] -> [batch, out]`, for several layers with ReLU in between.

    Several compact layers are one kernel call. `precision` applies to dense kernels.
    """
    kernels, biases = zip(*layers)
    if isinstance(kernels[0], CompactKernel):
        flat = jnp.concatenate([*(kernel.values for kernel in kernels), *biases])
        index = layout.join([kernel.index for kernel in kernels])
        probe = None
        if kernels[0].probe is not None:
            probe = compact_mlp.join_probes([kernel.probe for kernel in kernels])
        return compact_mlp.mlp(flat, index, x, probe=probe)
    for i, (kernel, bias) in enumerate(layers):
        x = jax.nn.relu(x) if i else x
        x = product(x, cast(Array, kernel), precision)
        x = x + jnp.broadcast_to(bias, x.shape)
    return x


class Linear(nn.Module):
    """A linear layer whose kernel can be sparse.

    Attributes:
      features: outputs.
      scheme: initialization. `uniform`: weights and biases U(-1/√fan_in, 1/√fan_in);
        `orthogonal`: orthogonal weights of gain 1, zero biases; `he_normal`: weights
        N(0, 2 / fan_in), truncated at two σ, zero biases.
      dtype: of the parameters.
      precision: of matrix products.
    """

    features: int
    scheme: str = "uniform"
    dtype: str = "float32"
    precision: str = "float32"

    def __call__(self, x: Array) -> Array:
        return linear(x, self.weights(x.shape[-1]), precision=self.precision)

    @nn.compact
    def weights(self, inputs: int) -> Weights:
        """The kernel and bias, to combine several layers in `linear`."""
        if self.is_initializing():
            kernel_init, bias_init = self._initializers(inputs)
            shape, dtype = (inputs, self.features), jnp.dtype(self.dtype)
            return (
                self.param("kernel", kernel_init, shape, dtype),
                self.param("bias", bias_init, shape[1:], dtype),
            )
        # Not `param`, which compares shapes: the kernel may be a `CompactKernel`.
        kernel, bias = (self.get_variable("params", name) for name in ("kernel", "bias"))
        return kernel, bias

    def _initializers(self, fan_in: int):
        if self.scheme == "uniform":
            bound = 1.0 / math.sqrt(fan_in)
            draw = lambda key, shape, dtype: jax.random.uniform(  # noqa: E731
                key, shape, dtype, -bound, bound
            )
            return draw, draw
        return getattr(nn.initializers, self.scheme)(), nn.initializers.zeros_init()
