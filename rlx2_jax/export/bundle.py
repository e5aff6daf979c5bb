"""Writes the files of one exported policy, compares them with the actor and lists their sizes."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from rlx2_jax.export import c, npz
from rlx2_jax.export.episodes import Act
from rlx2_jax.export.exporters import EXPORTERS, Written, write_c
from rlx2_jax.export.policy import SparsePolicy
from rlx2_jax.export.quantize import dequantized

TOLERANCE = 1e-5  # of an action against the JAX actor, in addition to float32 rounding
OBSERVATIONS = 4096


def deviation(policy: SparsePolicy, obs: np.ndarray, actions: np.ndarray, expected: np.ndarray):
    """The largest difference between actions, and whether rounding explains all differences."""
    error = np.abs(np.asarray(actions, np.float64) - expected)
    return float(error.max()), bool((error <= TOLERANCE + policy.rounding(obs)[None]).all())


class CheckFailed(Exception):
    """The actions of an exported file differ from those of the actor."""


def observations(obs_dim: int, count: int = OBSERVATIONS) -> np.ndarray:
    """Random observations of several magnitudes: f32[count, obs]."""
    rng = np.random.default_rng(0)
    sizes = rng.choice([0.1, 1.0, 3.0], (count, 1))
    return (sizes * rng.normal(size=(count, obs_dim))).astype(np.float32)


class Bundle:
    """Writes the files of one policy into a directory, checks and lists them."""

    def __init__(self, policy: SparsePolicy, name: str, out: Path):
        c.check_name(name)  # also prevents path separators in file names
        self.policy, self.name, self.out = policy, name, out
        self.files: dict[str, dict[str, Any]] = {}
        self.rows: list[tuple[str, int, str, str]] = []  # file, bytes, constants, error
        self.obs = observations(policy.obs_dim)
        out.mkdir(parents=True, exist_ok=True)

    def write(self, format_: str, expected: np.ndarray) -> None:
        """Writes one format and compares it with the `expected` actions for `self.obs`."""
        path = self.out / f"{self.name}.{format_}"
        self._add(path, format_, EXPORTERS[format_](self.policy, path), expected)

    def write_runtime(self) -> None:
        """Writes the module that runs the `.npz` file with only NumPy."""
        runtime = self.out / f"{self.name}_runtime.py"
        shutil.copyfile(npz.RUNTIME, runtime)
        self.files[runtime.name] = {"format": "NumPy runtime"}

    def write_int8(self, expected: np.ndarray) -> Act:
        """Writes the C file with 8-bit weights; returns its function."""
        name = f"{self.name}_int8"
        path = self.out / f"{name}.c"
        written = write_c(self.policy, path, int8=True)
        exact = dequantized(self.policy).act
        self._add(path, "c int8", written, exact(self.obs))
        error = np.abs(exact(self.obs) - expected).max()
        self.files[path.name]["quantisation_error"] = float(error)
        return written.act or exact

    def _add(self, path: Path, format_: str, written: Written, expected: np.ndarray) -> None:
        entry: dict[str, Any] = {"format": format_}
        text = "not checked: cannot run here"
        if written.act is not None:
            error, close = deviation(self.policy, self.obs, written.act(self.obs), expected)
            entry["largest_error"] = error
            text = f"{error:.1e}"
            if not close:
                raise CheckFailed(
                    f"{path} differs from the actor by up to {error:.2g} on {len(self.obs):,} "
                    f"observations, more than float32 rounding explains: do not use it"
                )
        self.files[path.name] = entry
        constants = "" if written.constants is None else f"{written.constants:,}"
        self.rows.append((path.name, path.stat().st_size, constants, text))

    def table(self, dense_bytes: int) -> str:
        """A table of file sizes."""
        head = ("", "file bytes", "of dense", "constants", "largest error")
        rows = [head, ("dense float32", f"{dense_bytes:,}", "100.0%", f"{dense_bytes:,}", "")]
        for name, size, device, error in self.rows:
            rows.append((name, f"{size:,}", f"{100 * size / dense_bytes:.1f}%", device, error))
        return "\n".join(f"{a:<24}{b:>12}{c_:>10}{d:>12}  {e}" for a, b, c_, d, e in rows)
