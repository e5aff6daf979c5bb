"""One HTML file that needs nothing else: pictures inlined, light and dark, readable on a phone."""

import base64
from itertools import groupby
from pathlib import Path

from experiments.reporting import tables
from experiments.reporting.exhibits import Section
from experiments.reporting.figures import Absent, Figure
from experiments.reporting.markup import Html, slug, tag
from experiments.reporting.tables import Table

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --soft: #5a5a5a; --paper: #ffffff;
  --line: #d8d8d8; --band: #f4f4f2; --warn: #fff4d6; --warn-ink: #5c4300; --link: #0b57a4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --soft: #a8a8a8; --paper: #161616;
  --line: #3a3a3a; --band: #222222; --warn: #3a2f10; --warn-ink: #f3dfa8; --link: #8ec2ff; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; color: var(--ink);
  background: var(--paper); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.2; }
h2 { font-size: 1.25rem; margin-top: 3rem; padding-top: .75rem;
  border-top: 1px solid var(--line); }
a { color: var(--link); }
nav ul { display: flex; flex-wrap: wrap; gap: .35rem 1.1rem; padding: 0; list-style: none; }
nav a { display: inline-block; padding: .35rem 0; }
.warn { background: var(--warn); color: var(--warn-ink); padding: .6rem 1rem;
  border-radius: .4rem; }
.warn ul { margin: .3rem 0; padding-left: 1.2rem; }
figure { margin: 1.5rem 0; min-width: 0; }
figcaption, summary { margin-bottom: .4rem; }
summary { cursor: pointer; padding: .35rem 0; }
details { margin: 1.5rem 0; }
.scroll { overflow-x: auto; max-width: 100%; border: 1px solid var(--line); }
.scroll:focus-visible { outline: 2px solid var(--link); }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums;
  width: 100%; }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
thead th { background: var(--band); font-weight: 600; }
th.group { text-align: center; border-left: 1px solid var(--line); }
th.group:first-child, th:first-child { text-align: left; border-left: 0; }
th[scope=row], thead tr:last-child th:first-child { position: sticky; left: 0;
  background: var(--band); font-weight: 500; min-width: 6.5rem; max-width: 12rem;
  white-space: normal; }
tbody tr:last-child > * { border-bottom: 0; }
td.missing { color: var(--soft); font-style: italic; }
.notes, .lead { color: var(--soft); font-size: .875rem; }
.notes p { margin: .35rem 0; }
.grid { display: grid; gap: 1rem; margin: 1.5rem 0;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); align-items: start; }
.grid figure { margin: 0; }
summary + .scroll { margin-top: .2rem; }
.grid figcaption { margin-top: .35rem; color: var(--soft); font-size: .8125rem; }
img { display: block; width: 100%; height: auto; background: #fff; border-radius: .3rem; }
.absent { border: 1px dashed var(--line); padding: 2rem 1rem; text-align: center;
  color: var(--soft); border-radius: .3rem; }
"""


def page(
    title: str, sections: list[Section], warnings: list[str], banner: str, figures: Path
) -> str:
    """The whole document; `figures` holds the PNG files."""
    links = [tag("li", tag("a", s.key, href=f"#{_anchor(s)}")) for s in sections]
    top = [tag("h1", title), tag("p", banner, class_="warn")]
    if warnings:
        rows = tag("ul", *(tag("li", w) for w in warnings))
        top.append(tag("div", tag("b", "Problems found in the logs"), rows, class_="warn"))
    top.append(tag("nav", tag("ul", *links), aria_label="suites"))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", Html(_STYLE)),
    )
    body = tag("main", *(_section(s, figures) for s in sections))
    document = tag("html", head, tag("body", tag("header", *top), body), lang="en")
    return f"<!DOCTYPE html>\n{document}\n"


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
    data = base64.b64encode((figures / f"{item.key}.png").read_bytes()).decode()
    image = tag("img", alt=item.title, src=f"data:image/png;base64,{data}")
    return tag("figure", image, tag("figcaption", item.title), id=item.key)
