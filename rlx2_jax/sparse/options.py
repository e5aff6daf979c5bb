"""Validates `sparsify`'s options before anything is compiled.

Traced numbers (vmapped over runs) are not checked.
"""

import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
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
    """Raises if `value` is not an integer of at least 1."""
    if not known(value):
        _one_number(name, value)
        return
    number = isinstance(value, int | np.integer) or (
        isinstance(value, np.ndarray | jax.Array)
        and value.ndim == 0
        and np.issubdtype(value.dtype, np.integer)
    )
    if isinstance(value, bool) or not number or int(value) < 1:
        raise ValueError(f"{name}={value!r}: give an integer of at least 1")


def share(name: str, value: Any) -> None:
    """Raises if `value` is not in [0, 1]."""
    if not known(value):
        _one_number(name, value)
    elif not 0.0 <= float(value) <= 1.0:
        raise ValueError(f"{name}={value!r}: use a fraction in [0, 1]")


def axes(name: str, value: Any) -> None:
    """Raises unless `value` is a number of axes, None, or a dict of numbers by pattern."""
    for number in value.values() if isinstance(value, Mapping) else (value,):
        if number is not None and (type(number) is not int or number < 0):
            raise ValueError(f"{name}={value!r}: give a number of leading axes, or {{pattern: n}}")


def _one_number(name: str, value: Tracer) -> None:
    if value.ndim:
        raise ValueError(f"{name} of shape {value.shape}: give one number, or vmap over it")


def known(*values: Any) -> bool:
    """Whether none of the numbers is traced."""
    return not any(isinstance(x, Tracer) for x in values)


def warn(method: str, interval: Any, t_end: Any) -> None:
    """Warns if no mask update can ever happen."""
    if known(interval, t_end) and int(interval) >= int(t_end):
        warn_caller(
            f"{method} never updates its masks: interval={interval} is not below t_end={t_end}"
        )


def warn_caller(message: str) -> None:
    """Warns with the location of the call into this package, which Python reports once each."""
    package, level, frame = str(Path(__file__).parents[1]), 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
