"""The tables of the RLx2 paper as data, one CSV file each (see README.md beside this file)."""

import csv
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The names of all tables, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.csv"))


def load(name: str) -> list[dict[str, Any]]:
    """Rows of one table, in the paper's order; numbers are int or float, including `inf`."""
    if name not in names():
        raise ValueError(f"no table {name!r}: choose one of {', '.join(names())}")
    with (_FOLDER / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return [{key: _parse(text) for key, text in row.items()} for row in csv.DictReader(file)]


def _parse(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
