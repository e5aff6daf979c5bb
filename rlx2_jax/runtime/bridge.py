"""Environments on the host, asked from inside a compiled loop.

To dispatch a program with a whole training state costs a good part of a millisecond, as much as a
sparse update. A loop on the device that asks the host for each step pays that once in hundreds of
steps. Needs the kernel library, and a CPU as device.
"""

import ctypes
import functools
import itertools
import time as clock
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax.branch import when
from rlx2_jax.compact import native
from rlx2_jax.config import Config, Hyper
from rlx2_jax.envs import HostEnvs
from rlx2_jax.lane import LaneState, Outcome
from rlx2_jax.runtime.program import step_lanes
from rlx2_jax.types import Array

GO_ON, LAST, FAILED = range(3)  # answers: learn and go on; learn and stop; nothing was learned
_Ask = ctypes.CFUNCTYPE(ctypes.c_int)


def available() -> bool:
    """Whether programs can ask the host here."""
    return native.execution() == "native" and jax.default_backend() == "cpu"


@functools.cache
def _free_slots() -> list[int]:
    return list(range(native.load().Rlx2HostSlots()))


class Bridge:
    """One group's environments, as a slot that a running program asks.

    Attributes:
      time: of the last step that the environments took.
      seconds: spent in them since `begin`.
      failure: what one of them raised since then.
    """

    def __init__(self, envs: HostEnvs, action: Array, ends: Callable[[int], bool]):
        """`action`: the lanes' first ones, [lanes, envs, act]; `ends(time)`: whether a step that
        was taken is the last for now."""
        spec = envs.spec
        self._envs, self._ends = envs, ends
        self._action = np.zeros((envs.num_envs, spec.action_dim), action.dtype)
        self._answer = np.zeros((envs.num_envs, 2 * spec.obs_dim + 3), np.float32)
        parts = (spec.obs_dim, spec.obs_dim, 1, 1, 1)
        self._parts = np.split(self._answer, list(itertools.accumulate(parts))[:-1], axis=1)
        self.failure: BaseException | None
        self.begin(0)
        self._ask = _Ask(self._step)
        self.slot = _free_slots().pop()
        question, answer = (
            (ctypes.c_void_p(x.ctypes.data), ctypes.c_int64(x.nbytes))
            for x in (self._action, self._answer)
        )
        native.load().Rlx2SetHost(self.slot, self._ask, *question, *answer)

    def begin(self, time: int) -> None:
        """The steps after `time` are about to be asked for."""
        self.time, self.seconds, self.failure = time, 0.0, None

    def close(self) -> None:
        if self.slot >= 0:
            none = (ctypes.c_void_p(), ctypes.c_int64())
            native.load().Rlx2SetHost(self.slot, _Ask(), *none, *none)
            _free_slots().append(self.slot)
            self.slot = -1

    def _step(self) -> int:
        start = clock.perf_counter()
        try:
            step = self._envs.step(self._action)
            self.seconds += clock.perf_counter() - start
            next_obs, obs, reward, terminated, truncated = self._parts
            next_obs[:], obs[:] = step.next_obs, step.obs
            reward[:, 0], terminated[:, 0], truncated[:, 0] = (
                step.reward,
                step.terminated,
                step.truncated,
            )
            self.time += 1
            return LAST if self._ends(self.time) else GO_ON
        except BaseException as error:  # whatever it is, the loop must end
            self.failure = error
            return FAILED


def _ask(slot: Array, action: Array, obs_dim: int) -> tuple[Outcome, Array]:
    """The host's answer to actions [lanes, envs, act], and whether to go on."""
    shape = (*action.shape[:-1], 2 * obs_dim + 3)
    types = (jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct((), jnp.int32))
    answer, status = jax.ffi.ffi_call("rlx2_host", types, has_side_effect=True)(slot, action)
    next_obs, obs, rest = jnp.split(answer, (obs_dim, 2 * obs_dim), axis=-1)
    return Outcome(next_obs, obs, rest[..., 0], rest[..., 1] > 0, rest[..., 2] > 0), status


def _run(
    state: LaneState,
    time: Array,
    until: Array,
    slot: Array,
    hyper: Hyper,
    config: Config,
    learn: bool,
) -> tuple[LaneState, Array, Any]:
    """Time steps after `time` up to `until`, or to where the host says: the state, the time
    reached, the last step's metrics."""

    def going(carry: Any) -> Array:
        _, t, status, _ = carry
        return (status == GO_ON) & (t < until)

    def turn(carry: Any) -> Any:
        state, t, _, metrics = carry
        outcome, status = _ask(slot, state.acting.action, config.obs_dim)
        learned = status != FAILED
        step = lambda carry: change(carry[0], outcome, t + 1)  # noqa: E731
        state, metrics = when(learned, step, (state, metrics))
        return state, t + learned, status, metrics

    def change(state: LaneState, outcome: Outcome, t: Array) -> tuple[LaneState, Any]:
        return step_lanes(state, outcome, t, hyper, config, learn)

    outcome, _ = jax.eval_shape(lambda: _ask(slot, state.acting.action, config.obs_dim))
    shapes = jax.eval_shape(change, state, outcome, time)[1]
    metrics = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    begin = (state, time, jnp.int32(GO_ON), metrics)
    state, time, _, metrics = jax.lax.while_loop(going, turn, begin)
    return state, time, metrics


# Compiled once per Config, as in `program`.
run = jax.jit(_run, static_argnums=(5, 6), donate_argnums=0)
