"""Tables as data, rendered as Markdown, HTML, CSV and text."""

import csv
import io
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from rlx2_jax.reporting import markup
from rlx2_jax.reporting.markup import Html, tag

MISSING = "missing"
MARKS = {
    "†": "not all steps were run: a score so far",
    "§": "fewer seeds than planned, here or of the dense lanes",
    "‡": "a raw return: there is no positive dense score to divide by",
}


class Value(NamedTuple):
    """A mean over seeds."""

    mean: float
    std: float | None = None
    seeds: int = 0
    marks: str = ""
    note: str = ""

    def text(self, digits: int, *, spread: bool) -> str:
        value = number(self.mean, digits)
        if spread and self.std is not None:
            value += f" ± {number(self.std, digits)}"
        return " ".join(x for x in (value, self.marks, self.note) if x)


Cell = Value | float | int | str | None


class Column(NamedTuple):
    """A column; adjacent columns with the same `group` share a heading."""

    name: str
    group: str = ""
    digits: int = 1
    spread: bool = False  # with standard deviations

    @property
    def title(self) -> str:
        return f"{self.group}: {self.name}" if self.group else self.name


@dataclass(frozen=True)
class Table:
    """A table; `key` names its file, and None cells are missing values."""

    key: str  # a `markup.slug`
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    folded: bool = False  # collapsed in HTML

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", markup.slug(self.key))
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.key}: {len(row)} cells in {len(self.columns)} columns")

    def text(self, row: int, column: int) -> str:
        cell, style = self.rows[row][column], self.columns[column]
        if cell is None:
            return MISSING
        if isinstance(cell, Value):
            return cell.text(style.digits, spread=style.spread)
        return number(cell, style.digits) if isinstance(cell, float) else str(cell)

    def all_notes(self) -> list[str]:
        """The notes, and explanations of the marks in use."""
        cells = [cell for row in self.rows for cell in row]
        texts = [x.marks if isinstance(x, Value) else x for x in cells]
        used = {mark for x in texts if isinstance(x, str) for mark in x}
        return [*self.notes, *(f"{mark} {MARKS[mark]}." for mark in MARKS if mark in used)]


def number(value: float, digits: int) -> str:
    """A number as text, or "not finite"."""
    if value != value or value in (float("inf"), float("-inf")):
        return "not finite"
    return f"{round(value, digits) + 0.0:.{digits}f}"  # + 0.0: no "-0.0"


def markdown(table: Table) -> str:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(map(markup.markdown, cells)) + " |"

    lines = [f"**{markup.markdown(table.title)}**", "", line([c.title for c in table.columns])]
    lines.append("| " + " | ".join(["---"] + ["---:"] * (len(table.columns) - 1)) + " |")
    for i in range(len(table.rows)):
        lines.append(line([table.text(i, j) for j in range(len(table.columns))]))
    for note in table.all_notes():
        lines += ["", markup.markdown(note)]
    return "\n".join(lines) + "\n"


def text(table: Table) -> str:
    """Aligned columns for a terminal, without empty columns and notes."""
    cells = [[table.text(i, j) for j in range(len(table.columns))] for i in range(len(table.rows))]
    used = [j for j in range(len(table.columns)) if any(row[j] for row in cells)]
    lines = [[table.columns[j].title for j in used], *([row[j] for j in used] for row in cells)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    lines.insert(1, ["-" * width for width in widths])

    def aligned(row: list[str]) -> str:
        # Left-align names, states and messages.
        left = (0, 1, len(row) - 1)
        return "  ".join(
            text.ljust(width) if i in left else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths))
        ).rstrip()

    return "\n".join(map(aligned, lines))


def html(table: Table) -> Html:
    """A horizontally scrolling figure."""
    columns = table.columns
    head = []
    if any(c.group for c in columns):
        spans = [(group, len(list(same))) for group, same in groupby(c.group for c in columns)]
        head.append(tag("tr", *(tag("th", g, colspan=n, class_="group") for g, n in spans)))
    head.append(tag("tr", *(tag("th", c.name, scope="col") for c in columns)))
    body = [tag("tr", *_cells(table, i)) for i in range(len(table.rows))]
    notes = [tag("p", note) for note in table.all_notes()]
    grid = tag("table", tag("thead", *head), tag("tbody", *body))
    inner = [tag("div", grid, class_="scroll", tabindex=0, role="region", aria_label=table.title)]
    if notes:
        inner.append(tag("div", *notes, class_="notes"))
    outer, caption = ("details", "summary") if table.folded else ("figure", "figcaption")
    return tag(outer, tag(caption, tag("b", table.title)), *inner, id=table.key)


def _cells(table: Table, row: int) -> list[Html]:
    cells = [tag("th", table.text(row, 0), scope="row")]
    for j in range(1, len(table.columns)):
        kind = "missing" if table.rows[row][j] is None else None
        cells.append(tag("td", table.text(row, j), class_=kind))
    return cells


def to_csv(table: Table) -> str:
    """CSV with full precision; means over seeds get extra columns for std, seeds and marks."""
    means = [
        any(isinstance(row[j], Value) for row in table.rows) for j in range(len(table.columns))
    ]
    header = []
    for column, mean in zip(table.columns, means, strict=True):
        header.append(title := markup.csv_text(column.title))
        header += [f"{title} {x}" for x in ("std", "seeds", "marks")] if mean else []
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for row in table.rows:
        cells: list[object] = []
        for cell, mean in zip(row, means, strict=True):
            if isinstance(cell, Value):
                cells += [
                    cell.mean,
                    "" if cell.std is None else cell.std,
                    cell.seeds,
                    f"{cell.marks}{cell.note}",
                ]
            else:
                cell = markup.csv_text(cell) if isinstance(cell, str) else cell
                cells += [MISSING if cell is None else cell, *([""] * 3 if mean else [])]
        writer.writerow(cells)
    return out.getvalue()
