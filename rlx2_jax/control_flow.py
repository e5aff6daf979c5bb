"""Conditional updates that do not copy unchanged buffers, unrolled maps, and fusion control.

`lax.cond` between new arrays and the old ones makes XLA copy the old ones, unless every change can
be written in place. A `while_loop` that runs once or not at all copies inside its body only. Like
`lax.cond` it stays a real branch under `vmap` as long as its predicate is not batched.
"""

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp

from rlx2_jax.types import Array

T = TypeVar("T")
_BLOCK = 8
_UNROLLED = 10


def when(due: Array | bool, change: Callable[[T], T], x: T) -> T:
    """`change(x)` if `due`, else `x`: of the same structure, shapes and dtypes."""
    once = lambda carry: (jnp.zeros_like(due), change(carry[1]))  # noqa: E731
    return jax.lax.while_loop(lambda carry: carry[0], once, (due, x))[1]


def every(interval: int, count: Array, change: Callable[[T], T], x: T) -> T:
    """`change(x)` at multiples of `interval` (static), else `x`."""
    return change(x) if interval == 1 else when(count % interval == 0, change, x)


def decide(due: bool | None, interval: int, count: Array, change: Callable[[T], T], x: T) -> T:
    """`change(x)` or `x`, without a branch if `due` is static; None: `every(interval, ...)`."""
    if due is None:
        return every(interval, count, change, x)
    return change(x) if due else x


def over_members(f: Callable[..., Array], *trees: Any, members: int) -> Array:
    """Applies `f` to the first `members` entries of `trees` and stacks the results.

    A few are unrolled, because XLA's batched products are slow on CPUs. More are vmapped, because
    unrolling increases compile time.
    """
    trees = jax.tree.map(lambda leaf: leaf[:members], trees)
    if members > _UNROLLED:
        return jax.vmap(f)(*trees)
    return jnp.stack([f(*jax.tree.map(lambda leaf: leaf[i], trees)) for i in range(members)])  # noqa: B023


class Ufunc(Protocol):
    """A binary function of `jax.numpy` such as `jnp.add`."""

    def __call__(self, x: Array, y: Array, /) -> Array: ...
    def reduce(self, a: Array, /) -> Array: ...


def reduce_members(f: Ufunc, x: Array) -> Array:
    """Reduces the leading axis with `f`; unrolled if short, because XLA's small reductions are slow
    on CPUs."""
    return f.reduce(x) if len(x) > _UNROLLED else functools.reduce(f, jnp.unstack(x))


def no_fuse(x: Array) -> Array:
    """Prevents XLA from fusing the computation of `x: [size]`, finite, into its consumers on CPUs.

    XLA's CPU compiler removes `optimization_barrier` before it fuses, but it never fuses into the
    operand of a matrix product. Multiplying by an identity matrix is exact.
    """

    def multiply(x: Array) -> Array:
        blocks = jnp.pad(x, (0, -x.size % _BLOCK)).reshape(-1, _BLOCK)
        same = jnp.matmul(blocks, jnp.eye(_BLOCK, dtype=x.dtype), precision="highest")
        return same.reshape(-1)[: x.size]

    return jax.lax.platform_dependent(x, cpu=multiply, default=lambda x: x)


def after(x: Array, results: Any) -> Array:
    """The integer `x`, unchanged, but data-dependent on a pytree of scalars.

    XLA updates an array in place only if all reads of its old contents are ordered before the
    write. An index that depends on the results of those reads orders them.
    """
    bits = [
        x != x if jnp.issubdtype(x.dtype, jnp.floating) else x for x in jax.tree.leaves(results)
    ]
    bit = functools.reduce(jnp.logical_xor, bits).astype(x.dtype)
    return x + bit * (bit - 1)  # always + 0, but the compiler cannot know that


def zeros(make: Callable[[], T]) -> T:
    """Zeros of the shapes and dtypes that `make()` would have."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(make))
