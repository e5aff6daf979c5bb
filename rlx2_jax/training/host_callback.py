"""Steps host environments from inside a compiled program, one time step per callback.

The address of the callback object is a program argument, so no registry is needed and equal
programs share one compilation. Requires the kernel library and a CPU device.
"""

import ctypes
import itertools
import time as clock
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax.envs import HostEnvs
from rlx2_jax.kernels import native
from rlx2_jax.types import Array, TimeStep

# Status codes of a call:
CONTINUE = 0  # a step was taken: learn from it and continue
STOP = 1  # a step was taken: learn from it and leave the loop
SKIPPED = 2  # no step was due: change nothing and continue
ENV_ERROR = 3  # an environment raised: change nothing and leave the loop

_Call = ctypes.CFUNCTYPE(ctypes.c_int)


class _Callback(ctypes.Structure):
    """Must match `HostCallback` in kernels/host_ffi.h."""

    _fields_ = (
        ("call", _Call),
        ("input", ctypes.c_void_p),
        ("input_bytes", ctypes.c_int64),
        ("output", ctypes.c_void_p),
        ("output_bytes", ctypes.c_int64),
    )


def available() -> bool:
    """Whether compiled programs can call the host on this machine."""
    return native.execution() == "native" and jax.default_backend() == "cpu"


def call(handle: Array, action: Array, obs_dim: int) -> tuple[TimeStep[Array], Array]:
    """Calls the host from inside a program; returns the time step that follows
    `action: [lanes, envs, act]` and the status. `handle` is that of a `HostCallback`."""
    shape = (*action.shape[:-1], 2 * obs_dim + 3)
    types = (jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct((), jnp.int32))
    output, status = jax.ffi.ffi_call("rlx2_host", types, has_side_effect=True)(handle, action)
    return _time_step(output), status


def _time_step(output: Any) -> TimeStep[Any]:
    """Splits `output: [lanes, envs, 2 obs + 3]` into its fields."""
    obs_dim = (output.shape[-1] - 3) // 2
    next_obs, obs, rest = (
        output[..., :obs_dim],
        output[..., obs_dim : 2 * obs_dim],
        output[..., 2 * obs_dim :],
    )
    return TimeStep(next_obs, obs, rest[..., 0], rest[..., 1] > 0, rest[..., 2] > 0)


class HostCallback:
    """The environments of one group of lanes, callable from a compiled program.

    Attributes:
      handle: u32[2], the address to pass to `call`.
      time: time of the last environment step.
      seconds: time spent in environments since `begin`.
      failure: the exception that an environment has raised since `begin`, or None.
    """

    def __init__(self, envs: HostEnvs, action: Array, ends: Callable[[int], bool]):
        """`action`: an example, [lanes, envs, act]; `ends(time)`: whether the loop must stop after
        the step at `time`."""
        spec = envs.spec
        self._envs, self._ends = envs, ends
        self._action = np.zeros((envs.num_envs, spec.action_dim), action.dtype)
        self._output = np.zeros((envs.num_envs, 2 * spec.obs_dim + 3), np.float32)
        sizes = (spec.obs_dim, spec.obs_dim, 1, 1, 1)
        self._fields = np.split(self._output, list(itertools.accumulate(sizes))[:-1], axis=1)
        self.failure: BaseException | None
        self.begin(0)
        memory = [
            x for array in (self._action, self._output) for x in (array.ctypes.data, array.nbytes)
        ]
        self._callback = _Callback(_Call(self._step), *memory)
        address = ctypes.addressof(self._callback)
        self.handle = np.array([address & 0xFFFFFFFF, address >> 32], np.uint32)

    def begin(self, time: int) -> None:
        """Prepares for the steps after `time`."""
        self.time, self.seconds, self.failure = time, 0.0, None
        self.expect(time, time)

    def expect(self, first: int, until: int) -> None:
        """Prepares for a program that requests steps `first`, `first + 1`, ...

        Skips steps that were already taken, steps after `until`, and steps after `ends`."""
        self._asked, self._until, self._ended = first - 1, until, False

    def take(self, action: Array) -> TimeStep[Any] | None:
        """Steps the environments once outside of a loop; None if one of them raised."""
        self._action[:] = np.asarray(action).reshape(self._action.shape)
        self.expect(self.time + 1, self.time + 1)
        if self._step() == ENV_ERROR:
            return None
        return _time_step(self._output.copy().reshape(*action.shape[:-1], -1))

    def close(self) -> None:
        """Invalidates the handle: programs that use it from now on raise."""
        self.handle = np.zeros(2, np.uint32)

    def _step(self) -> int:
        self._asked += 1
        if self._ended or not self.time < self._asked <= self._until:
            return SKIPPED
        start = clock.perf_counter()
        try:
            step = self._envs.step(self._action)
            self.seconds += clock.perf_counter() - start
            for field, value in zip(self._fields, step):
                field[:] = value.reshape(field.shape)
            self.time += 1
            self._ended = self._ends(self.time)
            return STOP if self._ended else CONTINUE
        except BaseException as error:  # exceptions cannot propagate through compiled code
            self.failure, self._ended = error, True
            return ENV_ERROR
