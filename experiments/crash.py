"""Commands end without tracebacks: of errors that nobody foresaw there is one line in the terminal
and the details in a file."""

import io
import sys
import tempfile
import traceback
from collections.abc import Callable


def guarded(command: Callable[[], int]) -> int:
    """Runs a command; the exit code, also where it is interrupted or fails unforeseen."""
    escape_output()
    try:
        return command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        print(f"error: {report(error)}", file=sys.stderr)
        return 70


def escape_output() -> None:
    """Prints characters that the output's encoding lacks as escapes instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


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
