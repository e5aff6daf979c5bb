"""Policies as `.npz` files, read back with every array checked.

A file holds `sizes` (units per layer), `kind` (its number in `KINDS`), and of all layers one
after the other `lengths` (links of each unit), `cols`, `values` and `bias`; `bounds` [2, act]
where they are known; and `digest`, the SHA-256 of all of them. `numpy_runtime.py` runs it alone.
"""

import hashlib
from itertools import pairwise
from pathlib import Path

import numpy as np

from rlx2_jax import archive
from rlx2_jax.export.policy import KINDS, Layer, PolicyFileError, SparsePolicy

RUNTIME = Path(__file__).with_name("numpy_runtime.py")
MOST_WEIGHTS = 2**26  # of a layer without sparsity, which takes 0.5 GB in `SparsePolicy.act`
_MEMBERS = ("bias", "cols", "digest", "kind", "lengths", "sizes", "values")


def unsigned(largest: int) -> np.dtype:
    """The smallest unsigned type that holds `largest`."""
    return np.min_scalar_type(max(int(largest), 0))


def save(policy: SparsePolicy, path: Path) -> None:
    """Writes the policy; an existing file is replaced."""
    join = np.concatenate
    lengths = join([layer.lengths for layer in policy.layers])
    cols = join([layer.cols for layer in policy.layers])
    arrays = {
        "sizes": np.array(policy.sizes, np.int32),
        "kind": np.array([KINDS.index(policy.kind)], np.uint8),
        "lengths": lengths.astype(unsigned(lengths.max())),
        "cols": cols.astype(unsigned(max(policy.sizes[:-1]) - 1)),
        "values": join([layer.values for layer in policy.layers]),
        "bias": join([layer.bias for layer in policy.layers]),
    }
    if policy.low is not None and policy.high is not None:
        arrays["bounds"] = np.stack([policy.low, policy.high])
    digest = np.frombuffer(_digest(arrays), np.uint8)
    archive.write(Path(path), {**arrays, "digest": digest}, compressed=False)


def load(path: Path) -> SparsePolicy:
    """The policy that `save` wrote. Nothing in the file is executed.

    Raises:
      PolicyFileError: names what is wrong with the file.
    """
    arrays = _read(Path(path))
    digest = arrays.pop("digest")
    if digest.tobytes() != _digest(arrays):
        raise PolicyFileError(f"{path}: the contents do not have their checksum")
    try:
        return _policy(arrays)
    except ValueError as error:
        raise PolicyFileError(f"{path}: {error}") from error


def _digest(arrays: dict[str, np.ndarray]) -> bytes:
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}".encode())
        found.update(arrays[name].tobytes())
    return found.digest()


def _read(path: Path) -> dict[str, np.ndarray]:
    """All arrays of the file."""
    try:
        arrays = archive.read(path, "a whole policy file", compressed=False)
    except ValueError as error:
        raise PolicyFileError(str(error)) from error
    missing = [name for name in _MEMBERS if name not in arrays]
    extra = sorted(set(arrays) - {*_MEMBERS, "bounds"})
    if missing or extra:
        raise PolicyFileError(f"{path}: arrays missing {missing}, unknown {extra}")
    return arrays


def _policy(arrays: dict[str, np.ndarray]) -> SparsePolicy:
    """The policy of arrays that may be anything; `SparsePolicy` checks each layer."""
    sizes, kind, lengths, cols = (arrays[k] for k in ("sizes", "kind", "lengths", "cols"))
    values, bias = arrays["values"], arrays["bias"]
    if sizes.dtype != np.int32 or sizes.ndim != 1 or len(sizes) < 2 or sizes.min() < 1:
        raise ValueError(
            f"sizes must be positive int32[layers + 1], got {sizes.dtype}{sizes.shape}"
        )
    if kind.dtype != np.uint8 or kind.shape != (1,) or kind[0] >= len(KINDS):
        raise ValueError(f"kind must be one of 0 .. {len(KINDS) - 1}")
    units = int(sizes[1:].sum(dtype=np.int64))
    if lengths.dtype.kind != "u" or lengths.shape != (units,) or bias.shape != (units,):
        raise ValueError(f"lengths and bias must have one entry for each of {units} units")
    for i, (inputs, outputs) in enumerate(pairwise(sizes.tolist())):
        if inputs * outputs > MOST_WEIGHTS:
            raise ValueError(
                f"layer {i} is {inputs} x {outputs}, at most {MOST_WEIGHTS:,} weights are read"
            )
    links = sum(lengths.tolist())
    if links >= 2**31 or cols.shape != (links,) or values.shape != (links,):
        raise ValueError(f"cols and values must have one entry for each of {links} links")
    if cols.dtype.kind != "u" or (links and cols.max() >= 2**31):
        raise ValueError("cols must be unsigned and below 2**31")
    layers, unit, link = [], 0, 0
    for inputs, outputs in zip(sizes[:-1].tolist(), sizes[1:].tolist()):
        rowptr = np.concatenate([[0], np.cumsum(lengths[unit : unit + outputs], dtype=np.int64)])
        part = slice(link, link + int(rowptr[-1]))
        layers.append(
            Layer(
                inputs,
                rowptr.astype(np.int32),
                cols[part].astype(np.int32),
                values[part],
                bias[unit : unit + outputs],
            )
        )
        unit, link = unit + outputs, part.stop
    bounds: list[np.ndarray | None] = [None, None]
    if "bounds" in arrays:
        if arrays["bounds"].shape != (2, int(sizes[-1])):
            raise ValueError(f"bounds must be [2, {sizes[-1]}], got {arrays['bounds'].shape}")
        bounds = list(arrays["bounds"])
    return SparsePolicy(KINDS[kind[0]], tuple(layers), *bounds)
