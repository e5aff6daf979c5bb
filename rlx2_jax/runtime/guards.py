"""What protects a run directory: a lock against a second process, and orderly stops."""

import contextlib
import fcntl
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlx2_jax.runtime.run import RunError

LOCK = "run.lock"


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Holds the run directory: a second process is refused."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / LOCK).open("w")
    except OSError as error:
        raise RunError(
            f"cannot write to {directory} ({error.strerror}): choose another --logdir"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunError(
                f"{directory} is in use by another process: wait for it, or choose another --logdir"
            ) from error
        yield


class Stopper:
    """Turns SIGINT and SIGTERM into a request to stop after the current step; a second signal
    ends the process at once. Does nothing outside the main thread, which alone gets signals."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __enter__(self) -> "Stopper":
        self._old: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: Any) -> None:
        if self.signal is not None:
            # Nothing is left half written: files are renamed into place or cut back on resume.
            with contextlib.suppress(OSError):
                os.write(2, b"\nstopped at once: --resume continues from the last checkpoint\n")
            os._exit(128 + number)
        self.signal = number

    def __call__(self) -> bool:
        return self.signal is not None


class Stopped(Exception):
    """The run was asked to stop and has saved everything."""

    def __init__(self, message: str, signal_number: int):
        self.signal_number = signal_number
        super().__init__(message)
