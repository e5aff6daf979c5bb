"""JAX's default random numbers, faster on CPUs.

`THREEFRY` gives the same bits as `jax.random`'s default (partitionable Threefry-2x32). On CPUs JAX
compiles the cipher as a loop of twenty small operations; here the rounds are unrolled, so XLA fuses
them into one.
"""

import enum
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl

from rlx2_jax.control_flow import no_fuse
from rlx2_jax.types import Array

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def _threefry(key: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """Twenty rounds on counters (x, y): Salmon et al., "Parallel random numbers", 2011."""
    k = [jnp.broadcast_to(part, x.shape) for part in (key[0], key[1])]
    k.append(k[0] ^ k[1] ^ np.uint32(0x1BD11BDA))
    x, y = x + k[0], y + k[1]
    for i in range(5):
        for rotation in _ROTATIONS[i % 2]:
            x = x + y
            left, right = np.uint32(rotation), np.uint32(32 - rotation)
            y = x ^ (jax.lax.shift_left(y, left) | jax.lax.shift_right_logical(y, right))
        x, y = x + k[(i + 1) % 3], y + k[(i + 2) % 3] + np.uint32(i + 1)
    return x, y


def _counters(shape: tuple[int, ...]) -> tuple[Array, Array]:
    """0, 1, 2, ... as pairs of 32 bits."""
    if math.prod(shape) >= 2**32:
        raise ValueError(f"{shape} random numbers are too many for one key: split it")
    count = jax.lax.iota(np.uint32, math.prod(shape)).reshape(shape)
    return jnp.zeros_like(count), count


def _seed(seed: Array) -> Array:
    low = seed.astype(np.uint32)
    wide = seed.dtype.itemsize > 4
    high = (seed >> 32).astype(np.uint32) if wide else jnp.zeros_like(low)
    return jnp.stack([high, low])


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    return jnp.stack(_threefry(key, *_counters(shape)), axis=-1)


def _fold_in(key: Array, data: Array | int) -> Array:
    high, low = _seed(jnp.asarray(data).astype(np.uint32))
    return jnp.stack(_threefry(key, high, low))


def _random_bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    high, low = _threefry(key, *_counters(shape))
    if bit_width == 64:
        return (high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)
    return (high ^ low).astype(f"uint{bit_width}")


THREEFRY = define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="rlx2_threefry2x32",
    tag="rlx2",
)


def normal(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """`jax.random.normal` with the same numbers, but drawn as one row and never fused into its
    consumers: this vectorizes the cipher on CPUs for any shape and runs it once per number."""
    return no_fuse(jax.random.normal(key, (math.prod(shape),), dtype)).reshape(shape)


class Stream(enum.IntEnum):
    """Independent random streams."""

    INIT = 0
    WARMUP = 1
    ACT = 2
    SAMPLE = 3
    UPDATE = 4
    ENVIRONMENT = 5
    EVALUATION = 6
    DEMONSTRATION = 7


def stream_key(seed: Array | int, stream: Stream, time: Array | int) -> Array:
    """The key of one (seed, stream, time); a seed is an integer or raw key data u32[2]."""
    # Both implementations draw the same numbers. INIT runs once: prefer a short compilation.
    impl = None if stream == Stream.INIT else THREEFRY
    if jnp.ndim(seed):
        key = jax.random.wrap_key_data(jnp.asarray(seed), impl=impl)
    else:
        key = jax.random.key(seed, impl=impl)
    return jax.random.fold_in(jax.random.fold_in(key, stream), time)
