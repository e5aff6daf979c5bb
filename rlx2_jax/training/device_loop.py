"""The training loop for device environments, and for replay filled with demonstrations."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax.config import Config, Hyper, Lane
from rlx2_jax.control_flow import zeros
from rlx2_jax.envs.device import DeviceEnv
from rlx2_jax.prng import Stream, stream_key
from rlx2_jax.training import lane as lanes_
from rlx2_jax.training import plan, segments
from rlx2_jax.training.devices import SharedJit
from rlx2_jax.training.evaluate import DeviceEvaluator
from rlx2_jax.training.lane import LaneState
from rlx2_jax.training.lane_group import Group
from rlx2_jax.training.loop import Evaluator, Loop, Stop, chosen
from rlx2_jax.training.program import Program, plain_lanes, step_lanes
from rlx2_jax.training.snapshot import Snapshot
from rlx2_jax.types import Array, Device, Transition

_Carry = tuple[LaneState, Any]  # states of lanes and of their environments


class DeviceSteps:
    """Compiled steps of lanes and their environments, shared by all groups of a loop."""

    def __init__(self, env: DeviceEnv):
        self._env = env
        self._step_envs = jax.vmap(jax.vmap(env.step))
        self.begin = SharedJit(self._begin, static=(1,))
        self.plain = SharedJit(self._plain, static=(4, 5), donate=(0,))
        self.event = SharedJit(self._event, static=(3, 4), donate=(0,))

    def _begin(self, seeds: Array, config: Config) -> Any:
        def one(seed: Array) -> Any:
            index = jnp.arange(config.num_envs)
            keys = jax.vmap(lambda i: stream_key(seed, Stream.ENVIRONMENT, i))(index)
            return jax.vmap(self._env.reset)(keys)

        return jax.vmap(one)(seeds)

    def _plain(
        self, carry: _Carry, time: Array, until: Array, hyper: Hyper, config: Config, learn: bool
    ) -> tuple[LaneState, Any, Any]:
        """Plain time steps from `time + 1` to `until`."""

        def step(carry: Any, t: jax.Array, dues: segments.Dues, active: jax.Array | bool) -> Any:
            state, before, old = carry
            env_state, after = self._step_envs(before, state.acting.action)
            state, metrics = plain_lanes(state, after, t, hyper, config, dues, active)
            return state, *segments.select(active, (env_state, metrics), (before, old))

        metrics = zeros(lambda: self._event(carry, time, hyper, config, learn)[2])
        return segments.plain_steps((*carry, metrics), time, until, config, learn, step)

    def _event(
        self, carry: _Carry, t: Array, hyper: Hyper, config: Config, learn: bool
    ) -> tuple[LaneState, Any, Any]:
        """One event: masks may evolve or the buffer is checked."""
        state, env_state = carry
        env_state, after = self._step_envs(env_state, state.acting.action)
        state, metrics = step_lanes(state, after, t, hyper, config, learn)
        return state, env_state, metrics


class _DeviceGroup(Group):
    """Lanes of one program with their environments, all on the device."""

    def __init__(
        self, config: Config, lanes: list[Lane], device: Device | None, steps: DeviceSteps
    ):
        super().__init__(config, lanes, device)
        self._steps = steps
        seeds = jnp.asarray([lane.seed for lane in self.program.lanes], jnp.int32)
        self.env_state = steps.begin(self.program.put(seeds), config)

    def advance(self, last: int, learn: bool) -> None:
        """Runs all time steps up to `last`."""
        args = (self.program.hyper, self.program.config, learn)
        while self.time < last:
            carry, event = (self.state, self.env_state), self._next_event()
            stop = min(last, event - 1)
            if stop > self.time:
                times = np.int32(self.time), np.int32(stop)
                self.state, self.env_state, metrics = self._steps.plain(carry, *times, *args)
            else:
                stop = event
                self.state, self.env_state, metrics = self._steps.event(
                    carry, np.int32(event), *args
                )
            self.metrics = metrics or self.metrics
            self.time = stop

    def _next_event(self) -> int:
        return segments.next_event(self.program.config, self.time)


class DeviceLoop(Loop):
    """One compiled loop from event to event for each program."""

    def __init__(
        self,
        config: Config,
        lanes: list[Lane],
        env: DeviceEnv,
        *,
        episodes: int = 10,
        only: Sequence[int] | None = None,
        data: Sequence[Transition] | None = None,
        make_evaluator: Callable[[Program], Evaluator] | None = None,
        devices: Sequence[Device] | None = None,
        shards: int = 1,
    ):
        """Creates all groups.

        Args:
          episodes: per evaluation.
          only: positions of lanes; blocks with none of them are left out.
          data: initial replay transitions of each lane, `[rows, envs, ...]`.
          make_evaluator: default: episodes in `env`.
          devices: to run on.
          shards: as in `plan.blocks`.
        """
        parts = chosen(plan.blocks(plan.parts(config, lanes), shards, turns=False), only)
        steps = DeviceSteps(env)
        groups = [
            _DeviceGroup(part.config, [lanes[i] for i in part.lanes], device, steps)
            for part, device in zip(parts, plan.place(parts, devices))
        ]
        for group in groups:
            group.start(np.asarray(group.env_state.obs), env.spec.max_episode_steps)
        make = make_evaluator or (lambda program: DeviceEvaluator(env, program, episodes))
        super().__init__(
            groups,
            [list(part.lanes) for part in parts],
            lambda: [make(group.program) for group in groups],
            episodes,
        )
        if make_evaluator is None:
            self._evaluators = self._make_evaluators()  # now: an environment may be unsuitable
        for part, group in zip(parts, groups):
            if data is not None:
                group.state = group.program.fill(group.state, [data[i] for i in part.lanes])
        self._groups: list[_DeviceGroup] = groups
        self._warm = lanes_.warmup_time(config)

    def advance(self, until: int, stop: Stop) -> None:
        while self.time < until and not stop():
            learn = self.time >= self._warm
            last = min(until if learn else min(until, self._warm), self.time + 1000)
            for group in self._groups:
                group.advance(last, learn)
            jax.block_until_ready([(group.state.acting, group.metrics) for group in self._groups])
            self.time = last

    def snapshots(self) -> list[Snapshot]:
        return [Snapshot(self.time, group.state, group.env_state) for group in self._groups]

    def restore(self, snapshots: list[Snapshot], exact: bool) -> None:
        del exact
        for group, saved in zip(self._groups, snapshots):
            group.state, group.time = group.program.put(saved.state), saved.time
            group.env_state = group.program.put(jax.tree.map(jnp.asarray, saved.env))
            self.time = saved.time
