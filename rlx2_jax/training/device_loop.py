"""The training loop of everything on the device: environments, or demonstrations in replay."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax.config import Config, Lane
from rlx2_jax.control_flow import zeros
from rlx2_jax.envs.device import DeviceEnv
from rlx2_jax.training import lane as lanes_
from rlx2_jax.training import plan, segments
from rlx2_jax.training.evaluate import DeviceEvaluator
from rlx2_jax.training.lane import LaneState, Stream, stream_key
from rlx2_jax.training.lane_group import Group
from rlx2_jax.training.loop import Evaluator, Loop, Stop, chosen
from rlx2_jax.training.program import Program, plain_lanes, step_lanes
from rlx2_jax.training.snapshot import Snapshot
from rlx2_jax.types import Transition


class _DeviceGroup(Group):
    """Lanes of one program with their environments, all on the device."""

    def __init__(self, config: Config, lanes: list[Lane], env: DeviceEnv):
        super().__init__(config, lanes)
        self._step_envs = jax.vmap(jax.vmap(env.step))

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
    ):
        """`only`: positions of lanes; groups without any of them are left out. `data`: transitions
        that each lane's replay begins with, `[rows, envs, ...]`. `make_evaluator`: by default, of
        episodes in `env`."""
        parts = chosen(plan.parts(config, lanes), only)
        groups = [_DeviceGroup(part.config, [lanes[i] for i in part.lanes], env) for part in parts]
        make = make_evaluator or (lambda program: DeviceEvaluator(env, program, episodes))
        super().__init__(
            groups,
            [list(part.lanes) for part in parts],
            lambda: [make(group.program) for group in groups],
            episodes,
        )
        if make_evaluator is None:
            self._evaluators = self._make_evaluators()  # an environment may not do: say so now
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
            group.state, group.time = saved.state, saved.time
            group.env_state = jax.tree.map(jnp.asarray, saved.env)
            self.time = saved.time
