"""The base class of the operations of an exported policy."""

from typing import Any, ClassVar, Self

import numpy as np


class Op:
    """One operation. `saved` is the stack (of sizes or values), which methods push and pop."""

    name: ClassVar[str]

    @classmethod
    def make(cls, *arrays: Any) -> Self:
        """Creates the operation from anything that converts to float32."""
        return cls(*(np.asarray(a, np.float32) for a in arrays))

    @property
    def size(self) -> int | None:
        """The required length of x; None: any."""
        return None

    def check(self, where: str) -> None:
        """Raises ValueError if the arrays of the operation are invalid."""

    def outputs(self, inputs: int, saved: list[int]) -> int:
        """The length of the result for an x of length `inputs`; ValueError if it does not fit."""
        if self.size not in (None, inputs):
            raise ValueError(f"takes {self.size} inputs, but there are {inputs}")
        return inputs

    def run(self, x: np.ndarray, saved: list[np.ndarray]) -> np.ndarray:
        """The result in float64: [..., inputs] -> [..., outputs]."""
        raise NotImplementedError


def check_array(array: np.ndarray, dtype: type, size: int, what: str) -> None:
    """Raises ValueError unless the array is finite and of this type and length."""
    if array.dtype != dtype or array.shape != (size,):
        raise ValueError(f"{what}: {array.dtype}{array.shape}, not {np.dtype(dtype)}({size},)")
    if dtype is np.float32 and not np.isfinite(array).all():
        raise ValueError(f"{what} are not all finite")
