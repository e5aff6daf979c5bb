"""Updates on random transitions in a compiled loop."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax import config as configs
from rlx2_jax.training import lane as lanes_
from rlx2_jax.training import plan, segments
from rlx2_jax.training.lane import LaneState
from rlx2_jax.training.program import Program, plain_lanes, step_lanes
from rlx2_jax.training.segments import Dues
from rlx2_jax.types import TimeStep

HOPPER = (11, 3)


def sparse_lanes(
    count: int, sparsity: tuple[float, float] = (0.98, 0.95), **fields: Any
) -> list[configs.Lane]:
    """RLx2 lanes, by default with the paper's sparsities for Hopper."""
    actor, critic = sparsity
    return [
        configs.Lane(seed=i, actor_sparsity=actor, critic_sparsity=critic, **fields)
        for i in range(count)
    ]


def program(
    algo: str,
    lanes: int,
    *,
    form: str = "masked",
    hidden: tuple[int, ...] | None = None,
    sparsity: tuple[float, float] = (0.98, 0.95),
    capacity: int = 20_000,
    n: int | None = None,
    updates: int = 1,
    **architecture: Any,
) -> Program:
    """RLx2 lanes, masked or compact, with Hopper's sizes; sparsities of actor and critic default to
    the paper's, `n` to RLx2's. `updates` per time step."""
    windows: dict[str, Any] = {} if n is None else {"n_max": n}
    config = configs.make(
        algo,
        *HOPPER,
        hidden=hidden,
        capacity=capacity,
        warmup=1000,
        execution=form,
        grow=("gradient",),
        steps=1_000_000,
        updates_per_step=updates,
        **windows,
        **architecture,
    )
    return Program(config, sparse_lanes(lanes, sparsity, n=n))


class Scanned:
    """Updates on random transitions in one call: with one update in each of `steps` time steps, the
    whole step without the environment; with many in one time step, as in SBX's `train`, only the
    updates (sampling, targets, gradients, Adam, Polyak). Several lanes run in concurrent groups, as
    in training.

    Attributes:
      updates: updates per call and lane.
    """

    def __init__(self, made: Program, steps: int = 1):
        config, lanes = made.config, made.lanes
        self.program, self.updates = made, steps * config.updates_per_step
        self._steps = steps
        parts = plan.blocks([plan.Part(config, tuple(range(len(lanes))))], 1, turns=True)
        programs = [Program(config, [lanes[i] for i in part.lanes]) for part in parts]

        shape = (997, len(parts[0].lanes), config.num_envs, config.obs_dim)
        seen = jax.random.normal(jax.random.key(0), shape)

        def after(t: jax.Array) -> TimeStep:
            obs = seen[t % len(seen)]
            ends = jnp.zeros(obs.shape[:2], bool)
            return TimeStep(obs, obs, obs[..., 0], ends, ends)

        def run(
            state: LaneState, hyper: configs.Hyper, first: jax.Array, learn: bool, length: int
        ) -> LaneState:
            def plain(state: LaneState, t: jax.Array, dues: Dues, active: Any) -> LaneState:
                return plain_lanes(state, after(t), t, hyper, config, dues, active)[0]

            def event(state: LaneState, t: jax.Array) -> LaneState:
                return step_lanes(state, after(t), t, hyper, config, learn)[0]

            last = first + length - 1
            return segments.all_steps(state, first - 1, last, config, learn, plain, event)

        self._run = jax.jit(run, static_argnums=(3, 4), donate_argnums=0)
        self._hypers = [each.hyper for each in programs]
        self._states = [each.init(np.zeros(shape[1:], np.float32), 1000) for each in programs]
        self._threads = ThreadPoolExecutor(len(programs))
        self._next = 1
        self._advance(False, lanes_.warmup_time(config))
        self()  # compiles

    def __call__(self) -> float:
        """Seconds per update, all lanes together."""
        start = time.perf_counter()
        self._advance(True, self._steps)
        return (time.perf_counter() - start) / self.updates

    def _advance(self, learn: bool, steps: int) -> None:
        def group(state: LaneState, hyper: configs.Hyper) -> LaneState:
            return jax.block_until_ready(
                self._run(state, hyper, np.int32(self._next), learn, steps)
            )

        self._states = list(self._threads.map(group, self._states, self._hypers))
        self._next += steps
