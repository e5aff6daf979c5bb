"""Builds policies from an actor's parameters and the steps of its architecture."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlx2_jax.export.linear import Linear
from rlx2_jax.export.op import Op
from rlx2_jax.export.ops import OPS
from rlx2_jax.export.policy import SparsePolicy

_BY_NAME = {op.name: op for op in OPS}


def from_actor(
    params: Mapping[str, Any],
    masks: Mapping[str, Any],
    kind: str,
    *,
    steps: Sequence[tuple[Any, ...]] | None = None,
    heads: int = 1,
    low: Sequence[float] | np.ndarray | None = None,
    high: Sequence[float] | np.ndarray | None = None,
) -> SparsePolicy:
    """The policy of one actor.

    Args:
      params: a tree of layers `{"kernel": [in, out], "bias": [out]}`; values off the mask are
        ignored.
      masks: the same tree, boolean.
      kind: a label, usually the algorithm's name.
      steps: the architecture as tuples of an operation name in `ops` and its arrays;
        `("linear", "block_0/Dense_1")` names a layer by its path in `params`. Default: an MLP of
        the layers in `params`.
      heads: outputs per action. Keeps only the first one, the mean, since the noise-free action is
        tanh(mean).
      low, high: the task's action bounds, if known.
    """
    if steps is None:
        names = sorted(params, key=lambda name: int(re.findall(r"\d+$", name)[0]))
        steps = [step for name in names for step in (("linear", name), ("relu",))][:-1]
    ops = [_op(step, params, masks) for step in steps]
    if ops and isinstance(last := ops[-1], Linear):
        ops[-1] = _first_head(last, heads)
    bounds = [None if x is None else np.asarray(x, np.float32) for x in (low, high)]
    return SparsePolicy(kind, tuple(ops), *bounds)


def _op(step: tuple[Any, ...], params: Mapping[str, Any], masks: Mapping[str, Any]) -> Op:
    name, *arrays = step
    if name not in _BY_NAME:
        raise ValueError(f"there is no operation {name!r:.40}: use one of {', '.join(_BY_NAME)}")
    if name != Linear.name:
        return _BY_NAME[name].make(*arrays)
    for key in arrays[0].split("/"):
        params, masks = params[key], masks[key]
    kernel, bias = (np.asarray(params[k], np.float32) for k in ("kernel", "bias"))
    live, kept = (np.asarray(masks[k], bool) for k in ("kernel", "bias"))
    return Linear.of(kernel.T, live.T, np.where(kept, bias, 0))


def _first_head(layer: Linear, heads: int) -> Linear:
    """The first of `heads` equal parts of the outputs."""
    if layer.units % heads:
        raise ValueError(f"an actor of {heads} outputs per action has {layer.units} outputs")
    units = layer.units // heads
    end = layer.rowptr[units]
    return Linear(
        layer.inputs,
        layer.rowptr[: units + 1],
        layer.cols[:end],
        layer.values[:end],
        layer.bias[:units],
    )
