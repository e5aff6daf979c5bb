"""Weights & Biases: every lane is a run. `WANDB_MODE=offline` keeps them in the run directory.

A resumed lane continues under its id. Online, the server reports the next step; offline, rows are
read back from the session folders.
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
            x_disable_stats=True,  # all lanes share one machine
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
            reinit="create_new",  # lanes are open at the same time
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
        # A nonzero code marks an unfinished run; resuming resets it.
        self._run.finish(exit_code=0 if summary is not None else 1)


def rows(directory: Path, lane_id: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Steps and rows of a lane's offline sessions in a run directory, oldest first."""
    name = f"wandb/offline-run-*-{lane_id}/run-{lane_id}.wandb"
    for path in sorted(directory.glob(name)):
        yield from wandb_file.history(path)
