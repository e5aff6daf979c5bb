"""Sends the rows of a run's logs to trackers (`rlx2_jax.trackers`).

A row is sent once a checkpoint contains it, so resuming never retracts it. Each tracker reports the
last step it has received, so rows that a kill or a service error held back are sent later, and none
is sent twice. A lane has one row per step, with the columns of both tables.

All sending happens in a background thread. Failures are reported and never affect the run.
"""

import csv
import dataclasses
import io
import queue
import secrets
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlx2_jax import files, trackers
from rlx2_jax.files import Damaged, Warn
from rlx2_jax.trackers import TrackedLane, Tracker
from rlx2_jax.training.logging import EVALUATIONS, METRICS
from rlx2_jax.training.run import Run, label, resume_command

NAME = "tracker.json"
PROJECT = "rlx2"
_TABLES = (METRICS, EVALUATIONS)
_NO_METRICS = ("lane", "method", "seed", "step", "weights")
_PATIENCE = 300.0  # seconds to send the last rows of a finished run
_PATIENCE_STOPPED = 20.0  # the same for a stopped run

Row = dict[str, float]
Rows = dict[int, dict[int, Row]]  # by lane and step


@dataclasses.dataclass(frozen=True)
class Track:
    """The trackers of a run and the grouping of its lanes there (default: by the name of the run
    directory). `tracker.json` stores this for later sessions."""

    trackers: tuple[str, ...] = ()
    project: str = PROJECT
    group: str = ""
    job: str = ""


class Tracking:
    """The trackers of one session of a run: a context manager around its training."""

    def __init__(
        self, track: Track | None, run: Run, directory: Path, warn: Warn, *, restart: bool = False
    ):
        """`track`: None for the trackers of the previous session, if any."""
        self._run, self._directory, self._warn = run, directory, warn
        self._track, self._id = _begin(track, directory, warn, restart=restart)
        self._feeds = [_Feed(name, self._open, warn) for name in self._track.trackers]
        self._queue: queue.Queue[Any] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name="trackers", daemon=True)
        self.summary: Mapping[str, Any] | None = None  # once the run is finished

    def __enter__(self) -> "Tracking":
        if self._feeds:
            self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        """Waits for the last rows, with a timeout."""
        if not self._feeds:
            return
        self._queue.put(None)
        self._thread.join(_PATIENCE_STOPPED if self.summary is None else _PATIENCE)
        waiting = self._thread.is_alive()
        for feed in self._feeds:
            if feed.behind or waiting:
                lanes = f"rows of {len(feed.behind)} lanes" if feed.behind else "rows"
                self._warn(
                    f"warning: {feed.name} may lack {lanes} "
                    f"({feed.problem or 'it did not respond in time'}): "
                    f"{resume_command(self._run, self._directory)} sends them"
                )

    def publish(self, sizes: Mapping[str, int], before: int | None = None) -> None:
        """Sends new rows among the first `sizes` bytes of the logs.

        Args:
          before: hold back rows of this step and later ones, which may be incomplete.
        """
        if self._feeds:
            self._queue.put((dict(sizes), before))

    def _work(self) -> None:
        new = _Reader(self._directory)
        while (request := self._queue.get()) is not None:
            rows, again = new.read(*request), {}
            if any(feed.behind for feed in self._feeds):
                again = _Reader(self._directory).read(*request)
            for feed in self._feeds:
                feed.send(rows, again)
        lanes = None if self.summary is None else self.summary["lanes"]
        for feed in self._feeds:
            feed.close(lanes and dict(enumerate(lanes, self._run.first)))

    def _open(self, name: str, lane: int) -> Tracker:
        run, track = self._run, self._track
        settings = run.lanes[lane - run.first]
        shared = {
            "env": run.env,
            "backend": run.backend,
            "env_options": dict(run.env_options),
            "program": dataclasses.asdict(run.config),
        }
        return trackers.TRACKERS[name].open(
            TrackedLane(
                id=f"{self._id}-{lane}",
                name=label(settings, lane),
                group=track.group,
                job=track.job,
                project=track.project,
                config={**dataclasses.asdict(settings), **shared},
                directory=self._directory,
            )
        )


def _begin(track: Track | None, directory: Path, warn: Warn, *, restart: bool) -> tuple[Track, str]:
    """The trackers of this session and the run's id; both are stored in the run directory."""
    path, before = directory / NAME, {}
    if path.exists():
        try:
            before = files.read_json(path)
        except Damaged as error:
            warn(f"warning: {error}: trackers treat this run as a new one")
    if track is None:
        fields = [field.name for field in dataclasses.fields(Track)]
        track = Track(**{k: _plain(before[k]) for k in fields if k in before})
    name = directory.resolve().name
    track = dataclasses.replace(track, group=track.group or name, job=track.job or name)
    known = [x for x in track.trackers if x in trackers.TRACKERS]
    for missing in sorted({*track.trackers} - {*known}):
        warn(f"warning: there is no tracker {missing!r} (was it added with --use?): ignored")
    own_id = str(before.get("id", "")) if not restart else ""
    now = {**dataclasses.asdict(track), "id": own_id or secrets.token_hex(4)}
    if (track.trackers or before) and now != {k: _plain(v) for k, v in before.items()}:
        try:
            files.write_json(path, now)
        except OSError as error:
            warn(f"warning: {NAME} could not be written ({files.first_line(error)})")
    return dataclasses.replace(track, trackers=tuple(known)), now["id"]


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class _Feed:
    """One tracker and its lanes."""

    def __init__(self, name: str, open_lane: Any, warn: Warn):
        self.name, self._open, self._warn = name, open_lane, warn
        self._lanes: dict[int, Tracker] = {}
        self.behind: set[int] = set()  # lanes with unsent rows
        self.problem = ""

    def send(self, rows: Rows, again: Rows) -> None:
        """Sends new rows; lanes that are behind get all missing rows (`again` has all rows)."""
        failing = bool(self.behind)
        for lane in sorted({*rows, *self.behind}):
            pending = again.get(lane, {}) if lane in self.behind else rows[lane]
            try:
                self._send(lane, pending)
                self.behind.discard(lane)
            except Exception as error:  # trackers may raise anything
                self.behind.add(lane)
                self._failed(f"{files.first_line(error)}", quiet=failing)
                failing = True
        if failing and not self.behind:
            self._warn(f"{self.name} works again and has all rows")
            self.problem = ""

    def _send(self, lane: int, rows: Mapping[int, Row]) -> None:
        if lane not in self._lanes:
            self._lanes[lane] = self._open(self.name, lane)
        tracker = self._lanes[lane]
        for step in sorted(step for step in rows if step > tracker.last):
            tracker.log(step, rows[step])
            tracker.last = step

    def _failed(self, problem: str, *, quiet: bool) -> None:
        self.problem = problem
        if not quiet:
            self._warn(
                f"warning: {self.name} failed ({problem}); training continues, and its rows are "
                f"sent once it works again"
            )

    def close(self, summaries: Mapping[int, Mapping[str, Any]] | None) -> None:
        for lane, tracker in self._lanes.items():
            try:
                tracker.close(summaries[lane] if summaries is not None else None)
            except Exception as error:
                self._failed(files.first_line(error), quiet=bool(self.problem))
                self.behind.add(lane)


class _Reader:
    """Reads tables incrementally."""

    def __init__(self, directory: Path):
        self._directory = directory
        self._read: dict[str, int] = dict.fromkeys(_TABLES, 0)  # bytes
        self._columns: dict[str, list[str]] = {}
        self._kept: list[tuple[int, int, Row]] = []  # held back: lane, step, columns

    def read(self, sizes: Mapping[str, int], before: int | None) -> Rows:
        """New rows before step `before`, merged from both tables."""
        new = self._kept + [row for name in _TABLES for row in self._table(name, sizes[name])]
        self._kept, rows = [], {}
        for lane, step, row in new:
            if before is not None and step >= before:
                self._kept.append((lane, step, row))
            else:
                rows.setdefault(lane, {}).setdefault(step, {}).update(row)
        return rows

    def _table(self, name: str, size: int) -> Iterable[tuple[int, int, Row]]:
        try:
            with (self._directory / name).open("rb") as file:
                file.seek(self._read[name])
                data = file.read(size - self._read[name])
        except OSError:
            return  # read with the next checkpoint
        data = data[: data.rfind(b"\n") + 1]
        self._read[name] += len(data)
        lines = list(csv.reader(io.StringIO(data.decode("utf-8", "replace"), newline="")))
        if lines and name not in self._columns:
            self._columns[name] = lines.pop(0)
        for line in lines:
            row = dict(zip(self._columns[name], line))
            values = {k: _number(v) for k, v in row.items() if k not in _NO_METRICS}
            numbers = {k: v for k, v in values.items() if v is not None}
            yield int(row["lane"]), int(row["step"]), numbers


def _number(text: str) -> float | None:
    try:
        return int(text) if text.lstrip("-").isdecimal() else float(text)
    except ValueError:
        return None  # empty, or text
