"""Weights & Biases: every lane is a run. `WANDB_MODE=offline` keeps them in the run directory.

A resumed lane continues under its id. Online, the server says which step comes next; offline runs
leave one folder per session, and their rows are read back from there.
"""

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlx2_jax.trackers import wandb_file
from rlx2_jax.trackers.base import TrackedLane


class WandbLane:
    """One lane as a run of W&B."""

    def __init__(self, lane: TrackedLane):
        wandb: Any = importlib.import_module("wandb")

        settings = wandb.Settings(
            console="off",  # all lanes share one terminal
            silent=True,
            disable_git=True,
            save_code=False,
            x_disable_stats=True,  # the machine is the same for all lanes
        )
        self._run = wandb.init(
            id=lane.id,
            name=lane.name,
            project=lane.project,
            group=lane.group,
            job_type=lane.job,
            config=lane.config,
            dir=str(lane.directory),
            resume="allow",
            reinit="create_new",  # lanes are open side by side
            settings=settings,
        )
        if self._run.offline:
            self.last = max((step for step, _ in rows(lane.directory, lane.id)), default=-1)
        else:
            self.last = self._run.step - 1

    def log(self, step: int, row: Mapping[str, float]) -> None:
        self._run.log(dict(row), step=step, commit=True)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        if summary is not None:
            numbers = {k: v for k, v in summary.items() if isinstance(v, int | float | str)}
            self._run.summary.update(numbers)
        # A code other than 0 marks a run that did not reach its end; resuming changes that.
        self._run.finish(exit_code=0 if summary is not None else 1)


def rows(directory: Path, lane_id: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Steps and rows that offline sessions of a lane left in a run directory, oldest first."""
    name = f"wandb/offline-run-*-{lane_id}/run-{lane_id}.wandb"
    for path in sorted(directory.glob(name)):
        yield from wandb_file.history(path)
