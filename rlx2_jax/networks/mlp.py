"""The paper's networks: multilayer perceptrons."""

from itertools import pairwise
from typing import ClassVar

import flax.linen as nn

from rlx2_jax.networks.base import Architecture, Layers, Sizes
from rlx2_jax.networks.linear import Linear
from rlx2_jax.sparse import accounting
from rlx2_jax.types import Array, Params


class MLP(Architecture):
    """Linear layers `Dense_0`, `Dense_1`, ... with ReLU between them.

    Attributes:
      features: outputs of each layer.
      scheme: weight initialization, see `Linear`: TD3 uses `uniform`, SAC `orthogonal`.
      dtype: of the parameters.
      precision: of matrix products.
    """

    features: tuple[int, ...]
    scheme: str = "uniform"
    dtype: str = "float32"
    precision: str = "float32"

    defaults: ClassVar = {"hidden": (256, 256)}
    chain: ClassVar[bool] = True
    narrows: ClassVar[bool] = True

    @classmethod
    def build(cls, sizes: Sizes) -> "MLP":
        features = (*(sizes.hidden or ()), sizes.outputs)
        return cls(features, sizes.scheme, sizes.dtype, sizes.precision)

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for i, size in enumerate(self.features):
            fields = (size, self.scheme, self.dtype, self.precision)
            x = Linear(*fields, name=f"Dense_{i}")(x)
            x = nn.relu(x) if i + 1 < len(self.features) else x
        return x

    @nn.nowrap
    def layers(self, inputs: int) -> Layers:
        shapes = pairwise((inputs, *self.features))
        return tuple((f"Dense_{i}", shape) for i, shape in enumerate(shapes))

    @nn.nowrap
    def hidden_units(self) -> tuple[tuple[str, str], ...]:
        return tuple(pairwise(f"Dense_{i}" for i in range(len(self.features))))

    @nn.nowrap
    def steps(self, params: Params, stats: Params | None = None) -> list[tuple]:
        del params, stats
        steps: list[tuple] = []
        for i in range(len(self.features)):
            steps += [("linear", f"Dense_{i}"), ("relu",)]
        return steps[:-1]

    @nn.nowrap
    def narrowed(self, width: int) -> "MLP":
        *hidden, last = self.features
        return self.clone(features=(*(min(h, width) for h in hidden), last))

    @nn.nowrap
    def tiny_width(self, inputs: int, sparsity: float) -> int:
        *hidden, last = self.features
        return accounting.tiny_width(inputs, last, hidden, sparsity)
