"""Environments on the host, asked from inside a compiled loop.

To dispatch a program with a whole training state costs a good part of a millisecond, as much as a
sparse update. A loop on the device that asks the host for each step pays that once in hundreds of
steps. Needs the kernel library, and a CPU as device.
"""

import ctypes
import functools
import itertools
import os
import threading
import time as clock
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax import lane as lanes_
from rlx2_jax.branch import when, zeros
from rlx2_jax.compact import native
from rlx2_jax.config import Config, Hyper
from rlx2_jax.envs import EnvironmentFailure, HostEnvs
from rlx2_jax.lane import LaneState, Outcome
from rlx2_jax.runtime.group import Group
from rlx2_jax.runtime.program import step_lanes
from rlx2_jax.types import Array

GO_ON, LAST, FAILED = range(3)  # answers: learn and go on; learn and stop; nothing was learned
_Ask = ctypes.CFUNCTYPE(ctypes.c_int)
# A group that runs holds a thread of the device. Where groups are more than threads, some wait for
# others to end, and all can meet again (to stop, say) after so many steps.
_MEET = 100


def available() -> bool:
    """Whether programs can ask the host here."""
    return native.execution() == "native" and jax.default_backend() == "cpu"


def _threads() -> int:
    """How many programs can run at the same time."""
    own = getattr(os, "sched_getaffinity", None)
    return len(own(0)) if own else os.cpu_count() or 1


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
        if not _free_slots():
            raise RuntimeError("all slots for environments are taken: close loops that have ended")
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

    metrics = zeros(
        lambda: change(state, _ask(slot, state.acting.action, config.obs_dim)[0], time)[1]
    )
    begin = (state, time, jnp.int32(GO_ON), metrics)
    state, time, _, metrics = jax.lax.while_loop(going, turn, begin)
    return state, time, metrics


# Compiled once per Config, as in `program`.
run = jax.jit(_run, static_argnums=(5, 6), donate_argnums=0)


class Asking:
    """Groups of lanes beside each other, each in a loop of its own that asks its environments.

    Attributes:
      seconds: that the last `advance` spent in environments.
    """

    def __init__(self, groups: list[Group], envs: list[HostEnvs], beside: bool):
        """`beside`: groups run beside each other; else one after the other."""
        self._groups = groups
        self._all_run = len(groups) <= (_threads() if beside else 1)
        self.seconds = 0.0
        self._ends: Callable[[int], bool] = lambda t: False
        self.bridges = [
            Bridge(own, group.state.acting.action, lambda t: self._ends(t))
            for group, own in zip(groups, envs)
        ]
        self._threads = ThreadPoolExecutor(len(groups) if beside else 1)
        self._compiling, self._compiled = threading.Lock(), set()

    def advance(self, until: int, stop: Callable[[], bool]) -> None:
        """Takes all groups to `until`, or to one time before it where `stop()` was true."""
        self.seconds = 0.0
        time = min(group.time for group in self._groups)
        while time < until:
            time = until if self._all_run else min(until, time + _MEET)
            try:
                self._together(time, stop)
            finally:
                self.seconds += sum(bridge.seconds for bridge in self.bridges)
            if stop():
                return

    def _together(self, until: int, stop: Callable[[], bool]) -> None:
        end: list[int] = []  # where to stop, once that is known
        for group, bridge in zip(self._groups, self.bridges):
            bridge.begin(group.time)

        def ends(t: int) -> bool:
            # A group may already be in the step after its last one: stop where all can meet.
            if not end and (stop() or any(bridge.failure for bridge in self.bridges)):
                end.append(1 + max(bridge.time for bridge in self.bridges))
            return bool(end) and t >= end[0]

        self._ends = ends
        running = [
            self._threads.submit(self._run, group, bridge, until)
            for group, bridge in zip(self._groups, self.bridges)
        ]
        try:
            wait(running)
        except BaseException:  # an interruption: no thread may go on with the states
            end.append(0)
            wait(running)
            raise
        for future in running:
            future.result()

    def close(self) -> None:
        self._threads.shutdown()
        for bridge in self.bridges:
            bridge.close()

    def _run(self, group: Group, bridge: Bridge, until: int) -> None:
        """Takes a group to `until`, or to where its bridge says."""
        config = group.program.config
        warm = lanes_.warmup_time(config)
        while group.time < until and not self._ends(group.time):
            learn = group.time >= warm
            with self._compiling:  # no step at all: compiles, once for all groups
                if (config, learn) not in self._compiled:
                    _take(group, bridge, group.time, learn)
                    self._compiled.add((config, learn))
            _take(group, bridge, until if learn else min(until, warm), learn)
            if isinstance(bridge.failure, EnvironmentFailure):
                raise group.explain(bridge.failure) from bridge.failure
            if bridge.failure:
                raise bridge.failure


def _take(group: Group, bridge: Bridge, last: int, learn: bool) -> None:
    """A group's steps up to `last`, in one call."""
    group.state, time, metrics = run(
        group.state,
        np.int32(group.time),
        np.int32(last),
        np.int32(bridge.slot),
        group.program.hyper,
        group.program.config,
        learn,
    )
    if last > group.time:
        group.metrics = metrics or group.metrics
    group.time = int(time)  # waits for the device
