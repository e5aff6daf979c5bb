"""Compiles C policies and calls them from Python, to check and time them."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

STRICT = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic")


def compiler() -> str | None:
    """The C compiler: $CC, or the first available of cc, gcc and clang."""
    names = (os.environ.get("CC"), "cc", "gcc", "clang")
    return next((path for name in names if name and (path := shutil.which(name))), None)


def build(sources: Sequence[Path], library: Path, flags: Sequence[str] = STRICT) -> Path:
    """Compiles sources separately (no inlining across files) into a shared library."""
    cc = compiler()
    if cc is None:
        raise RuntimeError("there is no C compiler: install gcc or clang, or set CC")
    objects = []
    for source in sources:
        objects.append(str(library.with_name(f"{library.stem}-{source.stem}.o")))
        _run([cc, *flags, "-fPIC", "-c", str(source), "-o", objects[-1]])
    _run([cc, "-shared", *objects, "-o", str(library)])
    return library


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")


class CPolicy:
    """`<name>_act` of a shared library as a function of NumPy arrays."""

    def __init__(self, library: Path, name: str, obs_dim: int, action_dim: int):
        self._act = getattr(ctypes.CDLL(str(library.resolve())), f"{name}_act")
        self._act.argtypes, self._act.restype = [ctypes.c_void_p, ctypes.c_void_p], None
        self._obs_dim, self._action_dim = obs_dim, action_dim

    def act(self, obs: np.ndarray) -> np.ndarray:
        """f32[batch, act] for observations [batch, obs], with one call per observation."""
        obs = np.ascontiguousarray(obs, np.float32)
        if obs.ndim != 2 or obs.shape[1] != self._obs_dim:
            raise ValueError(f"observations must be [batch, {self._obs_dim}], got {obs.shape}")
        action = np.empty((len(obs), self._action_dim), np.float32)
        for i in range(len(obs)):
            self._act(obs[i].ctypes.data, action[i].ctypes.data)
        return action
