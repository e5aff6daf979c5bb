"""Shared test settings: strict JAX, one compilation cache, golden data."""

import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest

GOLDEN = Path(__file__).parent / "golden"

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update(
    "jax_compilation_cache_dir",
    os.environ.get("RLX2_TEST_CACHE", str(Path(__file__).parent.parent / ".cache" / "jax")),
)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


@pytest.fixture(scope="session")
def golden():
    """`golden(name)` gives the arrays and the settings of one golden case."""

    def load(name: str):
        settings = json.loads((GOLDEN / f"{name}.json").read_text())
        path = GOLDEN / f"{name}.npz"
        return (dict(np.load(path)) if path.exists() else {}), settings

    return load
