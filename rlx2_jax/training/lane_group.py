"""Groups of lanes that one device call updates."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx2_jax.config import Config, Lane
from rlx2_jax.envs import EnvironmentFailure
from rlx2_jax.training import lane as lanes_
from rlx2_jax.training import metrics
from rlx2_jax.training.lane import LaneState
from rlx2_jax.training.program import Program
from rlx2_jax.types import Device


class LaneFailure(Exception):
    """An environment of a lane raised; the message names the lane, the time and the error."""


class Group:
    """Lanes of one program, with their state, time and last metrics."""

    def __init__(self, config: Config, lanes: list[Lane], device: Device | None = None):
        self.program = Program(config, lanes, device)
        self.state: LaneState
        self.metrics: dict[str, Any] = {}
        self.time = 0

    def start(self, obs: np.ndarray, horizon: int | None) -> None:
        """Initializes the states; `horizon` is the time limit that replay buffers must support."""
        self.state = self.program.init(obs, horizon)
        self.initial = metrics.dense_masks(self.state.agent)
        self.metrics = self.program.no_metrics(self.state)

    def report(self) -> list[dict[str, Any]]:
        """One row of `metrics.csv` for each lane."""
        program = self.program
        updates = max(0, self.time - lanes_.warmup_time(program.config))
        updates *= program.config.updates_per_step
        args = (self.time, updates, program.hyper, program.config)
        return metrics.measure(self.state, self.initial, self.metrics, *args)

    def explain(self, failure: EnvironmentFailure) -> LaneFailure:
        """Adds the lane and the step (the one after `time`) to an environment's error."""
        envs = self.program.config.num_envs
        return explain(failure, self.program.lanes, envs, f"step {(self.time + 1) * envs}")


def explain(
    failure: EnvironmentFailure, lanes: Sequence[Lane], envs_per_lane: int, when: str
) -> LaneFailure:
    """Adds the lane and the time to an environment's error."""
    lane = ""
    if failure.index is not None:
        which = lanes[failure.index // envs_per_lane]
        lane = f"lane {which.name or which.method}, seed {which.seed}, "
    return LaneFailure(f"{lane}{when}: {failure}")
