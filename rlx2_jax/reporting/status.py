"""The status of run directories and sweeps: state, progress and errors.

Reads `status.json`, `summary.json`, `config.json` and the CSV log of a run, and `suite.json` of a
sweep, which also lists units without a directory. Imports and executes nothing, not even JAX;
damaged files count as missing.
"""

import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlx2_jax import files
from rlx2_jax.reporting import csvlog
from rlx2_jax.reporting.markup import printable
from rlx2_jax.reporting.tables import Cell, Column, Table
from rlx2_jax.training import heartbeat
from rlx2_jax.training.logging import EVALUATIONS, SUMMARY, duration

STATES = ("waiting", heartbeat.RUNNING, heartbeat.FINISHED, heartbeat.FAILED, heartbeat.INTERRUPTED)
SILENCE = 60.0  # seconds without a heartbeat after which a run counts as killed
PLAN, CONFIG = "suite.json", "config.json"
PARTS, MOST_PARTS = "parts", 1024  # of a multi-host run
_LARGEST = 2**53  # of numbers in status.json, which may have been edited
_WRONG = (KeyError, TypeError, ValueError, AttributeError)


class Status(NamedTuple):
    """One unit: a run directory, which may not exist yet."""

    name: str
    state: str
    step: int | None = None
    total: int | None = None
    rate: float | None = None  # environment steps per second and lane
    score: float | None = None  # mean over lanes of their newest evaluation
    error: str = ""
    host: str = ""

    @property
    def eta(self) -> float | None:
        """Seconds left, if it is running."""
        if self.state != heartbeat.RUNNING or not self.rate or self.total is None:
            return None
        return (self.total - (self.step or 0)) / self.rate


class NoRuns(Exception):
    """The directory has neither a run nor a sweep."""


def find(directory: Path) -> list[Status]:
    """The units of a run directory, a suite, or a directory of suites and runs.

    Raises:
      NoRuns: it is none of these.
    """
    units = list(_find(directory, directory.name, depth=2))
    if not units:
        raise NoRuns(
            f"there is no run or sweep in {directory}: give a run directory, or the --logdir of a "
            f"sweep"
        )
    return list({unit.name: unit for unit in units}.values())


def _find(directory: Path, name: str, depth: int) -> Iterator[Status]:
    plan = directory / PLAN
    if plan.exists():
        yield from _planned(directory, plan)
    elif _is_run(directory):
        yield read(directory, name)
    elif depth and directory.is_dir():
        for path in sorted(directory.iterdir()):
            if path.is_dir() and not path.is_symlink():
                inner = path.name if depth == 2 else f"{name}/{path.name}"
                yield from _find(path, inner, depth - 1)


def _is_run(directory: Path) -> bool:
    names = (CONFIG, f"checkpoints/{CONFIG}", heartbeat.NAME)
    return any((directory / name).is_file() for name in names)


def _planned(directory: Path, plan: Path) -> Iterator[Status]:
    """The units of a suite; units shared with another suite are listed under that one."""
    suite = directory.resolve().name
    try:
        units = [(str(u["name"]), str(u["directory"]), u) for u in files.parse_json(plan)["units"]]
    except (files.Damaged, *_WRONG) as error:
        yield Status(f"{suite}/{PLAN}", heartbeat.FAILED, error=files.first_line(error))
        return
    for name, place, unit in units:
        folder = (directory / place).resolve()
        if not folder.is_relative_to(directory.resolve().parent):
            continue  # outside of this sweep
        shared = f"{folder.parent.name}/{folder.name}"
        yield read(folder, shared if place != name else f"{suite}/{name}", _int(unit.get("steps")))


def read(directory: Path, name: str, total: int | None = None) -> Status:
    """The status of one run directory, which may not exist yet."""
    beat = _object(directory / heartbeat.NAME)
    total = _int(beat.get("total")) or _total(directory) or total
    step, score = _newest(directory)
    error = printable(" ".join(str(beat.get("error") or "").split()), 500)
    host = printable(beat.get("host") or "")
    step = max(_int(beat.get("step")) or 0, step)
    if _is_finished(directory):
        return Status(printable(name), heartbeat.FINISHED, total, total, None, score)
    if parts := _parts(directory):
        return _together(printable(name), parts, total, score)
    state = _state(beat, directory)
    if state == "waiting":
        return Status(printable(name), state, 0, total)
    rate = _float(beat.get("steps_per_second")) if state == heartbeat.RUNNING else None
    return Status(printable(name), state, step, total, rate, score, error, host)


def _parts(directory: Path) -> list[Status]:
    """The parts of a multi-host run, each of which one process trains at a time."""
    count = _int(_object(directory / CONFIG).get("parts")) or 0
    count = count if 1 < count <= MOST_PARTS else 0
    return [read(directory / PARTS / str(k), str(k)) for k in range(count)]


def _together(name: str, parts: list[Status], total: int | None, score: float | None) -> Status:
    """The status of an unfinished multi-host run. It runs while one of its processes does, and its
    step is that of its slowest part."""
    worst = (heartbeat.RUNNING, heartbeat.FAILED, heartbeat.INTERRUPTED)
    states = {unit.state for unit in parts}
    state = next((x for x in worst if x in states), heartbeat.INTERRUPTED)
    running = [unit for unit in parts if unit.state == heartbeat.RUNNING]
    rate = min((unit.rate for unit in running if unit.rate), default=None)
    hosts = ", ".join(sorted({unit.host for unit in running}))
    error = next((unit.error for unit in parts if unit.error), "")
    step = min(unit.step or 0 for unit in parts)
    return Status(name, state, step, total, rate, score, error, hosts)


def _is_finished(directory: Path) -> bool:
    try:
        files.read_json(directory / SUMMARY)
    except files.Damaged:
        return False
    return True


def _state(beat: dict[str, Any], directory: Path) -> str:
    state = beat.get("state")
    if state == heartbeat.RUNNING:
        return heartbeat.RUNNING if _is_alive(beat) else heartbeat.INTERRUPTED
    if state in (heartbeat.FAILED, heartbeat.INTERRUPTED):
        return state
    return heartbeat.INTERRUPTED if _is_run(directory) else "waiting"


def _is_alive(beat: dict[str, Any]) -> bool:
    """Whether the process that wrote this is probably still running."""
    written, pid = _float(beat.get("time")), _int(beat.get("pid"))
    if written is None or time.time() - written > SILENCE:
        return False
    if beat.get("host") != socket.gethostname() or not pid:
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # belongs to another user; or is no process id here
    return True


def _object(path: Path) -> dict[str, Any]:
    try:
        return files.parse_json(path)
    except files.Damaged:
        return {}


def _int(value: Any) -> int | None:
    """An integer that a float can hold exactly, else None."""
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _LARGEST:
        return None
    return value


def _float(value: Any) -> float | None:
    """A finite number of that size, else None."""
    if not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        return None
    return float(value)


def _total(directory: Path) -> int | None:
    for path in (directory / CONFIG, directory / "checkpoints" / CONFIG):
        config = _object(path).get("config")
        if isinstance(config, dict) and _int(config.get("steps")):
            return config["steps"]
    return None


def _newest(directory: Path) -> tuple[int, float | None]:
    """The newest evaluated step, and the mean over lanes of their newest return."""
    columns = csvlog.read(directory / EVALUATIONS, ("lane", "step", "mean_return")).columns
    if not len(columns["lane"]):
        return 0, None
    newest = dict(zip(columns["lane"], columns["mean_return"]))  # rows ascend in step
    return int(np.max(columns["step"])), float(np.mean(list(newest.values())))


def table(units: Sequence[Status], key: str = "status") -> Table:
    """A table with one row per unit."""
    rows: list[tuple[Cell, ...]] = []
    for unit in units:
        rate, eta = unit.rate, unit.eta
        rows.append(
            (
                unit.name,
                unit.state,
                "" if unit.step is None else f"{unit.step:,}",
                "" if unit.total is None else f"{unit.total:,}",
                "" if rate is None else f"{rate:,.0f}",
                "" if eta is None else duration(eta),
                "" if unit.score is None else f"{unit.score:,.1f}",
                unit.host if unit.state == heartbeat.RUNNING else "",
                unit.error,
            )
        )
    names = ("unit", "state", "step", "of", "steps/s", "time left", "last score", "host", "error")
    notes = (summary(units), "The score is the mean over lanes of their newest evaluation.")
    return Table(key, "Status", tuple(map(Column, names)), tuple(rows), notes)


def summary(units: Sequence[Status]) -> str:
    """The number of units in each state."""
    counts = {state: sum(unit.state == state for unit in units) for state in STATES}
    shown = ", ".join(f"{n:,} {state}" for state, n in counts.items() if n)
    return f"{len(units):,} unit{'s' * (len(units) != 1)}: {shown}."
