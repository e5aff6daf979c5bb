"""Atomically written NumPy archives (`.npz`), with a reader that is safe for untrusted files.

`np.load` allocates whatever memory an array's header claims, and raises many types of exceptions on
damaged files. This module checks sizes against the file before allocating memory, never unpickles,
and raises only ValueErrors that name the file.
"""

import io
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rlx2_jax import files

MOST_BYTES = 2**30  # of all arrays of a file
_MOST_ARRAYS = 10_000
_HEADER = 4096  # bytes; NumPy writes 128 for arrays of numbers


def read(
    path: Path,
    what: str = "a NumPy archive",
    *,
    most_bytes: int = MOST_BYTES,
    compressed: bool = True,
) -> dict[str, np.ndarray]:
    """All arrays of a file, by name.

    Args:
      what: the expected kind of file, for messages.
      most_bytes: limit on the unpacked size, since a small file may unpack to any size.
      compressed: whether members may be compressed.

    Raises:
      ValueError: the file cannot be read, is damaged, too large, or contains anything but arrays of
        numbers.
    """
    try:
        if path.exists() and not path.is_file():
            raise OSError("it is not a regular file")
        with zipfile.ZipFile(path) as file:
            return _arrays(file, most_bytes, compressed)
    except FileNotFoundError:
        raise ValueError(f"{path} cannot be read: it does not exist") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # zipfile, zlib and NumPy raise many types on damaged bytes
        text = str(error).strip().split("\n")[0] or type(error).__name__
        raise ValueError(f"{path} is not {what}: {text:.300}") from error


def write(path: Path, arrays: Mapping[str, np.ndarray], *, compressed: bool = True) -> None:
    """Writes a file atomically; creates its folder if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_bytes(path, to_bytes(arrays, compressed=compressed))


def to_bytes(arrays: Mapping[str, np.ndarray], *, compressed: bool = True) -> bytes:
    """The contents of an archive."""
    stream, save = io.BytesIO(), np.savez_compressed if compressed else np.savez
    save(stream, allow_pickle=False, **arrays)
    return stream.getvalue()


def _arrays(file: zipfile.ZipFile, most_bytes: int, compressed: bool) -> dict[str, np.ndarray]:
    members = file.infolist()
    if len(members) > _MOST_ARRAYS:
        raise ValueError(f"it claims {len(members):,} arrays, at most {_MOST_ARRAYS:,} are read")
    claimed = sum(info.file_size for info in members)
    if claimed > most_bytes:
        raise ValueError(f"it claims {claimed:,} bytes, at most {most_bytes:,} are read")
    arrays: dict[str, np.ndarray] = {}
    for info in members:
        name = info.filename.removesuffix(".npy")
        if name in arrays or name == info.filename:
            raise ValueError(f"member {info.filename!r} is a duplicate, or not an array")
        if not compressed and info.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"member {info.filename!r} is compressed")
        arrays[name] = _array(file, info)
    return arrays


def _array(file: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """Reads one array: first its header, then the data, which must have the announced size."""
    with file.open(info) as stream:
        head = io.BytesIO(stream.read(_HEADER))
        if np.lib.format.read_magic(head) != (1, 0):
            raise ValueError(f"{info.filename!r} has a format version other than 1.0")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(head)
        if dtype.kind not in "biuf" or any(n < 0 for n in shape):
            raise ValueError(f"{info.filename!r} is {dtype} of shape {shape}, not plain numbers")
        count = math.prod(shape)
        size = count * dtype.itemsize
        if size != info.file_size - head.tell():
            raise ValueError(
                f"{info.filename!r} has an array of shape {shape} in {info.file_size:,} bytes"
            )
        data = head.read() + stream.read(size + 1)  # + 1: reading to the end verifies the CRC
    if len(data) != size:
        raise ValueError(f"{info.filename!r} is truncated")
    return np.frombuffer(data, dtype, count).reshape(shape, order="F" if fortran else "C").copy()
