"""Writes the table of docs/integrations.md from the tests: python docs/list_integrations.py"""

import importlib
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("integrations.md")
TESTS = PAGE.parents[1] / "tests" / "integrations"
_BEGIN, _END = "<!-- table: begin -->", "<!-- table: end -->"
_GROUPS = ["Libraries", "RL libraries", "Optimizers", "Transformations", "Files"]


def table() -> str:
    """A section per group, with one line per registered test."""
    sys.path[:0] = [str(TESTS), str(TESTS.parent)]
    found: list[Any] = []
    for path in sorted(TESTS.glob("test_embed_*.py")):
        module = importlib.import_module(path.stem)
        tests = [x for name, x in vars(module).items() if name.startswith("test_")]
        found += [row for test in tests for row in test.rows]
    lines = []
    for group in _GROUPS:
        lines += ["", f"### {group}", "", "| with | how | test |", "| --- | --- | --- |"]
        rows = [row for row in found if row.group == group]
        lines += [f"| {row.name} | {row.use} | `{row.test}` |" for row in rows]
    assert {row.group for row in found} == set(_GROUPS)
    return "\n".join(lines[1:])


def page() -> str:
    """The page with the current table."""
    text = PAGE.read_text()
    before, rest = text.split(_BEGIN)
    return f"{before}{_BEGIN}\n{table()}\n{_END}{rest.split(_END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page())
