"""Protects a run directory: a lock against a second process, and clean stops on signals."""

import contextlib
import errno
import fcntl
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rlx2_jax.training.run import RunError

LOCK = "run.lock"


def check_name(directory: Path) -> None:
    """Refuses a path that Orbax cannot write to."""
    try:
        str(directory.absolute()).encode()
    except UnicodeEncodeError as error:
        raise RunError(
            f"{directory}: checkpoints need a path in UTF-8, choose another --logdir"
        ) from error


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[Callable[[], None]]:
    """Locks the run directory; a second process is refused.

    Yields a function that raises an OSError if `directory` is no longer the locked directory: it
    was moved or deleted, and another run may be in its place.
    """
    check_name(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Neither through a link, nor waiting for the other end of a pipe.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(directory / LOCK, flags, 0o666)
    except OSError as error:
        raise RunError(
            f"cannot write to {directory} ({error.strerror}): choose another --logdir"
        ) from error
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise RunError(f"{directory / LOCK} is not a regular file: delete it")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunError(
                f"{directory} is in use by another process: wait for it, or choose another --logdir"
            ) from error
        yield _unmoved(directory)
    finally:
        os.close(file)


def _unmoved(directory: Path) -> Callable[[], None]:
    before = directory.stat()

    def check() -> None:
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(before, directory.stat()):
                return
        raise FileNotFoundError(
            errno.ENOENT, "the run directory was moved or deleted: move it back to save"
        )

    return check


_TOGETHER = (signal.SIGHUP, signal.SIGUSR2)  # come with other signals


class Stopper:
    """Turns SIGINT, SIGTERM and SIGHUP into a request to stop after the current step; a second
    signal ends the process at once, unless one of them is SIGHUP: when a session ends, several come
    together. SIGHUP stays ignored where it is (`nohup`). SIGUSR2 counts where something listens to
    it: a scheduler's job, which is to be requeued. Gets no signals outside the main thread, which
    alone has them.

    Another such request is `interrupt`, which returns the reason where there is one.
    """

    def __init__(self, interrupt: Callable[[], str | None] = lambda: None) -> None:
        self.signal: int | None = None
        self._interrupt = interrupt

    def __enter__(self) -> "Stopper":
        self._old: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
                before = signal.getsignal(number)
                unused = {signal.SIGHUP: signal.SIG_IGN, signal.SIGUSR2: signal.SIG_DFL}
                if before != unused.get(number):
                    self._old[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: Any) -> None:
        if self.signal is not None and not {self.signal, number} & {*_TOGETHER}:
            # Nothing is left half written: files are renamed into place or cut back on resume.
            with contextlib.suppress(OSError):
                os.write(
                    2, b"\nstopped immediately: rlx2 resume continues from the last checkpoint\n"
                )
            os._exit(128 + number)
        if self.signal is None or (number != signal.SIGHUP and self.signal != signal.SIGUSR2):
            self.signal = number

    def __call__(self) -> bool:
        return self.signal is not None or self._interrupt() is not None

    @property
    def reason(self) -> tuple[str, int]:
        """Why to stop, and the number of the signal, 0 if there was none."""
        if self.signal is not None:
            return f"by {signal.Signals(self.signal).name}", self.signal
        reason = self._interrupt()
        return ("by SIGINT", signal.SIGINT) if reason is None else (f"because {reason}", 0)


class Stopped(Exception):
    """The run was stopped by a signal (or an interruption: number 0), after saving everything."""

    def __init__(self, message: str, signal_number: int):
        self.signal_number = signal_number
        super().__init__(message)
