"""The training loop of environments on the host."""

import contextlib
import time as clock
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax.config import Config, Hyper, Lane
from rlx2_jax.envs import EnvironmentFailure, HostEnvs
from rlx2_jax.prng import Stream
from rlx2_jax.replay import buffer
from rlx2_jax.training import host_callback, plan
from rlx2_jax.training import lane as lanes_
from rlx2_jax.training.callback_runner import CallbackRunner
from rlx2_jax.training.devices import SharedJit
from rlx2_jax.training.evaluate import HostEvaluator, seeds
from rlx2_jax.training.lane import LaneState
from rlx2_jax.training.lane_group import Group, explain
from rlx2_jax.training.loop import Loop, Stop, chosen
from rlx2_jax.training.snapshot import Snapshot
from rlx2_jax.types import Device


class HostLoop(Loop):
    """Environments on the host, groups of lanes in parallel: while the device updates one
    group, the host steps the environments of another. If all lanes share one program, they are
    split into halves if possible; otherwise each program is a group. On several devices, each block
    (`plan.blocks`) is a group.

    If programs can call the host (`host_callback`), each group runs in a loop on the device.
    Otherwise every step is dispatched individually, group by group.

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
        callbacks: bool | None = None,
        only: Sequence[int] | None = None,
        limited: bool = True,
        devices: Sequence[Device] | None = None,
        shards: int = 1,
    ):
        """Creates all groups and resets their environments.

        Args:
          episodes: per evaluation.
          pipeline: run groups in parallel.
          callbacks: whether programs call the host; None: if they can.
          only: positions of lanes; groups with none of them are left out, others are unaffected.
          limited: False if the environment had no time limit when the run began.
          devices: to run on.
          shards: as in `plan.blocks`.
        """
        parts = chosen(plan.blocks(plan.parts(config, lanes), shards, turns=True), only)
        groups = [
            Group(part.config, [lanes[i] for i in part.lanes], device)
            for part, device in zip(parts, plan.place(parts, devices))
        ]
        super().__init__(
            groups,
            [list(part.lanes) for part in parts],
            lambda: [
                HostEvaluator(make_envs(len(g.program.lanes) * episodes), g.program, episodes)
                for g in groups
            ],
            episodes,
        )
        self._pipeline = pipeline
        self._envs_per_lane = config.num_envs
        self.seconds = 0.0
        self._envs = [make_envs(len(part.lanes) * config.num_envs) for part in parts]
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
        callbacks = host_callback.available() if callbacks is None else callbacks
        self._runner = CallbackRunner(groups, self._envs, pipeline) if callbacks else None

    def advance(self, until: int, stop: Stop) -> None:
        if self._runner is None:
            self._advance_in_turn(until, stop)
            return
        try:
            self._runner.advance(until, stop)
        finally:
            self.time = min(group.time for group in self._groups)
            self.seconds += self._runner.seconds

    def _advance_in_turn(self, until: int, stop: Stop) -> None:
        """Dispatches each step of each group individually."""
        for t in range(self.time + 1, until + 1):
            for group, envs in zip(self._groups, self._envs):
                if group.time < t:  # one half may be ahead if an environment of the other failed
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

    def snapshots(self) -> list[Snapshot]:
        return [Snapshot(g.time, g.state, e.state()) for g, e in zip(self._groups, self._envs)]

    def restore(self, snapshots: list[Snapshot], exact: bool) -> None:
        """Continues from `snapshots`, with new episodes if environments cannot be restored."""
        for group, envs, saved in zip(self._groups, self._envs, snapshots):
            try:
                obs = envs.restore(saved.env)
            except EnvironmentFailure as failure:
                lanes = group.program.lanes
                raise explain(failure, lanes, self._envs_per_lane, "restart") from failure
            group.state, group.time = group.program.put(saved.state), saved.time
            if not (exact and envs.exact_restore):
                hyper, t = group.program.hyper, np.int32(group.time + 1)
                obs = jnp.asarray(self._by_lane(obs))
                group.state = _restart(group.state, obs, t, hyper, group.program.config)
        self.time = min(group.time for group in self._groups)

    @property
    def exact_restore(self) -> bool:
        return all(envs.exact_restore for envs in self._envs)

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
        for envs in self._envs:
            with contextlib.suppress(Exception):  # an environment may have failed
                envs.close()
        super().close()


def _restart_lanes(
    state: LaneState, obs: jax.Array, t: jax.Array, hyper: Hyper, config: Config
) -> LaneState:
    """The lanes' states with the old episodes cut and new ones started at `obs`."""

    def one(state: LaneState, obs: jax.Array, hyper: Hyper) -> LaneState:
        state = state._replace(replay=buffer.cut(state.replay))
        return state._replace(acting=lanes_.act(state, obs, t, config, hyper))

    return jax.vmap(one)(state, obs, hyper)


_restart = SharedJit(_restart_lanes, static=(4,), donate=(0,))
