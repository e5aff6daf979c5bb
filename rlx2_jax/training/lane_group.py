"""Lanes that one device call updates, and what is reported of them."""

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
    """An environment of a lane raised; the message says which, when and what."""


class Group:
    """Lanes of one program: their state, their time, the last metrics."""

    def __init__(self, config: Config, lanes: list[Lane], device: Device | None = None):
        self.program = Program(config, lanes, device)
        self.state: LaneState
        self.metrics: dict[str, Any] = {}
        self.time = 0

    def start(self, obs: np.ndarray, horizon: int | None) -> None:
        """First states; `horizon` is the time limit for which replay buffers have room."""
        self.state = self.program.init(obs, horizon)
        self.initial = metrics.dense_masks(self.state.agent)
        self.metrics = self.program.no_metrics(self.state)

    def report(self) -> list[dict[str, Any]]:
        """One row of `metrics.csv` for each lane."""
        program = self.program
        updates = max(0, self.time - lanes_.warmup_time(program.config))
        updates *= program.config.updates_per_step
        counts = (self.time, updates)
        own = (program.hyper, program.config)
        return metrics.measure(self.state, self.initial, self.metrics, *counts, *own)

    def explain(self, failure: EnvironmentFailure) -> LaneFailure:
        """Says which lane's environment failed, in the step after the last."""
        envs = self.program.config.num_envs
        return explain(failure, self.program.lanes, envs, f"step {(self.time + 1) * envs}")


def explain(
    failure: EnvironmentFailure, lanes: Sequence[Lane], envs_per_lane: int, when: str
) -> LaneFailure:
    """Says which lane's environment failed, and when."""
    lane = ""
    if failure.index is not None:
        which = lanes[failure.index // envs_per_lane]
        lane = f"lane {which.name or which.method}, seed {which.seed}, "
    return LaneFailure(f"{lane}{when}: {failure}")
