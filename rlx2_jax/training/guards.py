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
    """Rejects paths that Orbax cannot write to."""
    try:
        str(directory.absolute()).encode()
    except UnicodeEncodeError as error:
        raise RunError(
            f"{directory}: checkpoints need a valid UTF-8 path, choose another --logdir"
        ) from error


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[Callable[[], None]]:
    """Locks the run directory; raises RunError if another process holds it.

    Yields a function that raises an OSError if `directory` is no longer the locked directory, since
    it may have been moved or deleted and replaced by another run.
    """
    check_name(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Do not follow a symlink, and do not block on a FIFO.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(directory / LOCK, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise RunError(f"{directory / LOCK} is a symbolic link: delete it") from error
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
        yield _check_not_moved(directory)
    finally:
        os.close(file)


def _check_not_moved(directory: Path) -> Callable[[], None]:
    before = directory.stat()

    def check() -> None:
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(before, directory.stat()):
                return
        raise FileNotFoundError(
            errno.ENOENT, "the run directory was moved or deleted: move it back to save"
        )

    return check


_WITH_OTHERS = (signal.SIGHUP, signal.SIGUSR2)  # often arrive together with other signals


class Stopper:
    """Turns SIGINT, SIGTERM and SIGHUP into a request to stop after the current step.

    A second signal exits at once, unless one of the two is SIGHUP or SIGUSR2, because several
    signals arrive together when a session ends. SIGHUP stays ignored under `nohup`. SIGUSR2 is
    handled only if a handler is installed (scheduler jobs that requeue). Receives no signals
    outside the main thread.

    `interrupt` also requests a stop, by returning a reason instead of None.
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
        if self.signal is not None and not {self.signal, number} & {*_WITH_OTHERS}:
            # Safe: files are renamed into place, and logs are truncated on resume.
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
        """The reason to stop, and the signal number or 0."""
        if self.signal is not None:
            return f"by {signal.Signals(self.signal).name}", self.signal
        reason = self._interrupt()
        return ("by SIGINT", signal.SIGINT) if reason is None else (f"because {reason}", 0)


class Stopped(Exception):
    """The run was stopped by a signal (number 0: by `interrupt`) after saving everything."""

    def __init__(self, message: str, signal_number: int):
        self.signal_number = signal_number
        super().__init__(message)
