"""Runs groups of lanes in compiled loops that call their host environments.

Dispatching a program with a full training state costs a large part of a millisecond, as much as a
sparse update. A device loop that calls back to the host at each step pays this once per several
hundred steps. Events (see `segments`) are dispatched individually.
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

# Each running group occupies one device thread. With more groups than threads, groups take turns
# and synchronize after at least this many steps, so that all can stop at the same time.
_SYNC_INTERVAL = 100


def _threads() -> int:
    """How many programs can run at the same time."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


class _Carry(NamedTuple):
    """The loop carry."""

    state: LaneState
    time: Array  # of the last step taken
    keep_going: Array  # bool: False once the host has asked to stop
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
    """Plain time steps from `time + 1` to `until`, or until the host asks to stop; returns the
    state, the time reached and the last step's metrics.

    Nothing branches on the host's status: skipped steps run like any other, with `active` False.
    """

    def step(carry: _Carry, t: Array, dues: Dues, active: Array | bool) -> _Carry:
        del active  # reported by the host's status
        after, status = host_callback.call(handle, carry.state.acting.action, config.obs_dim)
        taken = (status == CONTINUE) | (status == STOP)
        state, metrics = plain_lanes(carry.state, after, t, hyper, config, dues, taken)
        keep_going = carry.keep_going & ((status == CONTINUE) | (status == SKIPPED))
        metrics = segments.select(taken, metrics, carry.metrics)
        return _Carry(state, carry.time + taken, keep_going, metrics)

    dues = segments.phases(config, learn)[-1]
    first = lambda: host_callback.call(handle, state.acting.action, config.obs_dim)[0]  # noqa: E731
    metrics = zeros(lambda: plain_lanes(state, first(), time, hyper, config, dues)[1])
    carry = _Carry(state, time, jnp.ones((), bool), metrics)
    carry = segments.plain_steps(
        carry, time, until, config, learn, step, keep_going=lambda carry: carry.keep_going
    )
    return carry.state, carry.time, carry.metrics


# Compiled once per Config, as in `program`.
_compiled_run = SharedJit(_run, static=(5, 6), donate=(0,))


class CallbackRunner:
    """Groups of lanes, each in a device loop that calls its host environments.

    Attributes:
      callbacks: one for each group.
      seconds: time that the last `advance` spent in environments.
    """

    def __init__(self, groups: list[Group], envs: list[HostEnvs], concurrent: bool):
        """`concurrent`: run groups in parallel threads instead of one after the other."""
        self._groups = groups
        self._all_run = len(groups) <= (_threads() if concurrent else 1)
        self.seconds = 0.0
        self._ends: Callable[[int], bool] = lambda t: False
        self.callbacks = [
            HostCallback(group_envs, group.state.acting.action, lambda t: self._ends(t))
            for group, group_envs in zip(groups, envs)
        ]
        self._threads = ThreadPoolExecutor(len(groups) if concurrent else 1)
        self._compiling, self._compiled = threading.Lock(), set()

    def advance(self, until: int, stop: Callable[[], bool]) -> None:
        """Advances all groups to `until`, or to a common earlier time once `stop()` is true.

        That is the end of a loop body, so that numbers do not depend on where a run stops.
        """
        self.seconds = 0.0
        time = min(group.time for group in self._groups)
        while time < until:
            time = until if self._all_run else min(until, self._body_end(time + _SYNC_INTERVAL))
            try:
                self._together(time, stop)
            finally:
                self.seconds += sum(callback.seconds for callback in self.callbacks)
            if stop():
                return

    def _together(self, until: int, stop: Callable[[], bool]) -> None:
        end: list[int] = []  # the time to stop at, once known
        for group, callback in zip(self._groups, self.callbacks):
            callback.begin(group.time)

        def ends(t: int) -> bool:
            # A group may already be one step ahead: stop at a time that all groups can reach.
            if not end and (stop() or any(callback.failure for callback in self.callbacks)):
                end.append(self._body_end(1 + max(callback.time for callback in self.callbacks)))
            return bool(end) and t >= end[0]

        self._ends = ends
        running = [
            self._threads.submit(self._run, group, callback, until)
            for group, callback in zip(self._groups, self.callbacks)
        ]
        try:
            wait(running)
        except BaseException:  # interrupted: no thread may keep using the states
            end.append(0)
            wait(running)
            raise
        for future in running:
            future.result()

    def close(self) -> None:
        self._threads.shutdown()
        for callback in self.callbacks:
            callback.close()

    def _body_end(self, time: int) -> int:
        """The first time, `time` or later, at which no group's loop is inside a body."""
        return max(segments.body_end(group.program.config, time) for group in self._groups)

    def _run(self, group: Group, callback: HostCallback, until: int) -> None:
        """Advances a group to `until`, or until its callback stops it."""
        config = group.program.config
        warm = lanes_.warmup_time(config)
        while group.time < until and not self._ends(group.time):
            learn = group.time >= warm
            event = segments.next_event(config, group.time)
            last = min(until, event - 1, until if learn else warm)
            if last > group.time:
                with self._once((config, learn)) as first:
                    if first:  # zero steps: only compiles, once for all groups
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
        """Serializes the first use of a program, so that one group compiles it for all."""
        if key in self._compiled:
            yield False
            return
        with self._compiling:
            yield key not in self._compiled
            self._compiled.add(key)


def _plain_steps(group: Group, callback: HostCallback, last: int, learn: bool) -> None:
    """Runs a group's plain steps up to `last` in one call."""
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
