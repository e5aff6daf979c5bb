"""Lanes that one device call updates, and what is reported of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx2_jax.config import Config, Lane
from rlx2_jax.envs import EnvironmentFailure
from rlx2_jax.training import lane as lanes_
from rlx2_jax.training.lane import LaneState
from rlx2_jax.training.program import Program, dense_masks, host


class LaneFailure(Exception):
    """An environment of a lane raised; the message says which, when and what."""


class Group:
    """Lanes of one program: their state, their time, the last metrics."""

    def __init__(self, config: Config, lanes: list[Lane]):
        self.program = Program(config, lanes)
        self.state: LaneState
        self.metrics: dict[str, Any] = {}
        self.time = 0

    def start(self, obs: np.ndarray, horizon: int | None) -> None:
        """First states; `horizon` is the time limit for which replay buffers have room."""
        self.state = self.program.init(obs, horizon)
        self.initial = dense_masks(self.state)
        self.metrics = self.program.no_metrics(self.state)

    def report(self) -> list[dict[str, Any]]:
        """One flat dict of numbers per lane."""
        config, stats = self.program.config, host(self.state.stats)
        found = host(self.program.inspect(self.state, self.initial))
        metrics = host(self.metrics)
        agent = self.state.agent
        moved = {net: host(getattr(agent, net).moved) for net in ("actor", "critic")}
        count = max(0, self.time - lanes_.warmup_time(config)) * config.updates_per_step
        rows = []
        for i, lane in enumerate(self.program.lanes):
            row: dict[str, Any] = {"updates": count, "alive": int(stats.alive[i])}
            row |= {name: float(value[i]) for name, value in metrics.items() if name != "finite"}
            t = count if config.switch == "updates" else self.time * config.num_envs
            row |= {
                "n": int(lane.n or 1) if t >= lane.t0 else 1,
                "buffer_length": int(found.length[i]),
                "policy_distance": float(stats.distance[i]),
                "trims": int(stats.trims[i]),
            }
            for net in ("actor", "critic"):
                row |= {
                    f"{net}_evolutions": int(stats.evolutions[net][i]),
                    f"{net}_links_changed": int(moved[net][i]),
                    f"{net}_links_ever_live": int(found.ever[net][i]),
                    f"{net}_overlap_with_initial": float(found.overlap[net][i]),
                    f"{net}_dead_units": int(found.dead[net][i]),
                }
                layers = found.sparsity[net]
                row |= {f"{net}_sparsity/{key}": float(v[i]) for key, v in layers.items()}
            rows.append(row)
        return rows

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
