"""Runs groups of lanes in compiled loops that call their host environments.

Dispatching a program with a whole training state costs a good part of a millisecond, as much as a
sparse update. A loop on the device that calls the host for each step pays that once in hundreds of
steps. Events (`segments`) are dispatched one by one.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from rlx2_jax.config import Config, Hyper
from rlx2_jax.control_flow import zeros
from rlx2_jax.envs import EnvironmentFailure, HostEnvs
from rlx2_jax.training import host_callback, segments
from rlx2_jax.training import lane as lanes_
from rlx2_jax.training.devices import SharedJit
from rlx2_jax.training.host_callback import CONTINUE, SKIPPED, STOP, HostCallback
from rlx2_jax.training.lane import LaneState
from rlx2_jax.training.lane_group import Group
from rlx2_jax.training.program import plain_lanes
from rlx2_jax.training.segments import Dues
from rlx2_jax.types import Array

# A group that runs holds a thread of the device. Where groups are more than threads, some wait for
# others to end, and all can meet again (to stop, say) after so many steps.
_MEET = 100


def _threads() -> int:
    """How many programs can run at the same time."""
    own = getattr(os, "sched_getaffinity", None)
    return len(own(0)) if own else os.cpu_count() or 1


class _Carry(NamedTuple):
    """What the loop carries from step to step."""

    state: LaneState
    time: Array  # of the last step taken
    going: Array  # bool: False once the host said so
    metrics: dict[str, Array]


def _run(
    state: LaneState,
    time: Array,
    until: Array,
    handle: Array,
    hyper: Hyper,
    config: Config,
    learn: bool,
) -> tuple[LaneState, Array, dict[str, Array]]:
    """Time steps after `time` up to `until`, or to where the host says, none of them an event: the
    state, the time reached, the last step's metrics.

    Nothing branches on the host's status: a step that was not taken runs like any other, with
    `active` False.
    """

    def step(carry: _Carry, t: Array, dues: Dues, active: Array | bool) -> _Carry:
        del active  # the host knows
        after, status = host_callback.call(handle, carry.state.acting.action, config.obs_dim)
        taken = (status == CONTINUE) | (status == STOP)
        state, metrics = plain_lanes(carry.state, after, t, hyper, config, dues, taken)
        going = carry.going & ((status == CONTINUE) | (status == SKIPPED))
        metrics = segments.select(taken, metrics, carry.metrics)
        return _Carry(state, carry.time + taken, going, metrics)

    dues = segments.phases(config, learn)[-1]
    ask = lambda: host_callback.call(handle, state.acting.action, config.obs_dim)[0]  # noqa: E731
    metrics = zeros(lambda: plain_lanes(state, ask(), time, hyper, config, dues)[1])
    carry = _Carry(state, time, jnp.ones((), bool), metrics)
    carry = segments.plain_steps(
        carry, time, until, config, learn, step, going=lambda carry: carry.going
    )
    return carry.state, carry.time, carry.metrics


# Compiled once per Config, as in `program`.
_compiled_run = SharedJit(_run, static=(5, 6), donate=(0,))


class CallbackRunner:
    """Groups of lanes, each in a loop of its own that calls its environments.

    Attributes:
      callbacks: one for each group.
      seconds: that the last `advance` spent in environments.
    """

    def __init__(self, groups: list[Group], envs: list[HostEnvs], concurrent: bool):
        """`concurrent`: groups run at the same time; else one after the other."""
        self._groups = groups
        self._all_run = len(groups) <= (_threads() if concurrent else 1)
        self.seconds = 0.0
        self._ends: Callable[[int], bool] = lambda t: False
        self.callbacks = [
            HostCallback(own, group.state.acting.action, lambda t: self._ends(t))
            for group, own in zip(groups, envs)
        ]
        self._threads = ThreadPoolExecutor(len(groups) if concurrent else 1)
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
                self.seconds += sum(callback.seconds for callback in self.callbacks)
            if stop():
                return

    def _together(self, until: int, stop: Callable[[], bool]) -> None:
        end: list[int] = []  # where to stop, once that is known
        for group, callback in zip(self._groups, self.callbacks):
            callback.begin(group.time)

        def ends(t: int) -> bool:
            # A group may already be in the step after its last one: stop where all can meet.
            if not end and (stop() or any(callback.failure for callback in self.callbacks)):
                end.append(1 + max(callback.time for callback in self.callbacks))
            return bool(end) and t >= end[0]

        self._ends = ends
        running = [
            self._threads.submit(self._run, group, callback, until)
            for group, callback in zip(self._groups, self.callbacks)
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
        for callback in self.callbacks:
            callback.close()

    def _run(self, group: Group, callback: HostCallback, until: int) -> None:
        """Takes a group to `until`, or to where its callback says."""
        config = group.program.config
        warm = lanes_.warmup_time(config)
        while group.time < until and not self._ends(group.time):
            learn = group.time >= warm
            event = segments.next_event(config, group.time)
            last = min(until, event - 1, until if learn else warm)
            if last > group.time:
                with self._once((config, learn)) as first:
                    if first:  # no step at all: compiles, once for all groups
                        _plain_steps(group, callback, group.time, learn)
                _plain_steps(group, callback, last, learn)
            else:
                self._event(group, callback, learn)
            if isinstance(callback.failure, EnvironmentFailure):
                raise group.explain(callback.failure) from callback.failure
            if callback.failure:
                raise callback.failure

    def _event(self, group: Group, callback: HostCallback, learn: bool) -> None:
        """One time step at which masks may evolve or the buffer is checked."""
        after = callback.take(group.state.acting.action)
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


def _plain_steps(group: Group, callback: HostCallback, last: int, learn: bool) -> None:
    """A group's plain steps up to `last`, in one call."""
    callback.expect(segments.body_start(group.program.config, group.time, learn) + 1, last)
    group.state, time, metrics = _compiled_run(
        group.state,
        np.int32(group.time),
        np.int32(last),
        callback.handle,
        group.program.hyper,
        group.program.config,
        learn,
    )
    if last > group.time:
        group.metrics = metrics or group.metrics
    group.time = int(time)  # waits for the device
