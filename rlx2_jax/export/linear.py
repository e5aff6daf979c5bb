"""The linear operation of exported policies, stored as its live links."""

import dataclasses
import functools
from typing import Any, Self

import numpy as np

from rlx2_jax.export.op import Op, check_array


@dataclasses.dataclass(frozen=True, eq=False)
class Linear(Op):
    """y = W x + b. Links of output r: rowptr[r] .. rowptr[r + 1] - 1, from inputs `cols`.

    Attributes:
      inputs: size of x.
      rowptr: from 0 to the number of links: i32[out + 1].
      cols: the input of each link, ascending within a row: i32[links].
      values: the weight of each link: f32[links].
      bias: b: f32[out].
    """

    inputs: int
    rowptr: np.ndarray
    cols: np.ndarray
    values: np.ndarray
    bias: np.ndarray
    name = "linear"

    @classmethod
    def of(cls, weight: np.ndarray, live: np.ndarray, bias: Any) -> Self:
        """The links of `weight` [out, in] where `live` [out, in] is True."""
        rows, cols = np.nonzero(live)
        rowptr = np.concatenate([[0], np.cumsum(live.sum(axis=1))])
        return cls(
            weight.shape[1],
            rowptr.astype(np.int32),
            cols.astype(np.int32),
            np.asarray(weight, np.float32)[rows, cols],
            np.asarray(bias, np.float32),
        )

    @property
    def size(self) -> int:
        return self.inputs

    @property
    def units(self) -> int:
        """Outputs."""
        return len(self.bias)

    @property
    def links(self) -> int:
        return len(self.values)

    @property
    def lengths(self) -> np.ndarray:
        """Links of each output: i32[out]."""
        return np.diff(self.rowptr)

    @property
    def rows(self) -> np.ndarray:
        """The output of each link: i64[links]."""
        return np.repeat(np.arange(self.units), self.lengths)

    def dense(self) -> np.ndarray:
        """W as f32[out, in]."""
        weight = np.zeros((self.units, self.inputs), np.float32)
        weight[self.rows, self.cols] = self.values
        return weight

    @functools.cached_property
    def _kernel(self) -> np.ndarray:
        return self.dense().astype(np.float64).T

    def check(self, where: str) -> None:
        if self.inputs < 1 or self.units < 1:
            raise ValueError(f"{where} has {self.inputs} inputs and {self.units} outputs")
        links = len(self.cols)
        check_array(self.rowptr, np.int32, self.units + 1, f"row pointers of {where}")
        check_array(self.cols, np.int32, links, f"columns of {where}")
        check_array(self.values, np.float32, links, f"values of {where}")
        check_array(self.bias, np.float32, self.units, f"biases of {where}")
        if self.rowptr[0] != 0 or self.rowptr[-1] != links or (self.lengths < 0).any():
            raise ValueError(f"row pointers of {where} do not rise from 0 to its {links} links")
        if links and not (self.cols.min() >= 0 and self.cols.max() < self.inputs):
            raise ValueError(f"columns of {where} are not within 0 .. {self.inputs - 1}")
        if (np.diff(self.rows * self.inputs + self.cols) <= 0).any():
            raise ValueError(f"columns of {where} are not ascending within each row")

    def outputs(self, inputs: int, saved: list[int]) -> int:
        super().outputs(inputs, saved)
        return self.units

    def run(self, x: np.ndarray, saved: list[np.ndarray]) -> np.ndarray:
        return x @ self._kernel + self.bias
