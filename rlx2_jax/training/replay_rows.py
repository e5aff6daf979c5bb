"""Reads and writes replay rows in blocks, since a full copy may not fit in memory."""

import io
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

_BLOCK = 1 << 24  # bytes of rows copied at a time


def blocks(ring_array: jax.Array, begin: int, end: int) -> Iterator[bytes]:
    """Rows `begin` to `end` of `[lanes, ring + 1, ...]` as an .npy file `[rows, lanes, ...]`."""
    lanes, ring, *rest = ring_array.shape
    ring -= 1  # the last row is scratch
    header = {"descr": ring_array.dtype.str, "fortran_order": False}
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {**header, "shape": (end - begin, lanes, *rest)})
    yield stream.getvalue()
    block = max(1, _BLOCK // (ring_array.nbytes // (ring + 1)))
    for start in range(begin, end, block):
        rows = np.arange(start, min(start + block, end)) % ring
        yield np.moveaxis(np.asarray(jnp.take(ring_array, rows, axis=1)), 1, 0).tobytes()


def _put_rows(ring_array: jax.Array, values: jax.Array, row: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(ring_array, values, row, axis=1)


_put = jax.jit(_put_rows, donate_argnums=0)


def fill(ring_array: jax.Array, path: Path, begin: int) -> jax.Array:
    """Writes the rows of a file, the first being number `begin`, into the ring, in place."""
    ring = ring_array.shape[1] - 1
    block = max(1, _BLOCK // (ring_array.nbytes // (ring + 1)))
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        row, end = begin, begin + shape[0]
        each = int(np.prod(shape[1:]))
        while row < end:
            count = min(block, end - row, ring - row % ring)  # do not cross the ring's end
            values = np.fromfile(file, dtype, count * each).reshape(count, *shape[1:])
            values = np.ascontiguousarray(np.moveaxis(values, 0, 1))
            ring_array = _put(ring_array, values, np.int32(row % ring))
            row += count
    return ring_array
