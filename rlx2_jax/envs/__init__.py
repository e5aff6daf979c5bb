"""Environments: Gymnasium and EnvPool on the host; Brax, MuJoCo MJX (Gymnasium's tasks), MuJoCo
Playground and custom JAX environments on the device.

Each backend's package is imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from rlx2_jax.envs.base import (
    RAISED,
    EnvironmentFailure,
    EnvSpec,
    HostEnvs,
    check_interrupted,
    describe,
    failures_of,
)
from rlx2_jax.envs.trust import check_import

if TYPE_CHECKING:
    from rlx2_jax.envs.device import DeviceEnv

__all__ = [
    "BACKENDS",
    "DEVICE_BACKENDS",
    "HOST_BACKENDS",
    "RAISED",
    "EnvSpec",
    "EnvironmentFailure",
    "HostEnvs",
    "check_import",
    "check_interrupted",
    "describe",
    "failures_of",
    "make_device",
    "make_host",
    "time_limit",
]

HOST_BACKENDS = ("gymnasium", "envpool")
# Modules of device backends, each with a function `make(name, **options)`.
_DEVICE_MODULES = {"brax": "brax", "mjx": "mjx", "playground": "playground", "jax": "entry_point"}
DEVICE_BACKENDS = tuple(_DEVICE_MODULES)
BACKENDS = HOST_BACKENDS + DEVICE_BACKENDS


def make_host(env_id: str, num_envs: int, backend: str = "gymnasium", **options: Any) -> HostEnvs:
    """`num_envs` copies of a task on the host; `options` are passed to the backend's `make`.

    Raises:
      ValueError, ImportError: there is no such task, or its package is not installed.
      EnvironmentFailure: its constructor raised anything else.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, got {num_envs}")
    if backend == "gymnasium":
        _import_probes(env_id)
        from rlx2_jax.envs.gymnasium import GymnasiumEnvs

        with failures_of(env_id, ValueError, ImportError):
            return GymnasiumEnvs(env_id, num_envs, **options)
    if backend == "envpool":
        from rlx2_jax.envs.envpool import EnvPoolEnvs

        with failures_of(env_id, ValueError, ImportError):
            return EnvPoolEnvs(env_id, num_envs, **options)
    raise _unknown_backend(backend, HOST_BACKENDS, "make_device")


def make_device(name: str, backend: str = "brax", **options: Any) -> "DeviceEnv":
    """One task as pure functions to vmap; `options` are passed to the backend's `make`."""
    if backend not in DEVICE_BACKENDS:
        raise _unknown_backend(backend, DEVICE_BACKENDS, "make_host")
    if probes := _import_probes(name):
        return probes.device(name)
    module = importlib.import_module(f"rlx2_jax.envs.{_DEVICE_MODULES[backend]}")
    return module.make(name, **options)


def time_limit(backend: str, steps: int) -> dict[str, int]:
    """The option of the backend's `make` that limits episodes to `steps`."""
    return {"episode_length" if backend == "brax" else "max_episode_steps": steps}


def _import_probes(env_id: str) -> Any:
    """Imports the probes, which registers them, if `env_id` is one."""
    is_probe = env_id.startswith("rlx2_jax/")
    return importlib.import_module("rlx2_jax.envs.probes") if is_probe else None


def _unknown_backend(backend: str, allowed: tuple[str, ...], other: str) -> ValueError:
    hint = f"; {backend!r} is made by {other}" if backend in BACKENDS else ""
    return ValueError(f"unknown env_backend {backend!r}, expected one of {allowed}{hint}")
