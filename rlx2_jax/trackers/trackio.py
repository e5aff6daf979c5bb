"""Trackio: every lane is a run of a local project (SQLite) or of a configured server.

`TRACKIO_DIR` sets the folder of local projects. Every run has a thread that writes to the project's
database. Trackio drops rows that it cannot write within ten seconds, which happens when many lanes
or processes write at once, so here threads of a process take turns and failed writes are repeated.
"""

import contextlib
import contextvars
import importlib
import io
import threading
import time
from collections.abc import Mapping
from typing import Any

from rlx2_jax.trackers.base import TrackedLane

_WRITING = threading.Lock()  # one thread of this process writes at a time
_ATTEMPTS = 10  # to write the last rows
_PAUSE = 0.5  # seconds between attempts


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
        if self._run._is_local:
            _keep_rows(self._run)

    def log(self, step: int, row: Mapping[str, float]) -> None:
        self._run.log(dict(row), step=step)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._run.finish()
        if self._run._is_local:
            _write_last_rows(self._run)


def _keep_rows(run: Any) -> None:
    """Makes failed writes raise inside the run's thread, which then keeps the rows and repeats them
    before later ones, and lets threads write in turn."""
    warn, flush = run._warn_once, run._flush_queues_inline

    def strict(key: str, message: str) -> None:
        if key == "write-logs-to-sqlite":
            raise OSError(message)
        if key != "local-sender-loop":  # reports that error: nothing is lost
            warn(key, message)

    def exclusive() -> None:
        with _WRITING:
            flush()

    run._warn_once, run._flush_queues_inline = strict, exclusive


def _write_last_rows(run: Any) -> None:
    """Repeats failed writes of a run whose thread has ended; raises OSError if all fail."""
    for attempt in range(_ATTEMPTS):
        if not (run._sending_batch or run._queued_logs):
            return
        try:
            with run._client_lock:
                run._flush_queues_inline()
            return
        except OSError:
            if attempt == _ATTEMPTS - 1:
                raise
        time.sleep(_PAUSE)
