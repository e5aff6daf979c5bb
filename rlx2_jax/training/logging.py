"""Training output: CSV tables, TensorBoard events, a progress display."""

import contextlib
import csv
import io
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from rlx2_jax.files import Check, Log, Warn
from rlx2_jax.training.events import Events

EVALUATIONS, METRICS, EVENTS = "evaluations.csv", "metrics.csv", "events.out.tfevents.rlx2"
LOGS = (EVALUATIONS, METRICS, EVENTS)
SUMMARY = "summary.json"  # written last: a run that has one is finished


class Table:
    """An append-only CSV file. The first row fixes its columns."""

    def __init__(self, log: Log):
        self._log = log
        self._columns = _header(log.path) if log.size else []

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        if not rows:
            return
        fresh = not self._columns
        self._columns = self._columns or list(rows[0])
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns, restval="", extrasaction="ignore")
        if fresh:
            writer.writeheader()
        for row in rows:
            writer.writerow({k: number(v) for k, v in row.items()})
        self._log.append(text.getvalue().encode())


def _header(path: Path) -> list[str]:
    with path.open(newline="") as file:
        return next(csv.reader(file), [])


def number(value: Any) -> Any:
    """A value as written to tables: floats with float32 precision."""
    return f"{float(value):.7g}" if isinstance(value, float | np.floating) else value


class RunLog:
    """The log files of a run directory."""

    def __init__(
        self,
        directory: Path,
        warn: Warn,
        sizes: dict[str, int] | None = None,
        check: Check = lambda: None,
    ):
        """`sizes`: current bytes of each file, default 0."""
        sizes = sizes or {}
        self.logs = [Log(directory / name, warn, sizes.get(name, 0), check) for name in LOGS]
        evaluations, metrics, events = self.logs
        self.evaluations, self.metrics = Table(evaluations), Table(metrics)
        self.events = Events(events)

    def flush(self) -> bool:
        """Writes pending rows; returns whether everything is on disk."""
        for log in self.logs:
            log.flush()
        return not self.missing

    def sizes(self) -> dict[str, int]:
        """Bytes appended to each file."""
        return {log.path.name: log.size for log in self.logs}

    @property
    def missing(self) -> list[Path]:
        """Files that lack rows."""
        return [log.path for log in self.logs if log.missing]


class Progress:
    """A live display on a terminal, plain lines elsewhere, nothing when quiet."""

    def __init__(
        self,
        total: int,
        labels: Sequence[str],
        stream: TextIO | None = None,
        *,
        quiet: bool = False,
    ):
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._live = self._stream.isatty()
        self._total, self._labels = total, labels
        self._returns: dict[str, float] = {}
        self._began, self._first, self._drawn, self._last = time.monotonic(), 0, 0, 0.0

    def start(self, step: int) -> None:
        """Measures speed from `step`, since resumed runs do not start at 0."""
        self._began, self._first = time.monotonic(), step

    def returns(self, labels: Sequence[str], values: Sequence[float]) -> None:
        self._returns.update(zip(labels, values))

    def update(self, step: int, note: str = "", *, force: bool = False) -> None:
        """Redraws at most five times a second; plain lines every ten seconds, or when forced."""
        now = time.monotonic()
        if self._quiet:
            return
        if not force and now - self._last < (0.2 if self._live else 10.0):
            return
        self._last = now
        rate = (step - self._first) / max(now - self._began, 1e-9)
        left = (self._total - step) / rate if rate > 0 else float("inf")
        head = (
            f"step {step:,}/{self._total:,} ({100 * step / self._total:.0f}%)  "
            f"{rate:,.0f} steps/s per lane  {duration(left)} left  {note}"
        )
        shown = [
            f"{label}: {self._returns[label]:.1f}"
            for label in self._labels
            if label in self._returns
        ]
        if self._live:
            width = _columns(self._stream)
            lines = [head, *shown][:30]
            up = f"\x1b[{self._drawn}F" if self._drawn else ""
            self._write(up + "".join(f"\x1b[2K{line[: width - 1]}\n" for line in lines))
            self._drawn = len(lines)
        else:
            self._write(head + ("  return " + ", ".join(shown) if shown else "") + "\n")

    def say(self, text: str) -> None:
        """Prints a line above the display."""
        if self._quiet:
            return
        self._write(text + "\n")
        self._drawn = 0

    def _write(self, text: str) -> None:
        # A closed terminal or a full disk must not end the run.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 80


def duration(seconds: float) -> str:
    """Hours and minutes, or minutes and seconds."""
    if seconds == float("inf"):
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}" if hours else f"{minutes}m{rest:02d}s"
