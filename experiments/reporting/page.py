"""The report as one HTML file."""

from itertools import groupby
from pathlib import Path

from experiments.reporting.exhibits import Section
from experiments.reporting.figures import Absent, Figure
from rlx2_jax.reporting import tables
from rlx2_jax.reporting.document import document, image
from rlx2_jax.reporting.markup import Html, slug, tag
from rlx2_jax.reporting.tables import Table


def page(
    title: str, sections: list[Section], warnings: list[str], banner: str, figures: Path
) -> str:
    """The complete document; `figures` is the folder of PNG files."""
    links = [tag("li", tag("a", s.key, href=f"#{_anchor(s)}")) for s in sections]
    top = [tag("h1", title), tag("p", banner, class_="warn")]
    if warnings:
        rows = tag("ul", *(tag("li", w) for w in warnings))
        top.append(tag("div", tag("b", "Problems found in the logs"), rows, class_="warn"))
    top.append(tag("nav", tag("ul", *links), aria_label="suites"))
    body = tag("main", *(_section(s, figures) for s in sections))
    return document(title, tag("header", *top), body)


def _anchor(section: Section) -> str:
    return f"suite-{slug(section.key)}"


def _section(section: Section, figures: Path) -> Html:
    parts = [tag("h2", section.title), *(tag("p", text, class_="lead") for text in section.lead)]
    for is_table, items in groupby(section.items, lambda item: isinstance(item, Table)):
        if is_table:
            parts += [tables.html(item) for item in items if isinstance(item, Table)]
        else:
            parts.append(tag("div", *(_picture(x, figures) for x in items), class_="grid"))
    return tag("section", *parts, id=_anchor(section))


def _picture(item: object, figures: Path) -> Html:
    if isinstance(item, Absent):
        text = (item.title, tag("br"), f"missing: {item.reason}")
        return tag("figure", *text, class_="absent")
    assert isinstance(item, Figure)
    shown = image(item.title, (figures / f"{item.key}.png").read_bytes())
    return tag("figure", shown, tag("figcaption", item.title), id=item.key)
