"""The neutral form of an exported policy: the live links of an actor, on the host, in NumPy.

    x_0 = observation,   x_{l+1} = relu(W_l x_l + b_l),   action = tanh(W_L x_L + b_L) in [-1, 1]

Every W_l is held by its live links, output row by output row. SAC's actor also gives a log σ per
action; the noise-free action tanh(mean) does not need it, so it is left out from the start.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

KINDS = ("td3", "sac")
_LARGEST = float(np.finfo(np.float32).max)
_FEW_ULPS = 4 * float(np.finfo(np.float32).eps)


class PolicyFileError(Exception):
    """Not a policy file, or a damaged one; the message says what is wrong."""


class Layer(NamedTuple):
    """y = W x + b. Links of output r: rowptr[r] .. rowptr[r + 1] - 1, from inputs `cols`."""

    inputs: int
    rowptr: np.ndarray  # i32[out + 1], from 0 to the number of links
    cols: np.ndarray  # i32[links], ascending within a row
    values: np.ndarray  # f32[links]
    bias: np.ndarray  # f32[out]

    @property
    def outputs(self) -> int:
        return len(self.bias)

    @property
    def links(self) -> int:
        return len(self.values)

    @property
    def lengths(self) -> np.ndarray:
        """Links of each output: i32[out]."""
        return np.diff(self.rowptr)

    def dense(self) -> np.ndarray:
        """W as f32[out, in]."""
        weight = np.zeros((self.outputs, self.inputs), np.float32)
        weight[np.repeat(np.arange(self.outputs), self.lengths), self.cols] = self.values
        return weight

    @staticmethod
    def of(weight: np.ndarray, live: np.ndarray, bias: np.ndarray) -> "Layer":
        """The links of `weight` [out, in] where `live` [out, in] is True."""
        rows, cols = np.nonzero(live)
        rowptr = np.concatenate([[0], np.cumsum(live.sum(axis=1))])
        return Layer(
            weight.shape[1],
            rowptr.astype(np.int32),
            cols.astype(np.int32),
            np.asarray(weight, np.float32)[rows, cols],
            np.asarray(bias, np.float32),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class SparsePolicy:
    """A deterministic policy of live links.

    Attributes:
      kind: the algorithm that made it, `td3` or `sac`.
      layers: at least one; the last one's outputs are the actions before tanh.
      low, high: f32[action_dim], the task's action bounds, or None where they are not known.
        `act` stays in [-1, 1]; `scale` goes from there to the bounds.
    """

    kind: str
    layers: tuple[Layer, ...]
    low: np.ndarray | None = None
    high: np.ndarray | None = None

    def __post_init__(self) -> None:
        validate(self)

    @property
    def obs_dim(self) -> int:
        return self.layers[0].inputs

    @property
    def action_dim(self) -> int:
        return self.layers[-1].outputs

    @property
    def sizes(self) -> tuple[int, ...]:
        """Units of each layer, from observation to action."""
        return (self.obs_dim, *(layer.outputs for layer in self.layers))

    @property
    def links(self) -> int:
        return sum(layer.links for layer in self.layers)

    @property
    def dense_bytes(self) -> int:
        """Weights and biases of these sizes without sparsity, as float32."""
        return 4 * sum((i + 1) * o for i, o in pairwise(self.sizes))

    @functools.cached_property
    def _weights(self) -> list[np.ndarray]:
        return [layer.dense().astype(np.float64).T for layer in self.layers]

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        """The same as `act`."""
        return self.act(obs)

    def act(self, obs: np.ndarray) -> np.ndarray:
        """f32[..., act] for observations [..., obs]; the reference of all exported forms.

        Units saturate at the largest float32, so that finite observations give actions in [-1, 1].
        An observation that is not a number gives actions that are not.
        """
        x = np.asarray(obs, np.float64)
        if x.shape[-1:] != (self.obs_dim,):
            raise ValueError(f"observations must be [..., {self.obs_dim}], got {x.shape}")
        for i, (layer, weight) in enumerate(zip(self.layers, self._weights)):
            x = np.clip(x, -_LARGEST, _LARGEST) @ weight + layer.bias
            x = np.maximum(x, 0.0) if i + 1 < len(self.layers) else np.tanh(x)
        return x.astype(np.float32)

    def rounding(self, obs: np.ndarray) -> np.ndarray:
        """How far float32 arithmetic may take actions from `act`: f64[..., act].

        A few units in the last place of every product and sum, carried through the layers. Trained
        policies cancel large terms, so this can be well above the precision of an action.
        """
        x = np.asarray(obs, np.float64)
        error = np.zeros_like(x)
        for i, (layer, weight) in enumerate(zip(self.layers, self._weights)):
            error = (error + _FEW_ULPS * np.abs(x)) @ np.abs(weight)
            error = error + _FEW_ULPS * np.abs(layer.bias)
            x = x @ weight + layer.bias
            x = np.maximum(x, 0.0) if i + 1 < len(self.layers) else x
        return error

    def scale(self, action: np.ndarray) -> np.ndarray:
        """Actions [..., act] in [-1, 1] to the task's bounds."""
        if self.low is None or self.high is None:
            raise ValueError("this policy does not know the bounds of its task's actions")
        centre, half = halves(self.low, self.high)
        return centre + half * action

    def pruned(self) -> "SparsePolicy":
        """The same function with fewer units.

        A hidden unit without live inputs is a constant, relu(b), and moves into the biases of
        the next layer; one that nothing reads is dropped; a link of value 0 is none. Up to the
        rounding of these biases nothing changes. Hidden units are then put in the order of their
        number of links, so that loops over rows of equal length follow one another.
        """
        weights = [layer.dense() for layer in self.layers]
        biases = [layer.bias.astype(np.float64) for layer in self.layers]
        for i in range(len(weights) - 1):
            constant = ~(weights[i] != 0).any(axis=1)
            moved = weights[i + 1][:, constant] * np.maximum(biases[i][constant], 0.0)
            biases[i + 1] += [math.fsum(row) for row in moved]  # the same bits on every CPU
            weights[i + 1][:, constant] = 0.0
        for i in range(len(weights) - 1, 0, -1):
            used = np.flatnonzero((weights[i] != 0).any(axis=0))
            if not len(used):  # nothing depends on the observation; one idle unit keeps the shape
                used = np.zeros(1, np.intp)
            used = used[np.argsort((weights[i - 1][used] != 0).sum(axis=1), kind="stable")]
            weights[i] = weights[i][:, used]
            weights[i - 1], biases[i - 1] = weights[i - 1][used], biases[i - 1][used]
        layers = (Layer.of(w, w != 0, b.astype(np.float32)) for w, b in zip(weights, biases))
        return dataclasses.replace(self, layers=tuple(layers))


def halves(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Centre and half range of action bounds; halved first, as a sum may be infinite."""
    return high / 2 + low / 2, high / 2 - low / 2


def from_actor(
    params: Mapping[str, Mapping[str, Any]],
    masks: Mapping[str, Mapping[str, Any]],
    kind: str,
    *,
    low: Sequence[float] | np.ndarray | None = None,
    high: Sequence[float] | np.ndarray | None = None,
) -> SparsePolicy:
    """The policy of one actor.

    Args:
      params: `{"Dense_l": {"kernel": [in, out], "bias": [out]}}`; values off the mask are ignored.
      masks: the same tree, boolean.
      kind: `td3`, or `sac`, whose outputs are the means and then as many log σ.
      low, high: the task's action bounds, if known.
    """
    names = sorted(params, key=lambda name: int(re.findall(r"\d+$", name)[0]))
    layers = []
    for name in names:
        kernel, bias = (np.asarray(params[name][k], np.float32) for k in ("kernel", "bias"))
        live, kept = (np.asarray(masks[name][k], bool) for k in ("kernel", "bias"))
        layers.append(Layer.of(kernel.T, live.T, np.where(kept, bias, 0)))
    if kind == "sac":
        last = layers[-1]
        if last.outputs % 2:
            raise ValueError(f"a SAC actor has two outputs per action, this one {last.outputs}")
        half = last.outputs // 2
        end = last.rowptr[half]
        layers[-1] = Layer(
            last.inputs,
            last.rowptr[: half + 1],
            last.cols[:end],
            last.values[:end],
            last.bias[:half],
        )
    bounds = [None if x is None else np.asarray(x, np.float32) for x in (low, high)]
    return SparsePolicy(kind, tuple(layers), *bounds)


def validate(policy: SparsePolicy) -> None:
    """Raises ValueError naming the first thing that does not describe a policy."""
    if policy.kind not in KINDS:
        raise ValueError(f"kind is {policy.kind!r}, not one of {KINDS}")
    if not policy.layers:
        raise ValueError("a policy has at least one layer")
    for i, (layer, expected) in enumerate(zip(policy.layers, policy.sizes)):
        _validate_layer(layer, expected, f"layer {i}")
    if (policy.low is None) != (policy.high is None):
        raise ValueError("action bounds need both low and high")
    if policy.low is not None and policy.high is not None:
        for name, bound in (("low", policy.low), ("high", policy.high)):
            _check_array(bound, np.float32, policy.action_dim, f"action {name}")
        if not (policy.low <= policy.high).all():
            raise ValueError("an action's low bound is above its high bound")


def _validate_layer(layer: Layer, inputs: int, where: str) -> None:
    if layer.inputs != inputs or inputs < 1:
        raise ValueError(f"{where} reads {layer.inputs} inputs where there are {inputs}")
    if layer.outputs < 1:
        raise ValueError(f"{where} has no outputs")
    links = len(layer.cols)
    _check_array(layer.rowptr, np.int32, layer.outputs + 1, f"row pointers of {where}")
    _check_array(layer.cols, np.int32, links, f"columns of {where}")
    _check_array(layer.values, np.float32, links, f"values of {where}")
    _check_array(layer.bias, np.float32, layer.outputs, f"biases of {where}")
    if layer.rowptr[0] != 0 or layer.rowptr[-1] != links or (layer.lengths < 0).any():
        raise ValueError(f"row pointers of {where} do not rise from 0 to its {links} links")
    if links and not (layer.cols.min() >= 0 and layer.cols.max() < inputs):
        raise ValueError(f"columns of {where} are not within 0 .. {inputs - 1}")
    row = np.repeat(np.arange(layer.outputs), layer.lengths)
    if (np.diff(row * inputs + layer.cols) <= 0).any():
        raise ValueError(f"columns of {where} are not ascending within each row")


def _check_array(array: np.ndarray, dtype: type, size: int, what: str) -> None:
    if array.dtype != dtype or array.shape != (size,):
        raise ValueError(f"{what}: {array.dtype}{array.shape}, not {np.dtype(dtype)}({size},)")
    if dtype is np.float32 and not np.isfinite(array).all():
        raise ValueError(f"{what} are not all finite")
