"""Environments on the host, called from inside a compiled loop.

To dispatch a program with a whole training state costs a good part of a millisecond, as much as a
sparse update. A loop on the device that calls the host for each step pays that once in hundreds of
steps. Events (`segments`) are dispatched one by one. Needs the kernel library, and a CPU as device.
"""

import contextlib
import ctypes
import functools
import itertools
import os
import threading
import time as clock
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax.config import Config, Hyper
from rlx2_jax.control_flow import zeros
from rlx2_jax.envs import EnvironmentFailure, HostEnvs
from rlx2_jax.kernels import native
from rlx2_jax.training import lane as lanes_
from rlx2_jax.training import segments
from rlx2_jax.training.lane import LaneState
from rlx2_jax.training.lane_group import Group
from rlx2_jax.training.program import plain_lanes
from rlx2_jax.training.segments import Dues
from rlx2_jax.types import Array, TimeStep

# What the host answers. A step was taken: learn from it, and continue, or stop after it. No step
# was taken: it was not asked for, or the environment raised; nothing may change.
CONTINUE, STOP, SKIPPED, ENV_ERROR = range(4)
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
        self.expect(time, time)

    def expect(self, first: int, until: int) -> None:
        """A program is about to ask for steps `first`, `first + 1`, ...; those that were taken
        before, and those after `until` or after the last one for now, are skipped."""
        self._asked, self._until, self._ended = first - 1, until, False

    def take(self, action: Array) -> tuple[TimeStep[Any] | None, int]:
        """One step of the environments outside of a loop: what they returned (None if one raised),
        and the status."""
        self._action[:] = np.asarray(action).reshape(self._action.shape)
        self.expect(self.time + 1, self.time + 1)
        status = self._step()
        if status == ENV_ERROR:
            return None, status
        return _time_step(self._answer.copy().reshape(*action.shape[:-1], -1)), status

    def close(self) -> None:
        if self.slot >= 0:
            none = (ctypes.c_void_p(), ctypes.c_int64())
            native.load().Rlx2SetHost(self.slot, _Ask(), *none, *none)
            _free_slots().append(self.slot)
            self.slot = -1

    def _step(self) -> int:
        self._asked += 1
        if self._ended or not self.time < self._asked <= self._until:
            return SKIPPED
        start = clock.perf_counter()
        try:
            step = self._envs.step(self._action)
            self.seconds += clock.perf_counter() - start
            for part, field in zip(self._parts, step):
                part[:] = field.reshape(part.shape)
            self.time += 1
            self._ended = self._ends(self.time)
            return STOP if self._ended else CONTINUE
        except BaseException as error:  # whatever it is, the loop must end
            self.failure, self._ended = error, True
            return ENV_ERROR


def _ask(slot: Array, action: Array, obs_dim: int) -> tuple[TimeStep[Array], Array]:
    """The host's answer to actions [lanes, envs, act], and its status."""
    shape = (*action.shape[:-1], 2 * obs_dim + 3)
    types = (jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct((), jnp.int32))
    answer, status = jax.ffi.ffi_call("rlx2_host", types, has_side_effect=True)(slot, action)
    return _time_step(answer), status


def _time_step(answer: Any) -> TimeStep[Any]:
    """The fields of `answer: [lanes, envs, 2 obs + 3]`."""
    obs_dim = (answer.shape[-1] - 3) // 2
    next_obs, obs, rest = (
        answer[..., :obs_dim],
        answer[..., obs_dim : 2 * obs_dim],
        answer[..., 2 * obs_dim :],
    )
    return TimeStep(next_obs, obs, rest[..., 0], rest[..., 1] > 0, rest[..., 2] > 0)


class _Turn(NamedTuple):
    """What the loop carries from step to step."""

    state: LaneState
    time: Array  # of the last step taken
    going: Array  # bool: False once the host said so
    metrics: Any


def _run(
    state: LaneState,
    time: Array,
    until: Array,
    slot: Array,
    hyper: Hyper,
    config: Config,
    learn: bool,
) -> tuple[LaneState, Array, Any]:
    """Time steps after `time` up to `until`, or to where the host says, none of them an event: the
    state, the time reached, the last step's metrics.

    Nothing branches on the host's answer: a step that was not taken runs like any other, with
    `active` False.
    """

    def step(turn: _Turn, t: Array, dues: Dues, active: Array | bool) -> _Turn:
        del active  # the host knows
        after, status = _ask(slot, turn.state.acting.action, config.obs_dim)
        taken = (status == CONTINUE) | (status == STOP)
        state, metrics = plain_lanes(turn.state, after, t, hyper, config, dues, taken)
        going = turn.going & ((status == CONTINUE) | (status == SKIPPED))
        metrics = segments.select(taken, metrics, turn.metrics)
        return _Turn(state, turn.time + taken, going, metrics)

    dues = segments.phases(config, learn)[-1]
    ask = lambda: _ask(slot, state.acting.action, config.obs_dim)[0]  # noqa: E731
    metrics = zeros(lambda: plain_lanes(state, ask(), time, hyper, config, dues)[1])
    turn = _Turn(state, time, jnp.ones((), bool), metrics)
    turn = segments.plain_steps(
        turn, time, until, config, learn, step, going=lambda turn: turn.going
    )
    return turn.state, turn.time, turn.metrics


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
            event = segments.next_event(config, group.time)
            last = min(until, event - 1, until if learn else warm)
            if last > group.time:
                with self._once((config, learn)) as first:
                    if first:  # no step at all: compiles, once for all groups
                        _take(group, bridge, group.time, learn)
                _take(group, bridge, last, learn)
            else:
                self._event(group, bridge, learn)
            if isinstance(bridge.failure, EnvironmentFailure):
                raise group.explain(bridge.failure) from bridge.failure
            if bridge.failure:
                raise bridge.failure

    def _event(self, group: Group, bridge: Bridge, learn: bool) -> None:
        """One time step at which masks may evolve or the buffer is checked."""
        after, _ = bridge.take(group.state.acting.action)
        if after is None:
            return
        with self._once((group.program.config, learn, "event")):
            group.state, metrics = group.program.step(group.state, after, group.time + 1)
        group.metrics = metrics or group.metrics
        group.time += 1

    @contextlib.contextmanager
    def _once(self, key: Hashable) -> Iterator[bool]:
        """Holds a lock at the first use of a program, so that one group compiles it for all."""
        if key in self._compiled:
            yield False
            return
        with self._compiling:
            yield key not in self._compiled
            self._compiled.add(key)


def _take(group: Group, bridge: Bridge, last: int, learn: bool) -> None:
    """A group's plain steps up to `last`, in one call."""
    bridge.expect(segments.body_start(group.program.config, group.time, learn) + 1, last)
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
