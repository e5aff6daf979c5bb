"""The two training loops: environments on the host, or everything on the device.

Both advance all lanes of a chunk to a given time and let it be evaluated, inspected, saved and
restored in between; what a lane computes does not depend on which others run beside it.
"""

import contextlib
import time as clock
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax.config import Config, Lane
from rlx2_jax.control_flow import zeros
from rlx2_jax.envs import EnvironmentFailure, HostEnvs
from rlx2_jax.envs.device import DeviceEnv
from rlx2_jax.replay import buffer
from rlx2_jax.training import host_callback, plan, segments
from rlx2_jax.training import lane as lanes_
from rlx2_jax.training.checkpoint import Snapshot
from rlx2_jax.training.evaluate import DeviceEvaluator, Evaluation, HostEvaluator, seeds
from rlx2_jax.training.lane import LaneState, Stream, stream_key
from rlx2_jax.training.lane_group import Group, explain
from rlx2_jax.training.program import networks_of, plain_lanes, step_lanes
from rlx2_jax.training.weights import Weights

Stop = Callable[[], bool]


class Loop(Protocol):
    """All lanes of a chunk; `lanes` are the positions of each group's lanes among them."""

    time: int
    lanes: list[list[int]]

    def advance(self, until: int, stop: Stop) -> None: ...
    def evaluate(self, stop: Stop) -> Evaluation: ...
    def report(self) -> list[dict[str, Any]]: ...
    def snapshots(self) -> list[Snapshot]: ...
    def restore(self, snapshots: list[Snapshot], exact: bool) -> None: ...
    def states(self) -> list[LaneState]: ...
    def close(self) -> None: ...


class HostLoop:
    """Environments on the host, groups of lanes beside each other: while the device updates one
    group, the host steps the environments of another. If all lanes share one program they are cut
    into groups (`plan.groups`); otherwise each program (`plan.parts`) is a group.

    Where programs can ask the host (`bridge`), each group runs in a loop on the device; elsewhere
    every step is a call of its own, groups in turn.

    Attributes:
      seconds: time spent in environments, for benchmarks.
    """

    def __init__(
        self,
        config: Config,
        lanes: list[Lane],
        make_envs: Callable[[int], HostEnvs],
        *,
        episodes: int = 10,
        pipeline: bool = True,
        asks: bool | None = None,
        only: Sequence[int] | None = None,
        limited: bool = True,
    ):
        """`asks`: whether programs ask the host; None: if they can. `only`: positions of lanes;
        groups without any of them are left out, the others are what they are with all lanes.
        `limited`: False where the environment had no time limit when the run began."""
        parts = plan.parts(config, lanes)
        if len(parts) == 1:
            parts = plan.groups(parts[0])
        parts = _chosen(parts, only)
        self.lanes = [list(part.lanes) for part in parts]
        self._pipeline = pipeline
        self._envs_per_lane = config.num_envs
        self.time = 0
        self.seconds = 0.0
        self._groups = [Group(part.config, [lanes[i] for i in part.lanes]) for part in parts]
        self._envs = [make_envs(len(part.lanes) * config.num_envs) for part in parts]
        self._episodes = episodes
        self._evaluators: list[HostEvaluator] | None = None
        self._make_evaluators = lambda: [
            HostEvaluator(make_envs(len(g.program.lanes) * episodes), g.program, episodes)
            for g in self._groups
        ]
        for group, envs in zip(self._groups, self._envs):
            first = [
                s
                for lane in group.program.lanes
                for s in seeds(lane.seed, Stream.ENVIRONMENT, config.num_envs)
            ]
            try:
                obs = envs.reset(first)
            except EnvironmentFailure as failure:
                raise explain(failure, group.program.lanes, config.num_envs, "reset") from failure
            group.start(self._by_lane(obs), envs.spec.max_episode_steps if limited else None)
        asks = host_callback.available() if asks is None else asks
        self._asking = host_callback.Asking(self._groups, self._envs, pipeline) if asks else None

    def advance(self, until: int, stop: Stop) -> None:
        if self._asking is None:
            self._advance_in_turn(until, stop)
            return
        try:
            self._asking.advance(until, stop)
        finally:
            self.time = min(group.time for group in self._groups)
            self.seconds += self._asking.seconds

    def _advance_in_turn(self, until: int, stop: Stop) -> None:
        """A call for each step of each group."""
        for t in range(self.time + 1, until + 1):
            for group, envs in zip(self._groups, self._envs):
                if group.time < t:  # one half may be ahead where the other's environment failed
                    self._step(group, envs, t)
            self.time = t
            if stop():
                return

    def _step(self, group: Group, envs: HostEnvs, t: int) -> None:
        action = np.array(group.state.acting.action)  # waits for the device
        start = clock.perf_counter()
        try:
            step = envs.step(action.reshape(envs.num_envs, -1))
        except EnvironmentFailure as failure:
            raise group.explain(failure) from failure
        self.seconds += clock.perf_counter() - start
        after = jax.tree.map(self._by_lane, step)
        group.state, metrics = group.program.step(group.state, after, t)
        group.metrics = metrics or group.metrics
        group.time = t
        if not self._pipeline:
            jax.block_until_ready(group.state)

    def _by_lane(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(-1, self._envs_per_lane, *x.shape[1:])

    def evaluate(self, stop: Stop = lambda: False) -> Evaluation:
        """All lanes' evaluation, groups in parallel; raises `Interrupted` once `stop()` is true."""
        when = f"evaluation at step {self.time * self._envs_per_lane}"

        def one(group: Group, evaluator: HostEvaluator) -> Evaluation:
            try:
                return evaluator(group.state, stop)
            except EnvironmentFailure as failure:
                raise explain(failure, group.program.lanes, self._episodes, when) from failure

        try:
            self._evaluators = self._evaluators or self._make_evaluators()
        except EnvironmentFailure as failure:
            lanes = self._groups[0].program.lanes
            raise explain(failure, lanes, self._episodes, when) from failure
        with ThreadPoolExecutor(len(self._groups)) as threads:
            found = list(threads.map(one, self._groups, self._evaluators))
        return _in_order(found, self.lanes)

    def report(self) -> list[dict[str, Any]]:
        rows = [row for group in self._groups for row in group.report()]
        return [rows[i] for i in _back(self.lanes)]

    def snapshots(self) -> list[Snapshot]:
        return [Snapshot(g.time, g.state, e.state()) for g, e in zip(self._groups, self._envs)]

    def restore(self, snapshots: list[Snapshot], exact: bool) -> None:
        """Continues from `snapshots`; where environments cannot, with new episodes."""
        for group, envs, saved in zip(self._groups, self._envs, snapshots):
            try:
                obs = envs.restore(saved.env)
            except EnvironmentFailure as failure:
                lanes = group.program.lanes
                raise explain(failure, lanes, self._envs_per_lane, "restart") from failure
            group.state, group.time = saved.state, saved.time
            if not (exact and envs.exact_restore):
                group.state = _restart(group, self._by_lane(obs))
        self.time = min(group.time for group in self._groups)

    def states(self) -> list[LaneState]:
        return [group.state for group in self._groups]

    @property
    def exact_restore(self) -> bool:
        return all(envs.exact_restore for envs in self._envs)

    def close(self) -> None:
        if self._asking is not None:
            self._asking.close()
        for envs in [*self._envs, *(e.envs for e in self._evaluators or [])]:
            with contextlib.suppress(Exception):  # an environment may have failed
                envs.close()


def _restart(group: Group, obs: np.ndarray) -> LaneState:
    """The lanes' states with new episodes begun at `obs`, the old ones cut off."""
    config, t = group.program.config, group.time + 1

    def one(state: LaneState, obs: jax.Array, hyper: Any) -> LaneState:
        state = state._replace(replay=buffer.cut(state.replay))
        return state._replace(acting=lanes_.act(state, obs, jnp.int32(t), config, hyper))

    restart = jax.jit(jax.vmap(one), donate_argnums=0)
    return restart(group.state, jnp.asarray(obs), group.program.hyper)


def networks(loop: "HostLoop | DeviceLoop") -> list[dict[str, Weights]]:
    """The networks of every lane, in the lanes' order."""
    found = [x for state in loop.states() for x in networks_of(state.agent)]
    return [found[i] for i in _back(loop.lanes)]


def _chosen(parts: list[plan.Part], only: Sequence[int] | None) -> list[plan.Part]:
    return parts if only is None else [part for part in parts if {*only} & {*part.lanes}]


def _back(lanes: list[list[int]]) -> np.ndarray:
    """Where each lane is found among the lanes of all groups."""
    return np.argsort(np.concatenate(lanes))


def _in_order(found: list[Evaluation], lanes: list[list[int]]) -> Evaluation:
    """Evaluations of groups as one, in the order of the lanes."""
    return Evaluation(*(np.concatenate(field)[_back(lanes)] for field in zip(*found)))


class _DeviceGroup(Group):
    """Lanes of one program with their environments, all on the device."""

    def __init__(self, config: Config, lanes: list[Lane], env: DeviceEnv, episodes: int):
        super().__init__(config, lanes)
        self._step_envs = jax.vmap(jax.vmap(env.step))
        self.evaluator = DeviceEvaluator(env, self.program, episodes)

        def begin(seed: jax.Array) -> Any:
            index = jnp.arange(config.num_envs)
            keys = jax.vmap(lambda i: stream_key(seed, Stream.ENVIRONMENT, i))(index)
            return jax.vmap(env.reset)(keys)

        lane_seeds = jnp.asarray([lane.seed for lane in self.program.lanes], jnp.int32)
        self.env_state = jax.jit(jax.vmap(begin))(lane_seeds)
        self.start(np.asarray(self.env_state.obs), env.spec.max_episode_steps)
        self._plain = jax.jit(self._plain_steps, static_argnums=3, donate_argnums=0)
        self._event = jax.jit(self._event_step, static_argnums=2, donate_argnums=0)

    def advance(self, last: int, learn: bool) -> None:
        """All time steps up to `last`."""
        while self.time < last:
            carry, event = (self.state, self.env_state), self._next_event()
            stop = min(last, event - 1)
            if stop > self.time:
                times = np.int32(self.time), np.int32(stop)
                self.state, self.env_state, metrics = self._plain(carry, *times, learn)
            else:
                stop = event
                self.state, self.env_state, metrics = self._event(carry, np.int32(event), learn)
            self.metrics = metrics or self.metrics
            self.time = stop

    def _next_event(self) -> int:
        return segments.next_event(self.program.config, self.time)

    def _plain_steps(
        self, carry: tuple[LaneState, Any], time: jax.Array, until: jax.Array, learn: bool
    ) -> tuple[LaneState, Any, Any]:
        """Time steps after `time` up to `until`, none of them an event."""
        hyper, config = self.program.hyper, self.program.config

        def step(carry: Any, t: jax.Array, dues: segments.Dues, active: jax.Array | bool) -> Any:
            state, before, old = carry
            env_state, after = self._step_envs(before, state.acting.action)
            state, metrics = plain_lanes(state, after, t, hyper, config, dues, active)
            return state, *segments.select(active, (env_state, metrics), (before, old))

        metrics = zeros(lambda: self._event_step(carry, time, learn)[2])
        return segments.plain_steps((*carry, metrics), time, until, config, learn, step)

    def _event_step(
        self, carry: tuple[LaneState, Any], t: jax.Array, learn: bool
    ) -> tuple[LaneState, Any, Any]:
        """A time step at which masks may evolve or the buffer is checked."""
        state, env_state = carry
        env_state, after = self._step_envs(env_state, state.acting.action)
        hyper, config = self.program.hyper, self.program.config
        state, metrics = step_lanes(state, after, t, hyper, config, learn)
        return state, env_state, metrics


class DeviceLoop:
    """Environments on the device: one compiled loop from event to event for each program."""

    exact_restore = True

    def __init__(
        self,
        config: Config,
        lanes: list[Lane],
        env: DeviceEnv,
        *,
        episodes: int = 10,
        only: Sequence[int] | None = None,
    ):
        parts = _chosen(plan.parts(config, lanes), only)
        self.lanes = [list(part.lanes) for part in parts]
        self._groups = [
            _DeviceGroup(part.config, [lanes[i] for i in part.lanes], env, episodes)
            for part in parts
        ]
        self._warm = lanes_.warmup_time(config)
        self.time = 0

    def advance(self, until: int, stop: Stop) -> None:
        while self.time < until and not stop():
            learn = self.time >= self._warm
            last = min(until if learn else min(until, self._warm), self.time + 1000)
            for group in self._groups:
                group.advance(last, learn)
            jax.block_until_ready([group.state.acting for group in self._groups])
            self.time = last

    def evaluate(self, stop: Stop = lambda: False) -> Evaluation:
        del stop  # one call for each program
        found = [group.evaluator(group.state) for group in self._groups]
        return _in_order(found, self.lanes)

    def report(self) -> list[dict[str, Any]]:
        rows = [row for group in self._groups for row in group.report()]
        return [rows[i] for i in _back(self.lanes)]

    def snapshots(self) -> list[Snapshot]:
        return [Snapshot(self.time, group.state, group.env_state) for group in self._groups]

    def restore(self, snapshots: list[Snapshot], exact: bool) -> None:
        del exact
        for group, saved in zip(self._groups, snapshots):
            group.state, group.time = saved.state, saved.time
            group.env_state = jax.tree.map(jnp.asarray, saved.env)
            self.time = saved.time

    def states(self) -> list[LaneState]:
        return [group.state for group in self._groups]

    def close(self) -> None:
        pass
