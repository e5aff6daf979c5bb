"""Error handling of commands: unexpected errors print one line; tracebacks go to a file."""

import io
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from typing import Any

from absl import app


def run(main: Callable[[list[str]], int], **options: Any) -> None:
    """`app.run` without tracebacks from `main` or flag parsing."""
    _survive_closed_streams()
    escape_output()
    app.run(lambda argv: _flushed(lambda: main(argv)), **options)


def process(command: Callable[[], int]) -> int:
    """`guarded` for a whole process; also survives closed output streams."""
    _survive_closed_streams()
    return _flushed(command)


def _flushed(command: Callable[[], int]) -> int:
    code = guarded(command)
    if threading.current_thread() is threading.main_thread():
        # Ctrl-C during interpreter shutdown would print tracebacks.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        sys.stdout.flush()
    except OSError as error:
        print(f"error: standard output: {error.strerror}", file=sys.stderr)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return code or 2
    return code


def guarded(command: Callable[[], int]) -> int:
    """Runs a command; returns an exit code even if it is interrupted or fails unexpectedly."""
    escape_output()
    try:
        return command()
    except app.UsageError:
        raise
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        print(f"error: {report(error)}", file=sys.stderr)
        return 70


class _Output(io.FileIO):
    """Standard output or error; discards output once its reader is gone (`| head -1`)."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            return len(data)
        except OSError:
            if self.fileno() == 2:  # no stream is left to report the error
                return len(data)
            raise


def escape_output() -> None:
    """Escapes characters that the output encoding lacks, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _survive_closed_streams() -> None:
    """Makes commands survive closed pipes and missing standard streams."""
    for number in range(3):  # otherwise other files would get these descriptors
        try:
            os.fstat(number)
        except OSError:
            file = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(file, True)  # for child processes of libraries
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:  # was closed when Python started
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.flush()
            buffer = io.BufferedWriter(_Output(number, "w", closefd=False))
            lines = stream.line_buffering or number == 2
            wrapper = io.TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=lines)
            setattr(sys, name, wrapper)


def report(error: Exception) -> str:
    """Writes the traceback to a file; returns the line to print."""
    head = traceback.format_exception_only(error)[-1].strip()
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="rlx2-error-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            traceback.print_exception(error, file=file)
    except (OSError, ValueError):
        return f"{head} (an internal error)"
    return f"{head} (an internal error; please report it with {file.name})"
