"""The tables of the RLx2 paper as data, one CSV file each (see README.md beside this file)."""

import csv
import re
from pathlib import Path
from typing import Any

from rlx2_jax.runtime.settings import SettingError

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The tables there are, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.csv"))


def load(name: str) -> list[dict[str, Any]]:
    """Rows of one table, in the paper's order; numbers are int or float, `inf` included."""
    if name not in names():
        raise ValueError(f"no table {name!r}: choose one of {', '.join(names())}")
    with (_FOLDER / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return [{key: _parse(text) for key, text in row.items()} for row in csv.DictReader(file)]


def sparsities(algo: str, env: str) -> dict[str, float]:
    """The paper's actor and critic sparsity for an environment of any version."""
    task, rows = task_name(env), load("table2_models")
    for row in rows:
        if row["algo"] == algo and row["env"] == task:
            return {k: float(row[k]) for k in ("actor_sparsity", "critic_sparsity")}
    known = sorted({r["env"] for r in rows if r["env"] != "average"})
    raise SettingError(
        f"--paper_sparsity: the paper has no sparsities for {env}; it has {', '.join(known)}. "
        f"Give --actor_sparsity and --critic_sparsity instead"
    )


def task_name(env: str) -> str:
    """An environment's name without its version: the paper's tasks are -v3, ours mostly -v5."""
    return re.sub(r"-v\d+$", "", env)


def _parse(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
