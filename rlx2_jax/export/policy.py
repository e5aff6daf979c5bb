"""The format-independent exported policy: a program of operations on one vector, in NumPy.

    x = observation,   x = op(x) for each op of the program,   action = tanh(x) in [-1, 1]

An MLP is linear, relu, ..., linear; other architectures add normalization and residual
connections, see `ops`. Every exporter takes this class as input.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from rlx2_jax.export.linear import Linear
from rlx2_jax.export.op import Op, check_array
from rlx2_jax.export.ops import Relu

MOST_OPS = 1000
_LARGEST = float(np.finfo(np.float32).max)
_FEW_ULPS = 4 * float(np.finfo(np.float32).eps)
_TRIALS, _MARGIN = 2, 4.0  # of `rounding`


class PolicyFileError(Exception):
    """Not a policy file, or a damaged one; the message describes the problem."""


@dataclasses.dataclass(frozen=True, eq=False)
class SparsePolicy:
    """A deterministic sparse policy.

    Attributes:
      kind: a label, usually the algorithm that trained it.
      ops: the program; the last one is linear, and its outputs are the actions before tanh.
      low, high: f32[action_dim], the task's action bounds, or None if unknown. `act` returns
        actions in [-1, 1]; `scale` maps them to the bounds.
    """

    kind: str
    ops: tuple[Op, ...]
    low: np.ndarray | None = None
    high: np.ndarray | None = None

    def __post_init__(self) -> None:
        validate(self)

    @functools.cached_property
    def layers(self) -> tuple[Linear, ...]:
        """The linear operations."""
        return tuple(op for op in self.ops if isinstance(op, Linear))

    @property
    def obs_dim(self) -> int:
        return next(op.size for op in self.ops if op.size is not None)

    @property
    def action_dim(self) -> int:
        return self.layers[-1].units

    @property
    def sizes(self) -> tuple[int, ...]:
        """Units of the observation and of each linear operation."""
        return (self.obs_dim, *(layer.units for layer in self.layers))

    @property
    def links(self) -> int:
        return sum(layer.links for layer in self.layers)

    @property
    def dense_bytes(self) -> int:
        """Bytes of dense float32 weights and biases of these sizes."""
        return 4 * sum((x.inputs + 1) * x.units for x in self.layers)

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        """The same as `act`."""
        return self.act(obs)

    def act(self, obs: np.ndarray) -> np.ndarray:
        """f32[..., act] for observations [..., obs]; the reference for all file formats.

        Units saturate at the largest float32, so finite observations give actions in [-1, 1]. NaN
        observations give NaN actions.
        """
        return self._run(obs, lambda x: x).astype(np.float32)

    def rounding(self, obs: np.ndarray) -> np.ndarray:
        """The possible error of float32 arithmetic compared to `act`: f64[act].

        Measured on observations [batch, obs] by perturbing every intermediate number by a few ulps
        in random directions. Trained policies cancel large terms, so this can be well above the
        precision of an action.
        """
        rng = np.random.default_rng(0)
        exact, largest = self.act(obs), np.zeros(self.action_dim)
        for _ in range(_TRIALS):
            noisy = lambda x: x * (1 + _FEW_ULPS * rng.choice([-1.0, 1.0], x.shape))  # noqa: E731
            error = np.abs(self._run(obs, noisy) - exact).max(axis=0)
            largest = np.maximum(largest, error)
        return _MARGIN * largest

    def _run(self, obs: np.ndarray, each: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Actions in float64; `each` is applied to the observation and after each operation."""
        x, saved = np.asarray(obs, np.float64), []
        if x.shape[-1:] != (self.obs_dim,):
            raise ValueError(f"observations must be [..., {self.obs_dim}], got {x.shape}")
        x = each(_saturated(x))
        for op in self.ops:
            x = each(_saturated(op.run(x, saved)))
        return np.tanh(x)

    def scale(self, action: np.ndarray) -> np.ndarray:
        """Maps actions [..., act] in [-1, 1] to the task's bounds."""
        if self.low is None or self.high is None:
            raise ValueError("this policy has no action bounds")
        centre, half = halves(self.low, self.high)
        return centre + half * action

    def pruned(self) -> "SparsePolicy":
        """The same function with fewer units, up to rounding of biases.

        Removes hidden units between two linear operations with at most a ReLU in between; other
        operations need the whole vector. A hidden unit without live inputs is a constant, relu(b),
        which moves to the biases of the next layer; unused units and links of value 0 are removed.
        Hidden units are then sorted by their number of links, so that rows of equal length are
        adjacent.
        """
        return _pruned(self)

    def with_layers(self, layers: Sequence[Linear]) -> "SparsePolicy":
        """The same program with its linear operations replaced."""
        rest = iter(layers)
        ops = (next(rest) if isinstance(op, Linear) else op for op in self.ops)
        return dataclasses.replace(self, ops=tuple(ops))


def _saturated(x: np.ndarray) -> np.ndarray:
    return np.clip(x, -_LARGEST, _LARGEST)


def mlp(layers: Sequence[Linear]) -> tuple[Op, ...]:
    """The program of an MLP: ReLU between its layers."""
    relu = Relu()
    return tuple(op for layer in layers for op in (layer, relu))[:-1]


def _pruned(policy: SparsePolicy) -> SparsePolicy:
    weights = [layer.dense() for layer in policy.layers]
    biases = [layer.bias.astype(np.float64) for layer in policy.layers]
    hidden = _hidden(policy)
    for i, relu in hidden.items():
        constant = ~(weights[i] != 0).any(axis=1)
        value = np.maximum(biases[i][constant], 0.0) if relu else biases[i][constant]
        moved = weights[i + 1][:, constant] * value
        biases[i + 1] += [math.fsum(row) for row in moved]  # the same bits on every CPU
        weights[i + 1][:, constant] = 0.0
    for i in reversed(hidden):
        used = np.flatnonzero((weights[i + 1] != 0).any(axis=0))
        if not len(used):  # the output is constant; keep one unit for a valid shape
            used = np.zeros(1, np.intp)
        used = used[np.argsort((weights[i][used] != 0).sum(axis=1), kind="stable")]
        weights[i + 1] = weights[i + 1][:, used]
        weights[i], biases[i] = weights[i][used], biases[i][used]
    return policy.with_layers([Linear.of(w, w != 0, b) for w, b in zip(weights, biases)])


def _hidden(policy: SparsePolicy) -> dict[int, bool]:
    """Layers whose outputs only the next layer reads, and whether there is a ReLU in between."""
    at = [i for i, op in enumerate(policy.ops) if isinstance(op, Linear)]
    between = [policy.ops[a + 1 : b] for a, b in pairwise(at)]
    return {
        i: bool(ops) for i, ops in enumerate(between) if all(isinstance(op, Relu) for op in ops)
    }


def halves(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Centre and half range of action bounds; halves first, since sums may overflow."""
    return high / 2 + low / 2, high / 2 - low / 2


def validate(policy: SparsePolicy) -> None:
    """Raises ValueError for the first invalid property."""
    if not re.fullmatch(r"[\w.+-]{1,40}", policy.kind, re.ASCII):
        raise ValueError(f"kind is {policy.kind!r:.60}: use 1 to 40 letters, digits, _ . + or -")
    _validate_program(policy.ops)
    bounds: list[Any] = [policy.low, policy.high]
    if (policy.low is None) != (policy.high is None):
        raise ValueError("action bounds need both low and high")
    if policy.low is not None:
        for name, bound in zip(("low", "high"), bounds):
            check_array(bound, np.float32, policy.action_dim, f"action {name}")
        if not (bounds[0] <= bounds[1]).all():
            raise ValueError("an action's low bound is above its high bound")


def _validate_program(ops: tuple[Op, ...]) -> None:
    """Checks each operation, then the sizes and the stack through the program."""
    if not ops or not isinstance(ops[-1], Linear):
        raise ValueError("a policy ends with a linear operation, whose outputs are the actions")
    if len(ops) > MOST_OPS:
        raise ValueError(f"a policy of {len(ops):,} operations: at most {MOST_OPS:,} are allowed")
    for i, op in enumerate(ops):
        op.check(_where(ops, i))
    size = next(op.size for op in ops if op.size is not None)
    saved: list[int] = []
    for i, op in enumerate(ops):
        try:
            size = op.outputs(size, saved)
        except ValueError as error:
            raise ValueError(f"{_where(ops, i)} {error}") from error
    if saved:
        raise ValueError(f"{len(saved)} saved value(s) are never added")


def _where(ops: tuple[Op, ...], i: int) -> str:
    """`layer l` for the l-th linear operation, `op i (name)` for others."""
    if isinstance(ops[i], Linear):
        return f"layer {sum(isinstance(op, Linear) for op in ops[:i])}"
    return f"op {i} ({ops[i].name})"
