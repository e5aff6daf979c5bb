"""Weights as 8-bit integers: w ≈ scale_r q with one scale per output row.

Rows of a sparse network have few links, and magnitudes differ between rows far more than within
one; with one scale per row, every row uses the full range -127 .. 127. Biases, activations and
normalizations stay float: this costs 8 bytes per unit and needs no calibration data. 8-bit
activations would add an error of 1/255 of the largest observation, which is too much for tasks with
large velocities.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from rlx2_jax.export.policy import SparsePolicy


class Quantized(NamedTuple):
    """The quantized weights of one layer."""

    values: np.ndarray  # i8[links]
    scales: np.ndarray  # f32[out]; 0 for a row without links


def quantize(policy: SparsePolicy) -> tuple[Quantized, ...]:
    """Round to nearest, layer by layer: |w - scale q| <= scale / 2 = max |row| / 254."""
    quantized = []
    for layer in policy.layers:
        largest = np.zeros(layer.units)
        np.maximum.at(largest, layer.rows, np.abs(layer.values.astype(np.float64)))
        scales = (largest / 127).astype(np.float32)
        # Rows whose scale would underflow in float32 become 0.
        steps = np.where(scales > 0, scales, np.inf).astype(np.float64)[layer.rows]
        values = np.clip(np.rint(layer.values / steps), -127, 127).astype(np.int8)
        quantized.append(Quantized(values, scales))
    return tuple(quantized)


def dequantized(policy: SparsePolicy) -> SparsePolicy:
    """The policy that the quantized one computes, in float."""
    layers = []
    for layer, (values, scales) in zip(policy.layers, quantize(policy)):
        restored = np.repeat(scales, layer.lengths) * values
        layers.append(dataclasses.replace(layer, values=restored.astype(np.float32)))
    return policy.with_layers(layers)
