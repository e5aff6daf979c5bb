"""The operations of an exported policy. Each maps a vector x [..., n] to the next, in NumPy:

    linear      W x + b, with W stored as its live links
    relu        max(x, 0)
    normalize   (x - mean) * scale, of observations
    layer_norm  (x - E[x]) / sqrt(Var[x] + ε) * scale + bias, E and Var over the units
    save        x; pushes it on a stack
    add_saved   x + what the matching `save` pushed: a residual connection

To add an operation, add a class here and one entry to the table of each exporter. Files refer to
operations by their index in `OPS`.
"""

import dataclasses

import numpy as np

from rlx2_jax.export.linear import Linear
from rlx2_jax.export.op import Op, check_array

EPSILONS = (1e-12, 1.0)  # bounds on ε of layer_norm, safe for square roots in float32


@dataclasses.dataclass(frozen=True, eq=False)
class Relu(Op):
    """x = max(x, 0)."""

    name = "relu"

    def run(self, x: np.ndarray, saved: list[np.ndarray]) -> np.ndarray:
        return np.maximum(x, 0.0)


@dataclasses.dataclass(frozen=True, eq=False)
class Normalize(Op):
    """x = (x - mean) * scale.

    Attributes:
      mean: f32[n].
      scale: not negative, the inverse of a standard deviation: f32[n].
    """

    mean: np.ndarray
    scale: np.ndarray
    name = "normalize"

    @property
    def size(self) -> int:
        return len(self.mean)

    def check(self, where: str) -> None:
        check_array(self.mean, np.float32, self.mean.size, f"means of {where}")
        check_array(self.scale, np.float32, self.size, f"scales of {where}")
        if (self.scale < 0).any():
            raise ValueError(f"{where} has a negative scale: it is 1 / standard deviation")

    def run(self, x: np.ndarray, saved: list[np.ndarray]) -> np.ndarray:
        return (x - self.mean) * self.scale.astype(np.float64)


@dataclasses.dataclass(frozen=True, eq=False)
class LayerNorm(Op):
    """x = (x - E x) / √(Var x + ε) * scale + bias.

    Attributes:
      scale: f32[n].
      bias: f32[n].
      epsilon: ε, within `EPSILONS`: f32[].
    """

    scale: np.ndarray
    bias: np.ndarray
    epsilon: np.ndarray
    name = "layer_norm"

    @property
    def size(self) -> int:
        return len(self.scale)

    def check(self, where: str) -> None:
        check_array(self.scale, np.float32, self.scale.size, f"scales of {where}")
        check_array(self.bias, np.float32, self.size, f"biases of {where}")
        low, high = np.array(EPSILONS, np.float32)
        if self.epsilon.shape or not low <= self.epsilon <= high:
            raise ValueError(f"epsilon of {where} is {self.epsilon}, not within {EPSILONS}")

    def run(self, x: np.ndarray, saved: list[np.ndarray]) -> np.ndarray:
        centred, variance = _centred(x)
        return centred / np.sqrt(variance + self.epsilon) * self.scale + self.bias


@dataclasses.dataclass(frozen=True, eq=False)
class Save(Op):
    """Pushes x: the start of a residual connection."""

    name = "save"

    def outputs(self, inputs: int, saved: list[int]) -> int:
        saved.append(inputs)
        return inputs

    def run(self, x: np.ndarray, saved: list[np.ndarray]) -> np.ndarray:
        saved.append(x)
        return x


@dataclasses.dataclass(frozen=True, eq=False)
class AddSaved(Op):
    """x = x + pop: the end of a residual connection."""

    name = "add_saved"

    def outputs(self, inputs: int, saved: list[int]) -> int:
        if not saved:
            raise ValueError("has nothing to add: there is no unmatched save before it")
        if (size := saved.pop()) != inputs:
            raise ValueError(f"adds {size} saved values to {inputs}")
        return inputs

    def run(self, x: np.ndarray, saved: list[np.ndarray]) -> np.ndarray:
        return x + saved.pop()


OPS: tuple[type[Op], ...] = (Linear, Relu, Normalize, LayerNorm, Save, AddSaved)


def _centred(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x - E[x] and Var[x] over the last axis, which is kept."""
    centred = x - x.mean(-1, keepdims=True)
    return centred, (centred * centred).mean(-1, keepdims=True)
