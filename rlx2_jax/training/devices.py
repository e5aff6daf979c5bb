"""Device selection, and programs that are compiled once for all devices.

The lanes of a program are split into blocks. Each device trains whole blocks, without
communication, and all devices run the same compiled code, so a block's results do not depend on the
number of devices or on its placement. A program over all devices (`shard_map`) would compile
differently from a single-device one, and results would differ in the last bits.
"""

import functools
import io
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import compiler
from jax.core import Tracer
from jax.experimental import serialize_executable

from rlx2_jax.types import Device


def choose(count: int = 0) -> tuple[Device, ...]:
    """`count` devices of this process, 0 for all.

    Raises:
      ValueError: there are fewer.
    """
    devices = tuple(jax.local_devices())
    if not 0 <= count <= len(devices):
        raise ValueError(
            f"--devices={count}: this process has {len(devices)} {devices[0].platform} device(s); "
            f"omit the flag to use all"
        )
    return devices[: count or None]


def put(tree: Any, device: Device | None) -> Any:
    """Moves arrays to a device; None leaves them in place."""
    return tree if device is None else jax.device_put(tree, device)


def device_of(tree: Any) -> Device | None:
    """The device that arrays are committed to, None if they are not."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer):
            return next(iter(leaf.devices())) if leaf.committed else None
    return None


class SharedJit:
    """`jax.jit` that compiles once for all devices. The function runs on the device that the first
    argument is committed to."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        static: Sequence[int] = (),
        donate: Sequence[int] = (),
    ):
        """`static`, `donate`: argument positions, as for `jax.jit`."""
        self._static = tuple(static)
        self.jitted = jax.jit(function, static_argnums=static, donate_argnums=donate)
        self._compiled: dict[Hashable, jax.stages.Compiled] = {}
        self._loaded: dict[Hashable, Callable[..., Any]] = {}
        self._lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        device = device_of(args[0])
        if device is None:
            return self.jitted(*args)
        traced = [x for i, x in enumerate(args) if i not in self._static]
        leaves, structure = jax.tree.flatten(traced)
        forms = tuple(jax.typeof(x) for x in leaves)
        key = (tuple(args[i] for i in self._static), structure, forms)
        compiled = self._loaded.get((key, device)) or self._load(key, device, args)
        return compiled(*traced)

    def _load(self, key: Hashable, device: Device, args: tuple[Any, ...]) -> Any:
        with self._lock:
            if (key, device) not in self._loaded:
                compiled = self._copy(key, device)
                if compiled is None:
                    compiled = self._compiled[key] = self.jitted.lower(*args).compile()
                self._loaded[key, device] = compiled
            return self._loaded[key, device]

    def _copy(self, key: Hashable, device: Device) -> jax.stages.Compiled | None:
        """A copy of the program compiled for another device, or None if it cannot be copied:
        executables from JAX's compilation cache, and those of some backends, do not serialize."""
        if key not in self._compiled or jax.config.jax_compilation_cache_dir:  # pyright: ignore
            return None
        try:
            return copied(self._compiled[key], device)
        except Exception:
            return None


def shared_jit(**positions: Any) -> Callable[[Callable[..., Any]], SharedJit]:
    """`SharedJit` as a decorator."""
    return functools.partial(SharedJit, **positions)


def copied(compiled: jax.stages.Compiled, device: Device) -> jax.stages.Compiled:
    """Loads a compiled program on another device without recompiling it."""
    saved, arguments, results = serialize_executable.serialize(compiled)
    unloaded, info, no_kwargs = _Reader(io.BytesIO(saved), device).load()
    arguments = arguments.unflatten(info)
    return jax.stages.Compiled(unloaded.load(), [], arguments, results, no_kwargs=no_kwargs)


class _Reader(serialize_executable._JaxPjrtUnpickler):
    """Unpickles a compiled program, with its device replaced by `device`."""

    def __init__(self, file: io.BytesIO, device: Device):
        super().__init__(file, device.client, [device])
        self._device = device

    def persistent_load(self, pid: tuple[Any, ...]) -> Any:
        if pid[0] == "device":
            return self._device
        if pid[0] == "exec":
            options = compiler.get_compile_options(1, 1, device_assignment=np.array([self._device]))
            return self.backend.deserialize_executable(pid[1], self.execution_devices, options)
        return super().persistent_load(pid)
