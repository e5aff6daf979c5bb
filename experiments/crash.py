"""An error that nobody foresaw: one line for the terminal, the details in a file."""

import tempfile
import traceback


def report(error: Exception) -> str:
    """Writes the traceback to a file; returns the line to print."""
    head = traceback.format_exception_only(error)[-1].strip()
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="rlx2-error-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            traceback.print_exception(error, file=file)
    except OSError:
        return f"{head} (an internal error)"
    return f"{head} (an internal error; please report it with {file.name})"
