"""Flattens observations of several arrays into one float32 vector.

The layout depends only on the space: dictionaries by key, sorted as text; tuples in order; nested
spaces depth first; arrays in C order. `gymnasium.spaces.flatten` has the same order for
dictionaries that Gymnasium has sorted.
"""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from gymnasium import Space


class Leaf(NamedTuple):
    """One array of an observation."""

    path: tuple[Any, ...]  # keys and indices
    shape: tuple[int, ...]
    first: int  # start in the vector
    stop: int


class Layout:
    """The positions of an observation's arrays in the flat vector.

    Attributes:
      leaves: the arrays, in the order of the vector.
      size: of the vector.
    """

    def __init__(self, env_id: str, space: "Space[Any]"):
        """Raises ValueError unless the space contains only arrays of real numbers."""
        leaves, first = [], 0
        for path, box in _boxes(space, ()):
            _check(env_id, path, box)
            shape = tuple(box.shape or ())
            stop = first + math.prod(shape)
            leaves.append(Leaf(path, shape, first, stop))
            first = stop
        self.leaves = tuple(leaves)
        self.size = first

    def write(self, obs: Any, row: np.ndarray) -> None:
        """Writes one observation to row [size].

        Raises:
          ValueError: an array is missing, has another shape (NumPy would broadcast it), or is
            complex.
        """
        for path, shape, first, stop in self.leaves:
            array = _entry(obs, path)
            if np.shape(array) != shape:
                raise ValueError(
                    f"{_name(path)} has shape {np.shape(array)}, its space has {shape}: "
                    "make the task return observations that match its observation_space"
                )
            if np.iscomplexobj(array):
                raise ValueError(f"{_name(path)} is complex: make the task return real numbers")
            row[first:stop].reshape(shape)[...] = array

    def write_rows(self, obs: Any, rows: np.ndarray, index: np.ndarray) -> None:
        """Writes a batch of arrays [k, *shape] to rows [E, size] at index i[k]."""
        for path, _, first, stop in self.leaves:
            rows[index, first:stop] = np.reshape(_entry(obs, path), (len(index), stop - first))


def _boxes(space: "Space[Any]", path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """All leaf spaces, with their paths."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        parts = sorted(space.spaces.items(), key=lambda item: str(item[0]))
    elif isinstance(space, spaces.Tuple):
        parts = list(enumerate(space.spaces))
    else:
        yield path, space
        return
    for key, part in parts:
        yield from _boxes(part, (*path, key))


def _check(env_id: str, path: tuple[Any, ...], space: Any) -> None:
    from gymnasium.spaces import Box

    where = f" at {_name(path)}" if path else ""
    if not isinstance(space, Box):
        raise ValueError(
            f"{env_id} has observation space {space}{where}; arrays (Box), or dictionaries and "
            "tuples of them, are needed: wrap it with gymnasium.wrappers.FlattenObservation and "
            "register that as an id"
        )
    dtype: Any = space.dtype
    if dtype.kind not in "biuf":
        raise ValueError(
            f"{env_id} has observations of dtype {dtype}{where}; they must be real numbers: "
            "wrap it with gymnasium.wrappers.TransformObservation and register that as an id"
        )


def _entry(obs: Any, path: tuple[Any, ...]) -> Any:
    for depth, key in enumerate(path):
        try:
            obs = obs[key]
        except (KeyError, IndexError, TypeError) as error:
            given = f"keys {sorted(map(str, obs))}" if isinstance(obs, Mapping) else type(obs)
            raise ValueError(
                f"{_name(path[:depth])} has {given} and lacks {key!r}: "
                "make the task return observations that match its observation_space"
            ) from error
    return obs


def _name(path: tuple[Any, ...]) -> str:
    return "the observation" + "".join(f"[{key!r}]" for key in path)
