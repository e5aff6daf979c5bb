"""`status.json`: whether a run is alive, and its progress.

A running process rewrites it every few seconds, so `rlx2 status` and report pages can distinguish a
training run from a killed one, also from another machine that shares the disk. Resuming does not
read this file.
"""

import contextlib
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from rlx2_jax import files
from rlx2_jax.files import Check, Warn

NAME = "status.json"
RUNNING, FINISHED, FAILED, INTERRUPTED = "running", "finished", "failed", "interrupted"
_INTERVAL = 5.0  # seconds
_ATTEMPTS, _PAUSE = 3, 0.2  # attempts to write the final status, and seconds between them


class Heartbeat:
    """A context manager around the training of a run; call `at` with the current step.

    The final state is `finished`, `interrupted` after an exception of type `stops`, or `failed`.
    """

    def __init__(
        self,
        directory: Path,
        total: int,
        warn: Warn,
        check: Check = lambda: None,
        stops: tuple[type, ...] = (),
    ):
        self._directory, self._warn, self._check, self._stops = directory, warn, check, stops
        self._total, self._step = total, 0
        self._first: tuple[int, float] | None = None  # step and time at which training began
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, _: Any, error: BaseException | None, *__: Any) -> None:
        self._over.set()
        self._thread.join()
        stopped = isinstance(error, (*self._stops, KeyboardInterrupt))
        state = FINISHED if error is None else INTERRUPTED if stopped else FAILED
        text = None if error is None or stopped else str(error) or type(error).__name__
        for attempt in range(_ATTEMPTS):
            time.sleep(_PAUSE * bool(attempt))
            try:
                return self._write(state, error=text)
            except OSError as problem:
                if attempt == _ATTEMPTS - 1:
                    self._warn(f"warning: {NAME} not written ({files.first_line(problem)})")

    def at(self, step: int) -> None:
        """Records the current step."""
        self._step = step
        self._first = self._first or (step, time.monotonic())

    def _write(self, state: str, **more: Any) -> None:
        self._check()
        step, began = self._first or (0, time.monotonic())
        seconds = time.monotonic() - began
        rate = (self._step - step) / seconds if self._step > step else None
        progress = {"step": self._step, "total": self._total, "steps_per_second": rate}
        record(self._directory, state, **progress, **more)

    def _beat(self) -> None:
        while True:
            with contextlib.suppress(OSError):  # a full disk, for instance: try again later
                self._write(RUNNING)
            if self._over.wait(_INTERVAL):
                return


def state_of(directory: Path) -> str | None:
    """The recorded state of a run; None if `status.json` is missing or unreadable."""
    try:
        return files.parse_json(directory / NAME).get("state")
    except files.Damaged:
        return None


def record(directory: Path, state: str, **more: Any) -> None:
    """Writes the status of a run atomically: readers see either the old or the new one."""
    about = {"state": state, "time": time.time(), "host": socket.gethostname(), "pid": os.getpid()}
    files.write_bytes(directory / NAME, json.dumps({**about, **more}).encode())
