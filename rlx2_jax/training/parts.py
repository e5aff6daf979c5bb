"""Multi-host runs are split into parts, each a separate run in `parts/<number>`.

A part has its own lock, checkpoints and logs, and is trained by one process at a time. The number
of parts is fixed when the run begins, so any number of processes can continue it. Logs, weights and
the summary of the whole run are merged from the parts; merging is idempotent.
"""

import csv
import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlx2_jax import files
from rlx2_jax.config import Lane
from rlx2_jax.files import Damaged
from rlx2_jax.training import logging, summary
from rlx2_jax.training.claim import CURVES, SUMMARY
from rlx2_jax.training.run import Run

PARTS = "parts"
_PATHS = ("weights", "masks", "expert")  # fields of a lane, relative to the run directory


def divided(run: Run, count: int) -> Run:
    """The run, divided into at most `count` parts."""
    size = -(-len(run.lanes) // count)
    return dataclasses.replace(run, parts=-(-len(run.lanes) // size))


def part(run: Run, number: int) -> Run:
    """One part, as a run in `folder`."""
    size = -(-len(run.lanes) // run.parts)
    first = number * size
    lanes = tuple(_moved(lane) for lane in run.lanes[first : first + size])
    return dataclasses.replace(run, lanes=lanes, parts=0, first=first)


def folder(directory: Path, number: int) -> Path:
    return directory / PARTS / str(number)


def holding(run: Run, directory: Path, lane: int) -> tuple[Run, Path, int]:
    """The run and directory with the checkpoints of a lane, and its position there."""
    if run.parts < 2:
        return run, directory, lane
    number, index = divmod(lane, -(-len(run.lanes) // run.parts))
    return part(run, number), folder(directory, number), index


def _moved(lane: Lane) -> Lane:
    """A lane with file paths relative to a part's folder."""
    named = {k: getattr(lane, k) for k in _PATHS if getattr(lane, k)}
    return dataclasses.replace(lane, **{k: str(Path("../..") / v) for k, v in named.items()})


def merge(run: Run, directory: Path) -> dict[str, Any] | None:
    """Merges the logs of all parts and, once all parts are finished, their other files; returns the
    summary, or None before that."""
    folders = [folder(directory, k) for k in range(run.parts)]
    tables = {}
    for name in (logging.EVALUATIONS, logging.METRICS):
        tables[name] = _rows([part / name for part in folders])
        if tables[name]:
            files.write_bytes(directory / name, _text(tables[name]))
    try:
        summaries = [files.read_json(part / SUMMARY) for part in folders]
    except Damaged:
        return None  # not finished
    events = [part / logging.EVENTS for part in folders]
    files.write_bytes(directory / logging.EVENTS, b"".join(x.read_bytes() for x in events))
    for part in folders:
        for source in [*part.glob("initial/lane-*.npz"), *part.glob("final/lane-*.npz")]:
            copy = directory / source.relative_to(part)
            copy.parent.mkdir(exist_ok=True)
            files.write_bytes(copy, source.read_bytes())
    merged = _summary(summaries)
    results = _results(run, tables[logging.EVALUATIONS])
    files.write_bytes(directory / CURVES, summary.plot(run, results))
    files.write_json(directory / SUMMARY, merged)
    return merged


def _rows(paths: Sequence[Path]) -> list[dict[str, str]]:
    """The rows of all tables, in the order in which a single process would write them."""
    rows: list[dict[str, str]] = []
    for path in paths:
        if path.exists():
            text = path.read_text()
            whole = text[: text.rfind("\n") + 1]  # the last line may be incomplete
            rows += csv.DictReader(io.StringIO(whole, newline=""))
    return sorted(rows, key=lambda row: (int(row["step"]), int(row["lane"])))


def _text(rows: Sequence[dict[str, str]]) -> bytes:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _summary(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One summary for the whole run. Seconds are summed over the parts."""
    seconds = {}
    for name in ("training_seconds", "evaluation_seconds"):
        values = [x[name] for x in summaries]
        seconds[name] = None if None in values else sum(values)
    lanes = [lane for x in summaries for lane in x["lanes"]]
    machines = [machine for x in summaries for machine in x["machines"]]
    return {**summaries[0], "lanes": lanes, "machines": machines, **seconds}


def _results(run: Run, rows: Sequence[dict[str, str]]) -> list[summary.LaneResult]:
    """The fields of each lane that the plot needs."""
    history: dict[int, list[dict[str, Any]]] = {i: [] for i in range(len(run.lanes))}
    for row in rows:
        shown = {"step": int(row["step"]), "mean_return": float(row["mean_return"])}
        history[int(row["lane"])].append(shown)
    return [summary.LaneResult(i, run.lanes[i], shown, {}, 0.0) for i, shown in history.items()]
