"""Checks of `sparsify`'s options: errors and warnings before anything is compiled.

Numbers may be traced (vmapped over runs); those are not checked.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer


def choose(name: str, value: Any, allowed: Sequence[str]) -> None:
    """Raises if `value` is not among `allowed`."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}={value!r}: use one of {tuple(allowed)}")


def rule(name: str, value: Any, table: dict[str, Any]) -> Any:
    """A rule by name, or the function itself."""
    if callable(value):
        return value
    choose(name, value, tuple(table))
    return table[value]


def whole(name: str, value: Any) -> None:
    """Raises if `value` is not a whole number of at least 1."""
    if not known(value):
        return
    number = isinstance(value, int | np.integer) or (
        isinstance(value, np.ndarray | jax.Array)
        and value.ndim == 0
        and np.issubdtype(value.dtype, np.integer)
    )
    if isinstance(value, bool) or not number or value < 1:
        raise ValueError(f"{name}={value!r}: give a whole number of at least 1")


def share(name: str, value: Any) -> None:
    """Raises if `value` is not in [0, 1]."""
    if known(value) and not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}={value!r}: use a share in [0, 1]")


def known(*values: Any) -> bool:
    """Whether none of the numbers is traced."""
    return not any(isinstance(x, Tracer) for x in values)


def warn(method: str, interval: Any, t_end: Any) -> None:
    """Warns if no mask update can ever happen."""
    if known(interval, t_end) and interval >= t_end:
        warnings.warn(
            f"{method} never updates its masks: interval={interval} is not below t_end={t_end}",
            stacklevel=5,
        )
