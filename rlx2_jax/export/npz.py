"""Policies as `.npz` files; reading validates every array.

| array | contents |
| --- | --- |
| `version` | u8[1], 2 |
| `kind` | u8[], the label in ASCII |
| `ops` | u8[ops], the program as indices into `ops.OPS` |
| `sizes` | i32[layers + 1], units of the observation and of each linear operation |
| `lengths`, `bias` | number of links and bias of each unit, layer by layer |
| `cols`, `values` | input and f32 weight of each link, in the same order |
| `norms` | f32[], the arrays of each normalize and layer_norm, in order |
| `bounds` | f32[2, act], if known |
| `digest` | u8[32], the SHA-256 of all other arrays |

Version 1 had no `version`, `ops` and `norms`: it stored MLPs, and `kind` was 0 (td3) or 1 (sac).
`numpy_runtime.py` runs both versions without this package.
"""

import hashlib
from pathlib import Path

import numpy as np

from rlx2_jax import archive
from rlx2_jax.export.linear import Linear
from rlx2_jax.export.op import Op
from rlx2_jax.export.ops import OPS, LayerNorm, Normalize
from rlx2_jax.export.policy import MOST_OPS, PolicyFileError, SparsePolicy

VERSION = 2
RUNTIME = Path(__file__).with_name("numpy_runtime.py")
MOST_WEIGHTS = 2**26  # of all layers when dense, which take 0.5 GB in `SparsePolicy.act`
_LINKS = ("lengths", "cols", "values", "bias")
_MEMBERS = {*_LINKS, "digest", "kind", "norms", "ops", "sizes", "version"}


def unsigned(largest: int) -> np.dtype:
    """The smallest unsigned type that holds `largest`."""
    return np.min_scalar_type(max(int(largest), 0))


def save(policy: SparsePolicy, path: Path) -> None:
    """Writes the policy; replaces an existing file."""
    join = np.concatenate
    lengths = join([layer.lengths for layer in policy.layers])
    cols = join([layer.cols for layer in policy.layers])
    norms = [np.zeros(0, np.float32)]
    for op in policy.ops:
        norms += [np.atleast_1d(getattr(op, field)) for field in _NORMS.get(type(op), ())]
    arrays = {
        "version": np.array([VERSION], np.uint8),
        "kind": np.frombuffer(policy.kind.encode("ascii"), np.uint8),
        "ops": np.array([OPS.index(type(op)) for op in policy.ops], np.uint8),
        "sizes": np.array(policy.sizes, np.int32),
        "lengths": lengths.astype(unsigned(lengths.max())),
        "cols": cols.astype(unsigned(max(layer.inputs for layer in policy.layers) - 1)),
        "values": join([layer.values for layer in policy.layers]),
        "bias": join([layer.bias for layer in policy.layers]),
        "norms": join(norms),
    }
    if policy.low is not None and policy.high is not None:
        arrays["bounds"] = np.stack([policy.low, policy.high])
    digest = np.frombuffer(_digest(arrays), np.uint8)
    archive.write(Path(path), {**arrays, "digest": digest}, compressed=False)


# The fields of normalizations in `norms`: one entry per unit each, a single one for ε.
_NORMS: dict[type[Op], tuple[str, ...]] = {
    Normalize: ("mean", "scale"),
    LayerNorm: ("scale", "bias", "epsilon"),
}


def load(path: Path) -> SparsePolicy:
    """Reads a file written by `save`. Executes no code from it.

    Raises:
      PolicyFileError: describes the problem with the file.
    """
    arrays = _read(Path(path))
    digest = arrays.pop("digest")
    if digest.tobytes() != _digest(arrays):
        raise PolicyFileError(f"{path}: the contents do not match their checksum")
    try:
        return _policy(arrays if "version" in arrays else _from_version_1(arrays))
    except ValueError as error:
        raise PolicyFileError(f"{path}: {error}") from error


def _digest(arrays: dict[str, np.ndarray]) -> bytes:
    hashed = hashlib.sha256()
    for name in sorted(arrays):
        hashed.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}".encode())
        hashed.update(arrays[name].tobytes())
    return hashed.digest()


def _read(path: Path) -> dict[str, np.ndarray]:
    """All arrays of the file."""
    try:
        arrays = archive.read(path, "a whole policy file", compressed=False)
    except ValueError as error:
        raise PolicyFileError(str(error)) from error
    version = arrays.get("version")
    if version is not None and version.tolist() != [VERSION]:
        raise PolicyFileError(
            f"{path} has format {version.tolist()!s:.40}, this version reads 1 and {VERSION}: "
            f"export the policy again"
        )
    members = _MEMBERS if version is not None else _MEMBERS - {"version", "ops", "norms"}
    missing, extra = sorted(members - set(arrays)), sorted(set(arrays) - members - {"bounds"})
    if missing or extra:
        raise PolicyFileError(f"{path}: arrays missing {missing}, unknown {extra}")
    return arrays


def _from_version_1(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Converts version 1 to version 2."""
    kinds = {0: b"td3", 1: b"sac"}
    kind = arrays["kind"]
    if kind.dtype != np.uint8 or kind.shape != (1,) or int(kind[0]) not in kinds:
        raise ValueError("kind must be 0 or 1 in a file of version 1")
    count = max(arrays["sizes"].size - 1, 1)
    return arrays | {
        "kind": np.frombuffer(kinds[int(kind[0])], np.uint8),
        "ops": np.array(([0, 1] * count)[:-1], np.uint8),  # linear, relu, ..., linear
        "norms": np.zeros(0, np.float32),
    }


class _Cut:
    """Takes consecutive parts of an array."""

    def __init__(self, array: np.ndarray):
        self._rest = array

    def __call__(self, count: int) -> np.ndarray:
        part, self._rest = self._rest[:count], self._rest[count:]
        return part

    @property
    def left(self) -> int:
        return len(self._rest)


def _policy(arrays: dict[str, np.ndarray]) -> SparsePolicy:
    """Builds a policy from untrusted arrays; `SparsePolicy` checks each operation."""
    kind, codes, sizes = arrays["kind"], arrays["ops"], arrays["sizes"]
    if kind.dtype != np.uint8 or kind.ndim != 1:
        raise ValueError(f"kind must be uint8[letters], got {kind.dtype}{kind.shape}")
    if codes.dtype != np.uint8 or codes.ndim != 1 or not 0 < codes.size <= MOST_OPS:
        raise ValueError(f"ops must be uint8[1 .. {MOST_OPS}], got {codes.dtype}{codes.shape}")
    if codes.max() >= len(OPS):
        raise ValueError(f"there is no operation {codes.max()}: they are 0 .. {len(OPS) - 1}")
    if sizes.dtype != np.int32 or sizes.ndim != 1 or len(sizes) < 2 or sizes.min() < 1:
        raise ValueError(
            f"sizes must be positive int32[layers + 1], got {sizes.dtype}{sizes.shape}"
        )
    if (codes == OPS.index(Linear)).sum() != len(sizes) - 1:
        raise ValueError(f"sizes must be of the observation and of each linear op in {codes}")
    _check_links(arrays, sizes)
    norms = arrays["norms"]
    if norms.dtype != np.float32 or norms.ndim != 1:
        raise ValueError(f"norms must be float32[values], got {norms.dtype}{norms.shape}")
    cuts, units = {name: _Cut(arrays[name]) for name in (*_LINKS, "norms")}, sizes.tolist()
    weights, size, ops = 0, units.pop(0), []
    for code in codes.tolist():
        made = OPS[code]
        if made is Linear:
            inputs, size = size, units.pop(0)
            weights += inputs * size
            if weights > MOST_WEIGHTS:
                raise ValueError(
                    f"layers up to {inputs} x {size} have {weights:,} dense weights: at most "
                    f"{MOST_WEIGHTS:,} are allowed"
                )
            ops.append(_linear(inputs, size, cuts))
        else:
            fields = _NORMS.get(made, ())
            ops.append(made(*(_norm(cuts["norms"], name, size) for name in fields)))
    if cuts["norms"].left:
        raise ValueError(f"norms has {cuts['norms'].left} entries too many")
    bounds: list[np.ndarray | None] = [None, None]
    if "bounds" in arrays:
        if arrays["bounds"].shape != (2, size):
            raise ValueError(f"bounds must be [2, {size}], got {arrays['bounds'].shape}")
        bounds = list(arrays["bounds"])
    return SparsePolicy(kind.tobytes().decode("ascii", "replace"), tuple(ops), *bounds)


def _check_links(arrays: dict[str, np.ndarray], sizes: np.ndarray) -> None:
    """Checks the numbers of units and links before allocating memory for them."""
    lengths, cols, values, bias = (arrays[name] for name in _LINKS)
    units = int(sizes[1:].sum(dtype=np.int64))
    if lengths.dtype.kind != "u" or lengths.shape != (units,) or bias.shape != (units,):
        raise ValueError(f"lengths and bias must have one entry for each of {units} units")
    links = sum(lengths.tolist())
    if links >= 2**31 or cols.shape != (links,) or values.shape != (links,):
        raise ValueError(f"cols and values must have one entry for each of {links} links")
    if cols.dtype.kind != "u" or (links and cols.max() >= 2**31):
        raise ValueError("cols must be unsigned and below 2**31")


def _linear(inputs: int, outputs: int, cuts: dict[str, _Cut]) -> Linear:
    rowptr = np.concatenate([[0], np.cumsum(cuts["lengths"](outputs), dtype=np.int64)])
    links = int(rowptr[-1])
    return Linear(
        inputs,
        rowptr.astype(np.int32),
        cuts["cols"](links).astype(np.int32),
        cuts["values"](links),
        cuts["bias"](outputs),
    )


def _norm(cut: _Cut, name: str, size: int) -> np.ndarray:
    count = 1 if name == "epsilon" else size
    if cut.left < count:
        raise ValueError(f"norms has {cut.left} entries where {count} should follow")
    return cut(count).reshape(() if name == "epsilon" else (size,))
