"""What a step does only now and then, without a copy of what it leaves alone.

A conditional between new arrays and the old ones makes XLA copy the old ones, unless every change
can be written in place. A loop of one turn or none copies inside its turn only. Like a conditional
it stays a real branch under `vmap` as long as its predicate is not batched.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from rlx2_jax.types import Array

T = TypeVar("T")


def when(due: Array | bool, change: Callable[[T], T], x: T) -> T:
    """`change(x)` if `due`, else `x`: of the same structure, shapes and dtypes."""
    turn = lambda carry: (jnp.zeros_like(due), change(carry[1]))  # noqa: E731
    return jax.lax.while_loop(lambda carry: carry[0], turn, (due, x))[1]


def every(interval: int, count: Array, change: Callable[[T], T], x: T) -> T:
    """`change(x)` at multiples of `interval` (static), else `x`."""
    return change(x) if interval == 1 else when(count % interval == 0, change, x)


def apart(make: Callable[[], T], always: Array | bool) -> T:
    """`make()`, computed before whatever uses it and not as a part of that, number by number.

    `always` is true, and XLA does not know it: what lies in a branch stays there.
    """
    return when(always, lambda _: make(), zeros(make))


def zeros(make: Callable[[], T]) -> T:
    """Zeros of the shapes and dtypes that `make()` would have."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(make))
