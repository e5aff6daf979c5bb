"""Trackio: every lane is a run of a local project (SQLite) or of a configured server.

`TRACKIO_DIR` sets the folder of local projects.
"""

import contextlib
import contextvars
import importlib
import io
from collections.abc import Mapping
from typing import Any

from rlx2_jax.trackers.base import TrackedLane


class TrackioLane:
    """One lane as a Trackio run. Trackio identifies runs by name."""

    def __init__(self, lane: TrackedLane):
        trackio: Any = importlib.import_module("trackio")

        # Trackio has one current run per context; without a new one it would finish the last lane.
        with contextlib.redirect_stdout(io.StringIO()):
            self._run = contextvars.Context().run(
                trackio.init,
                project=lane.project,
                name=f"{lane.job} {lane.name} {lane.id}",
                group=lane.group,
                config={k: v for k, v in lane.config.items() if not k.startswith("_")},
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        self.last = self._run._next_step - 1  # from the project's database, or from its server

    def log(self, step: int, row: Mapping[str, float]) -> None:
        self._run.log(dict(row), step=step)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._run.finish()
