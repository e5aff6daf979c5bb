"""Everything besides settings that a run's numbers depend on: versions, kernels, flags, CPU."""

import contextlib
import importlib.metadata as metadata
import os
import platform
import subprocess
from pathlib import Path

import jax

from rlx2_jax import files
from rlx2_jax._version import __version__
from rlx2_jax.kernels import native

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "gymnasium", "mujoco", "orbax-checkpoint")
_NO_EFFECT = ("python", "orbax-checkpoint", "flax")  # cannot change a resumed run's results
_VECTOR = ("avx", "fma", "f16c", "amx", "asimd", "neon", "sve")  # prefixes of CPU flags


def versions() -> dict[str, str]:
    """Versions of this package, Python and the packages that a run uses."""
    by_name = {"rlx2_jax": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            by_name[name] = metadata.version(name)
    return by_name


def git_commit() -> str | None:
    """The commit of the source tree, or None outside of a git checkout."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=5,
        )
        return done.stdout.strip() or None
    return None


def processor() -> str:
    """The CPU's name, if the system reports it."""
    with contextlib.suppress(OSError, StopIteration), open("/proc/cpuinfo") as file:
        return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    return platform.processor() or platform.machine()


def instructions() -> str:
    """The CPU's vector instruction sets, which determine how sums are rounded."""
    features: set[str] = set()
    with contextlib.suppress(OSError, StopIteration), open("/proc/cpuinfo") as file:
        line = next(x for x in file if x.startswith(("flags", "Features")))
        features = set(line.split(":", 1)[1].split())
    return " ".join(sorted(x for x in features if x.startswith(_VECTOR)))


def device() -> str:
    """The kind of device that JAX computes on.

    Raises:
      ValueError: there is none, for instance because of JAX_PLATFORMS.
    """
    try:
        return jax.default_backend()
    except Exception as error:  # RuntimeError, or AssertionError in some versions
        platforms = os.environ.get("JAX_PLATFORMS", "")
        raise ValueError(
            f"JAX finds no device ({files.first_line(error)}): JAX_PLATFORMS is "
            f"{platforms or 'unset'}; set JAX_PLATFORMS=cpu, or install JAX for this device"
        ) from error


def fingerprint() -> dict[str, str]:
    """Everything except settings and seeds that affects a run's numbers, by name."""
    return {
        **versions(),
        "commit": git_commit() or "unknown",
        "device": device(),
        "kernels": native.execution(),
        "processor": processor(),
        "instructions": instructions(),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        "jax_enable_x64": str(jax.config.jax_enable_x64),  # pyright: ignore[reportAttributeAccessIssue]
        "jax_default_matmul_precision": str(jax.config.jax_default_matmul_precision),  # pyright: ignore
        "jax_default_prng_impl": str(jax.config.jax_default_prng_impl),  # pyright: ignore
        "jax_threefry_partitionable": str(jax.config.jax_threefry_partitionable),  # pyright: ignore
    }


def differences(saved: dict[str, str], now: dict[str, str]) -> list[str]:
    """One line for each change since a checkpoint that may affect results. Ignores entries that an
    older checkpoint did not record."""
    return [
        f"{name} was {saved.get(name) or 'unset'} and is {now.get(name) or 'unset'}"
        for name in sorted(saved)
        if name not in _NO_EFFECT and saved.get(name) != now.get(name)
    ]
