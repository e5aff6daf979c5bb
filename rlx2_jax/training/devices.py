"""Lanes on several devices: which there are, and programs that are compiled once for all of them.

The lanes of a program are cut into blocks, and a device trains whole blocks, without communication.
All devices run the same compiled code, so that what a block computes does not depend on how many
devices there are, or on which of them has it. A program over all devices (`shard_map`) would be
compiled differently from that of one, and floats would differ in their last bits.
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
    found = tuple(jax.local_devices())
    if not 0 <= count <= len(found):
        raise ValueError(
            f"--devices={count}: this process has {len(found)} device(s) of kind "
            f"{found[0].platform}; leave it out to use all"
        )
    return found[: count or None]


def put(tree: Any, device: Device | None) -> Any:
    """Arrays on a device; None leaves them where they are."""
    return tree if device is None else jax.device_put(tree, device)


def device_of(tree: Any) -> Device | None:
    """The device that `put` chose for arrays, None if it did not."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer):
            return next(iter(leaf.devices())) if leaf.committed else None
    return None


class SharedJit:
    """`jax.jit` that compiles once for all devices: where the first argument is on a device that
    `put` chose, the function runs there."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        static: Sequence[int] = (),
        donate: Sequence[int] = (),
    ):
        """`static`, `donate`: positions of arguments, as of `jax.jit`."""
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
        found = self._loaded.get((key, device)) or self._load(key, device, args)
        return found(*traced)

    def _load(self, key: Hashable, device: Device, args: tuple[Any, ...]) -> Any:
        with self._lock:
            if (key, device) not in self._loaded:
                found = self._copy(key, device)
                if found is None:
                    found = self._compiled[key] = self.jitted.lower(*args).compile()
                self._loaded[key, device] = found
            return self._loaded[key, device]

    def _copy(self, key: Hashable, device: Device) -> jax.stages.Compiled | None:
        """A copy of what was compiled for another device; None where that is not possible: what
        comes from JAX's compilation cache (where it is in use) cannot be saved a second time, nor
        can programs of some backends."""
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
    """A program for one device as one for another, without compiling it again."""
    saved, arguments, results = serialize_executable.serialize(compiled)
    found, info, no_kwargs = _Reader(io.BytesIO(saved), device).load()
    arguments = arguments.unflatten(info)
    return jax.stages.Compiled(found.load(), [], arguments, results, no_kwargs=no_kwargs)


class _Reader(serialize_executable._JaxPjrtUnpickler):
    """Reads a program for whatever device it was compiled as one for `device`."""

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
