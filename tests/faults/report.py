"""Outcomes of the cases, counted in a table and saved as JSON."""

import collections
import json
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

GOOD = ("exact", "warned", "rejected", "reported", "learned", "began")


class Verdict(NamedTuple):
    """The verdict on one case."""

    outcome: str
    detail: str = ""
    faults: int = 1

    @property
    def good(self) -> bool:
        return self.outcome in GOOD


class Outcome(NamedTuple):
    """The result of one case."""

    row: str  # of the table: what was attacked
    column: str  # how
    outcome: str  # one of GOOD, or a failure
    repeat: str  # names the case: repeat it with --only
    detail: str = ""
    faults: int = 1  # kills or failed calls that took effect

    @property
    def good(self) -> bool:
        return self.outcome in GOOD


def table(outcomes: Iterable[Outcome]) -> str:
    """Rows by columns, in each field the outcomes with their counts."""
    outcomes = list(outcomes)
    rows = sorted({x.row for x in outcomes})
    columns = sorted({x.column for x in outcomes})
    fields = collections.defaultdict(collections.Counter)
    for x in outcomes:
        fields[x.row, x.column][x.outcome] += 1
    text = [["", *columns]]
    for row in rows:
        cells = [fields[row, c] for c in columns]
        text.append([row, *(" ".join(f"{n} {k}" for k, n in sorted(c.items())) for c in cells)])
    widths = [max(len(line[i]) for line in text) for i in range(len(text[0]))]
    return "\n".join("  ".join(x.ljust(w) for x, w in zip(line, widths)).rstrip() for line in text)


def summary(title: str, outcomes: list[Outcome]) -> str:
    """The table, the totals, and each failure with the name to repeat it."""
    totals = collections.Counter(x.outcome for x in outcomes)
    lines = [f"== {title}: {len(outcomes)} cases", table(outcomes), ""]
    faults = sum(x.faults for x in outcomes)
    lines.append(
        f"total: {faults} faults; " + ", ".join(f"{n} {k}" for k, n in sorted(totals.items()))
    )
    for x in outcomes:
        if not x.good:
            lines.append(f"FAILURE {x.outcome}: {x.repeat}\n    {x.detail}")
    return "\n".join(lines)


def save(path: Path, parts: dict[str, list[Outcome]], more: dict[str, Any]) -> None:
    """All outcomes as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {name: [x._asdict() for x in outcomes] for name, outcomes in parts.items()}
    path.write_text(json.dumps({**plain, **more}, indent=1) + "\n")


def carry_out(tasks: list[Any], one: Any, jobs: int) -> list[Outcome]:
    """`one(task)` for every task, `jobs` at a time; prints a line as each ends."""
    found: list[tuple[int, Outcome]] = []
    began = time.monotonic()
    with ThreadPoolExecutor(jobs) as threads:
        futures = {threads.submit(one, task): i for i, task in enumerate(tasks)}
        for future in as_completed(futures):
            outcome = future.result()
            found.append((futures[future], outcome))
            head = f"[{len(found)}/{len(tasks)}] {time.monotonic() - began:.0f}s"
            text = f"{head} {outcome.outcome}: {outcome.repeat}"
            if outcome.detail:
                text += f"\n    {outcome.detail}"
            print(text, file=sys.stderr, flush=True)
    return [outcome for _, outcome in sorted(found)]
