"""Commands end without tracebacks: an unexpected error prints one line, and its traceback goes to
a file."""

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
    """`app.run`, where neither `main` nor the parsing of flags ends with a traceback."""
    _need_no_reader()
    escape_output()
    app.run(lambda argv: _flushed(lambda: main(argv)), **options)


def process(command: Callable[[], int]) -> int:
    """`guarded` for a whole process: it also survives closed output streams."""
    _need_no_reader()
    return _flushed(command)


def _flushed(command: Callable[[], int]) -> int:
    code = guarded(command)
    if threading.current_thread() is threading.main_thread():
        # Ctrl-C while the interpreter shuts down would show tracebacks.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        sys.stdout.flush()
    except OSError as error:
        print(f"error: standard output: {error.strerror}", file=sys.stderr)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return code or 2
    return code


def guarded(command: Callable[[], int]) -> int:
    """Runs a command; returns its exit code, also if it is interrupted or fails unexpectedly."""
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
    """Standard output or error whose reader may go away (`| head -1`): then it leads nowhere."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            return len(data)
        except OSError:
            if self.fileno() == 2:  # there is no stream left to report it on
                return len(data)
            raise


def escape_output() -> None:
    """Prints characters that the output's encoding lacks as escapes instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _need_no_reader() -> None:
    """Commands survive a closed pipe and missing output streams."""
    for number in range(3):  # or files would be opened under these numbers
        try:
            os.fstat(number)
        except OSError:
            file = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(file, True)  # also of child processes: some libraries start one
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:  # was closed when Python began
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.flush()
            buffer = io.BufferedWriter(_Output(number, "w", closefd=False))
            lines = stream.line_buffering or number == 2
            own = io.TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=lines)
            setattr(sys, name, own)


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
