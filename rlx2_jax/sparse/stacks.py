"""Infers which leading axes of weights stack networks (from `vmap`, `scan` or ensembles).

The neighbouring shapes determine this: a bias has the stack and output axes, a normalization
layer's scale the stack axes and one more. An unambiguous layer decides for its whole subtree, if
all leaves there start with the same sizes; this resolves layers without a bias and ambiguous
shapes.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

Shapes = Mapping[str, tuple[int, ...]]

_HINTED = re.compile(r"(Vmap|Scan)")  # Linen's names of lifted modules
_TWO_AXES = re.compile(r".*(Dense_\d+/kernel|(^|/)linear(_\d+)?/w)")  # Linen's and Haiku's names
_ATTENTION = ("query", "key", "value")


class Axes(NamedTuple):
    """The meaning of a kernel's axes.

    Attributes:
      members: number of leading axes that stack networks.
      inputs: number of input axes, before the output axes.
      outputs: number of trailing output axes.
    """

    members: int
    inputs: int
    outputs: int


def read(shapes: Shapes, given: Mapping[str, int | None]) -> dict[str, Axes]:
    """The axes of every array, by path. `given`: the number of stack axes, if known."""
    known = _subtrees(shapes)
    return {path: _axes(path, shapes, known, given.get(path)) for path in shapes}


def bias_shape(path: str, shapes: Shapes) -> tuple[int, ...] | None:
    """The shape of the bias next to a weight, if there is one."""
    parent, slash, _ = path.rpartition("/")
    return next((shapes[n] for b in ("bias", "b") if (n := parent + slash + b) in shapes), None)


def _axes(path: str, shapes: Shapes, known: Mapping[str, int], given: int | None) -> Axes:
    shape, fits, parts = shapes[path], _fits(path, shapes), path.split("/")
    members = max(known[ancestor] for ancestor in _ancestors(path)) if given is None else given
    if given is None and not members:
        hinted = any(_HINTED.match(part) for part in parts)
        if fits:
            members = (fits[-1] if hinted else fits[0])[0]
        elif hinted and len(shape) >= 3:
            members = 1
    outputs = next((o for s, o in fits if s == members), 1)
    rest, role = len(shape) - members, _attention_role(parts, shapes)
    outputs = 2 if role in _ATTENTION and rest == 3 else min(outputs, max(rest - 1, 0))
    inputs = 2 if role == "out" and rest == 3 else 1
    if outputs > 1:  # not a convolution: all other axes are inputs
        inputs = max(rest - outputs, 1)
    return Axes(members, inputs, outputs)


def _subtrees(shapes: Shapes) -> dict[str, int]:
    """The number of stack axes of each subtree, by path."""
    certain: dict[str, int] = {}
    common: dict[str, tuple[int, ...]] = {}
    for path, shape in shapes.items():
        members = _certain(path, shapes)
        for subtree in _ancestors(path):
            common[subtree] = _common(common.get(subtree, shape), shape)
            if members is not None:
                certain[subtree] = min(certain.get(subtree, members), members)
    return {
        subtree: certain.get(subtree, 0) if len(sizes) >= certain.get(subtree, 0) else 0
        for subtree, sizes in common.items()
    }


def _certain(path: str, shapes: Shapes) -> int | None:
    """The number of stack axes, if the leaf determines it, else None."""
    shape = shapes[path]
    if path.rpartition("/")[2] == "scale" and len(shape) >= 2:
        return len(shape) - 1
    if _TWO_AXES.fullmatch(path):
        return max(len(shape) - 2, 0)
    fits = _fits(path, shapes)
    return fits[0][0] if len(fits) == 1 else None


def _fits(path: str, shapes: Shapes) -> list[tuple[int, int]]:
    """The numbers of stack and output axes that are consistent with the bias next to a weight."""
    shape, bias = shapes[path], bias_shape(path, shapes)
    if bias is None or len(shape) <= len(bias):
        return []
    one_output = _attention_role(path.split("/"), shapes) == "out"
    return [
        (s, len(bias) - s)
        for s in range(len(bias))
        if shape[:s] + shape[len(shape) - len(bias) + s :] == bias
        and (not one_output or len(bias) - s == 1)
    ]


def _attention_role(parts: list[str], shapes: Shapes) -> str | None:
    """`query`, `key`, `value` or `out` in an attention layer, else None."""
    if len(parts) < 2 or parts[-2] not in (*_ATTENTION, "out"):
        return None
    layer = "/".join([*parts[:-2], "query", parts[-1]])
    return parts[-2] if layer in shapes else None


def _ancestors(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:i]) for i in range(len(parts))]


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    length = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return a[:length]
