"""The random key of `sparsify`, derived from a seed or from the initial parameters."""

import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax.sparse.leaves import Leaf
from rlx2_jax.sparse.structure import local
from rlx2_jax.types import Array, Params


def check(seed: Any) -> None:
    """Raises unless `seed` is None, an integer or a single key."""
    if seed is None or (isinstance(seed, int | np.integer) and not isinstance(seed, bool)):
        return
    dtype = getattr(seed, "dtype", None)
    shapes: tuple[tuple[int, ...], ...] = ()
    if dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        shapes = ((),)
    elif dtype is not None and jnp.issubdtype(dtype, jnp.integer):
        shapes = ((), (2,)) if dtype == jnp.uint32 else ((),)
    if getattr(seed, "shape", None) not in shapes:
        raise ValueError(f"seed={seed!r}: give an integer or one key; vmap over several")


def key(seed: int | Array | None, leaves: Sequence[Leaf], params: Params) -> Array:
    """A new key, derived from the seed or from the paths and values of the parameters."""
    make = partial(jax.random.key, impl="threefry2x32")
    if seed is None:
        names = zlib.crc32("\n".join(leaf.path for leaf in leaves).encode())
        derived = make(names)
        for x in jax.tree.leaves(params):
            if jnp.issubdtype(jnp.result_type(x), jnp.floating):
                values = local(jnp.asarray(x, jnp.float32)).ravel()
                bits = jax.lax.bitcast_convert_type(values, jnp.uint32)
                weights = jax.lax.iota(jnp.uint32, bits.size) * jnp.uint32(0x9E3779B1) + 1
                derived = jax.random.fold_in(derived, jnp.sum(bits * weights, dtype=jnp.uint32))
        return derived
    if not isinstance(seed, jax.Array):
        return make(seed)
    if jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jax.random.bits(seed, (2,)), impl="threefry2x32")
    if seed.shape == (2,) and seed.dtype == jnp.uint32:  # jax.random.PRNGKey
        return jax.random.wrap_key_data(seed + jnp.uint32(0), impl="threefry2x32")
    return make(seed)
