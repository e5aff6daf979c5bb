"""The range of observations within which a policy's C file cannot overflow."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx2_jax.export.linear import Linear
from rlx2_jax.export.op import Op
from rlx2_jax.export.ops import AddSaved, LayerNorm, Normalize, Relu, Save
from rlx2_jax.export.policy import SparsePolicy
from rlx2_jax.export.quantize import Quantized, quantize

_LIMIT = 2.0**127  # leaves a factor of 2 for rounding


def safe_range(policy: SparsePolicy, *, int8: bool) -> str:
    """The largest power of two such that observations up to it cause no overflow."""
    coded = quantize(policy) if int8 else ()
    fits = [e for e in range(-126, 127) if not _overflows(policy, coded, 2.0**e)]
    return f"0x1p{fits[-1]}f" if fits else "0.0f"


def _overflows(policy: SparsePolicy, coded: Sequence[Quantized], most: float) -> bool:
    left, saved = iter(coded), []
    for op in policy.ops:
        if isinstance(op, Linear):
            largest, most = _linear(op, next(left, None), most)
        else:
            largest, most = _VECTOR[type(op)](op, most, saved)
        if max(largest, most) >= _LIMIT:
            return True
    return False


def _linear(op: Linear, coded: Quantized | None, most: float) -> tuple[float, float]:
    """The largest intermediate number and the largest result, for inputs up to `most`."""
    weights = np.abs((coded.values if coded else op.values).astype(np.float64))
    sums = np.bincount(op.rows, weights, op.units) * most
    scaled = sums * (coded.scales if coded else 1.0) + np.abs(op.bias)
    return float(sums.max()), float(scaled.max())


def _same(op: Op, most: float, saved: list[float]) -> tuple[float, float]:
    del op, saved
    return most, most


def _normalize(op: Normalize, most: float, saved: list[float]) -> tuple[float, float]:
    del saved
    differences = most + np.abs(op.mean).astype(np.float64)
    return float(differences.max()), float((differences * op.scale).max())


def _layer_norm(op: LayerNorm, most: float, saved: list[float]) -> tuple[float, float]:
    """A sum of n squared differences; the normalized values are within ±√n before `scale`."""
    del saved
    largest = np.sqrt(op.size) * np.abs(op.scale).astype(np.float64) + np.abs(op.bias)
    return op.size * max(most, (2 * most) ** 2), float(largest.max())


def _save(op: Save, most: float, saved: list[float]) -> tuple[float, float]:
    del op
    saved.append(most)
    return most, most


def _add_saved(op: AddSaved, most: float, saved: list[float]) -> tuple[float, float]:
    del op
    return most, most + saved.pop()


_VECTOR: dict[type[Op], Callable[[Any, float, list[float]], tuple[float, float]]] = {
    Relu: _same,
    Normalize: _normalize,
    LayerNorm: _layer_norm,
    Save: _save,
    AddSaved: _add_saved,
}
