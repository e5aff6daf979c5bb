"""SimBa (Lee et al., 2024): residual blocks with layer normalization on normalized observations."""

from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from rlx2_jax.networks import normalize
from rlx2_jax.networks.base import Architecture, Sizes
from rlx2_jax.networks.linear import Linear, linear
from rlx2_jax.types import Array, Params

EXPANSION = 4  # hidden units of a block, as a multiple of its width
EPSILON = 1e-6  # of layer normalization


class Block(nn.Module):
    """x + W₂ relu(W₁ LayerNorm(x)), with 4 · width hidden units."""

    width: int
    dtype: str = "float32"
    precision: str = "float32"

    def setup(self) -> None:
        self.norm = nn.LayerNorm(epsilon=EPSILON, param_dtype=jnp.dtype(self.dtype))
        options = ("he_normal", self.dtype, self.precision)
        self.expand = Linear(EXPANSION * self.width, *options)
        self.reduce = Linear(self.width, *options)

    def __call__(self, x: Array) -> Array:
        hidden = EXPANSION * self.width
        weights = self.expand.weights(self.width), self.reduce.weights(hidden)
        return x + linear(self.norm(x), *weights, precision=self.precision)


class SimBa(Architecture):
    """Running normalization of observations → Linear → residual blocks → LayerNorm → Linear.

    Initialized as in the paper: orthogonal, He normal in blocks, with zero biases.

    Attributes:
      outputs: size of the output.
      width: units of each block.
      blocks: residual blocks.
      observations: how many of the leading inputs are normalized.
      dtype: of the parameters.
      precision: of matrix products.
    """

    outputs: int
    width: int
    blocks: int
    observations: int
    dtype: str = "float32"
    precision: str = "float32"

    defaults: ClassVar = {"width": 512, "blocks": 2}  # the paper's critic

    @classmethod
    def build(cls, sizes: Sizes) -> "SimBa":
        width, blocks = int(sizes.width or 0), int(sizes.blocks or 0)
        return cls(sizes.outputs, width, blocks, sizes.observations, sizes.dtype, sizes.precision)

    def setup(self) -> None:
        self.normalize = normalize.RunningNorm(self.observations, self.dtype)
        options = (self.dtype, self.precision)
        self.embed = Linear(self.width, "orthogonal", *options)
        self.hidden = [Block(self.width, *options) for _ in range(self.blocks)]
        self.norm = nn.LayerNorm(epsilon=EPSILON, param_dtype=jnp.dtype(self.dtype))
        self.output = Linear(self.outputs, "orthogonal", *options)

    def __call__(self, x: Array) -> Array:
        x = self.embed(self.normalize(x))
        for block in self.hidden:
            x = block(x)
        return self.output(self.norm(x))

    def observe(self, obs: Array) -> None:
        """Updates the running statistics."""
        self.normalize.observe(obs)

    @nn.nowrap
    def hidden_units(self) -> tuple[tuple[str, str], ...]:
        return tuple((f"hidden_{i}/expand", f"hidden_{i}/reduce") for i in range(self.blocks))

    @nn.nowrap
    def steps(self, params: Params, stats: Params | None = None) -> list[tuple]:
        if stats is None:
            raise ValueError("SimBa normalizes observations: give the statistics of the network")

        def norm(layer: Params) -> tuple:
            scale, bias = (np.asarray(layer[name], np.float32) for name in ("scale", "bias"))
            return "layer_norm", scale, bias, EPSILON

        steps = [normalize.step(stats["normalize"]), ("linear", "embed")]
        for i in range(self.blocks):
            name = f"hidden_{i}"
            steps += [("save",), norm(params[name]["norm"]), ("linear", f"{name}/expand")]
            steps += [("relu",), ("linear", f"{name}/reduce"), ("add_saved",)]
        return [*steps, norm(params["norm"]), ("linear", "output")]
