"""What a run leaves behind: CSV tables, TensorBoard events, `config.json`, `summary.json`.

Files only grow. A checkpoint notes how long each was, and a resumed run cuts them back to that
length first, so that no row appears twice.
"""

import csv
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from rlx2_jax.runtime.events import Events

EVALUATIONS, METRICS, EVENTS = "evaluations.csv", "metrics.csv", "events.out.tfevents.rlx2"


def write_json(path: Path, value: Any) -> None:
    """Writes atomically: a reader sees the old file or the new one."""
    partial = path.with_suffix(path.suffix + ".tmp")
    partial.write_text(json.dumps(value, indent=1, default=_plain, allow_nan=True) + "\n")
    os.replace(partial, path)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} does not go into JSON")


class Table:
    """A CSV file that rows are appended to. Its columns are those of the first row."""

    def __init__(self, path: Path):
        self._path = path
        self._columns = _header(path)

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        if not rows:
            return
        fresh = not self._columns
        self._columns = self._columns or list(rows[0])
        with self._path.open("a", newline="") as file:
            writer = csv.DictWriter(file, self._columns, restval="", extrasaction="ignore")
            if fresh:
                writer.writeheader()
            for row in rows:
                writer.writerow({k: _number(v) for k, v in row.items()})


def _header(path: Path) -> list[str]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return next(csv.reader(file), [])


def _number(value: Any) -> Any:
    return f"{float(value):.7g}" if isinstance(value, float | np.floating) else value


class RunLog:
    """All files of a run directory that grow with it."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.evaluations = Table(directory / EVALUATIONS)
        self.metrics = Table(directory / METRICS)
        self.events = Events(directory / EVENTS)

    def sizes(self) -> dict[str, int]:
        """Bytes of each file now."""
        return {n: _size(self.directory / n) for n in (EVALUATIONS, METRICS, EVENTS)}

    def close(self) -> None:
        self.events.close()


def cut_back(directory: Path, sizes: dict[str, int]) -> None:
    """Undoes what was written after a checkpoint that noted `sizes`."""
    for name in (EVALUATIONS, METRICS, EVENTS):
        path = directory / name
        if path.exists() and _size(path) > sizes.get(name, 0):
            with path.open("r+b") as file:
                file.truncate(sizes.get(name, 0))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


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
        """Counts speed from here: a resumed run does not begin at 0."""
        self._began, self._first = time.monotonic(), step

    def returns(self, labels: Sequence[str], values: Sequence[float]) -> None:
        self._returns.update(zip(labels, values))

    def update(self, step: int, note: str = "", *, force: bool = False) -> None:
        """Redraws, at most five times a second (lines: every ten seconds, or when forced)."""
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
            f"{rate:,.0f} steps/s per lane  {_duration(left)} left  {note}"
        )
        shown = [
            f"{label}: {self._returns[label]:.1f}"
            for label in self._labels
            if label in self._returns
        ]
        if self._live:
            width = os.get_terminal_size(self._stream.fileno()).columns
            lines = [head, *shown][:30]
            up = f"\x1b[{self._drawn}F" if self._drawn else ""
            self._stream.write(up + "".join(f"\x1b[2K{line[: width - 1]}\n" for line in lines))
            self._drawn = len(lines)
        else:
            self._stream.write(head + ("  return " + ", ".join(shown) if shown else "") + "\n")
        self._stream.flush()

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._quiet:
            return
        self._stream.write(text + "\n")
        self._stream.flush()
        self._drawn = 0


def _duration(seconds: float) -> str:
    if seconds == float("inf"):
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}" if hours else f"{minutes}m{rest:02d}s"
