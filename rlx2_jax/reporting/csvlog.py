"""Reads CSV logs as columns of numbers; drops and reports unreadable lines."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rlx2_jax import files

_COUNTS = ("lane", "step")  # columns of integers, which are never empty


class Log(NamedTuple):
    """Columns of equal length, and problems with the file."""

    columns: dict[str, np.ndarray]
    problems: list[str]


def names(path: Path) -> list[str]:
    """The column names of a CSV file; empty if it cannot be read."""
    try:
        with files.open_regular(path) as file:
            return file.readline().decode(errors="replace").strip().split(",")
    except OSError:
        return []


def read(path: Path, wanted: Sequence[str]) -> Log:
    """The `wanted` numeric columns of a CSV file.

    Drops a last line without a newline, which may be incomplete, and lines with too few or too many
    columns, with values that are not numbers, or with an invalid lane or step. Other empty values
    become nan.
    """
    empty = {name: np.zeros(0) for name in wanted}
    try:
        with files.open_regular(path) as file:
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return Log(empty, [f"{path.name} is missing"])
    except OSError as error:
        return Log(empty, [f"{path.name} cannot be read: {error.strerror}"])
    if not text:
        return Log(empty, [f"{path.name} is empty"])
    lines, problems = text.split("\n"), []
    if lines.pop():
        problems.append(f"{path.name}: the last line ({len(lines) + 1}) is incomplete, dropped")
    if not lines:
        return Log(empty, problems)
    header = lines[0].rstrip("\r").split(",")
    lacking = [name for name in wanted if name not in header]
    if lacking:
        problems.append(f"{path.name} has no column {', '.join(lacking)}")
        if len(lacking) == len(wanted):
            return Log(empty, problems)
    places = [header.index(name) if name in header else None for name in wanted]
    rows: list[list[float]] = []
    for number, line in enumerate(lines[1:], 2):
        values = line.rstrip("\r").split(",")
        if len(values) != len(header):
            problems.append(
                f"{path.name}: line {number} has {len(values)} of {len(header)} columns, dropped"
            )
            continue
        try:
            pairs = zip(wanted, places)
            rows.append([_number(name, None if i is None else values[i]) for name, i in pairs])
        except ValueError as error:
            problems.append(f"{path.name}: line {number} dropped: {error}")
    table = np.array(rows, float).reshape(len(rows), len(wanted))
    return Log({name: table[:, i] for i, name in enumerate(wanted)}, problems)


def _number(name: str, text: str | None) -> float:
    value = float(text) if text else float("nan")
    if name in _COUNTS and text is not None and not (value >= 0 and value.is_integer()):
        raise ValueError(f"{name} is {text!r:.40}")
    return value
