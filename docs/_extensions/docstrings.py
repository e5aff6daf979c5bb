"""Translates the package's docstrings, which are plain text for `help()`, to reStructuredText.

Indented blocks become literal blocks and Markdown tables become tables. Special
characters of reStructuredText (in |θ|, T_, *) are escaped outside of backticks. Napoleon handles
sections such as `Args:`; fields of records are documented by their `Attributes:` section.
"""

import re
from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx
from sphinx.domains.python import PyObject

SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields):$")
_CODE = re.compile(r"(`[^`]*`)")


def translate(lines: list[str]) -> list[str]:
    """A docstring's lines as reStructuredText."""
    return [line for block in _blocks(lines) for line in [*_translated(block), ""]]


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Paragraphs; one that is indented under a section heading belongs to that section."""
    block: list[str] = []
    in_section = False
    for line in [*lines, ""]:
        if SECTION.match(line):
            in_section = True
        elif line and not line.startswith(" "):
            in_section = False
        if line or (in_section and block):
            block.append(line)
        elif block:
            yield block
            block = []
    if block:
        yield block


def _translated(block: list[str]) -> list[str]:
    if block[0].startswith(">>>"):
        return block
    if len(block) > 1 and re.match(r"\|[ :]*-", block[1]):
        return _table(block)
    sections = [i for i, line in enumerate(block) if SECTION.match(line)]
    if block[0].startswith(" ") and not sections:
        return ["::", "", *block]
    if sections and sections[0] > 0:
        return [*_translated(block[: sections[0]]), "", *_translated(block[sections[0] :])]
    return escape("\n".join(block)).split("\n")


def escape(text: str) -> str:
    """Escapes text outside of backticks, and separates them from letters that follow (`name`s)."""
    parts = _CODE.split(text)
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"([*|\\]|_(?!\w))", r"\\\1", parts[i])
        if i and parts[i][:1].isalnum():
            parts[i] = "\\ " + parts[i]
    return "".join(parts)


def _table(block: list[str]) -> list[str]:
    """A Markdown table as a list-table."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block]
    rows = [row for row in rows if not all(re.fullmatch(r":?-+:?", cell) for cell in row)]
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in rows:
        for i, cell in enumerate(row):
            lines.append(f"   {'* -' if i == 0 else '  -'} {escape(cell)}")
    return lines


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    del app, what, name, obj, options
    lines[:] = translate(lines)


def _skip(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Skips fields of named tuples, which the class's docstring documents."""
    del app, what, name, options
    return True if type(obj).__name__ == "_tuplegetter" else skip or None


def setup(app: Sphinx) -> dict[str, Any]:
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Fields"
    app.connect("autodoc-process-docstring", _process, priority=400)  # napoleon's is 500
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
