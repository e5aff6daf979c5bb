"""Shared test settings: strict JAX, one compilation cache, bounded memory, golden data."""

import contextlib
import ctypes
import gc
import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest
from paths import GOLDEN, ROOT

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update(
    "jax_compilation_cache_dir",
    os.environ.get("RLX2_TEST_CACHE", str(ROOT / ".cache" / "jax")),
)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


# A process that uses more than this after a module drops its compiled programs.
MEMORY = 2_500_000_000


@pytest.fixture(scope="module", autouse=True)
def bounded_memory():
    """JAX's caches keep compiled programs, about 5 MB for a small one: several GB over all modules.
    Most of that returns to the system only when it is trimmed."""
    yield
    if _resident() > MEMORY:
        jax.clear_caches()
        gc.collect()
        _return_freed_memory()


def _resident() -> int:
    """Resident bytes of this process; 0 if the system does not report them."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _return_freed_memory() -> None:
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)


@pytest.fixture(scope="session")
def golden():
    """`golden(name)` returns the arrays and settings of one golden case."""

    def load(name: str):
        settings = json.loads((GOLDEN / f"{name}.json").read_text())
        path = GOLDEN / f"{name}.npz"
        return (dict(np.load(path)) if path.exists() else {}), settings

    return load
