"""Names and messages from logs stay text in every file of a report."""

import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import report_logs as logs

from experiments import report
from experiments.reporting.exhibits import Section
from experiments.reporting.figures import Absent
from experiments.reporting.page import page
from experiments.reporting.write import _markdown
from rlx2_jax.reporting import markup
from rlx2_jax.reporting.markup import Html, tag
from rlx2_jax.reporting.tables import Column, Table

HOSTILE = [
    "<script>alert(1)<\\script>",  # a directory's name has no slash
    '" onmouseover="alert(1)" x="',
    "' autofocus onfocus=alert(1) '",
    "--><img src=x onerror=alert(1)>",
    "a|b`c`**d**_e_[f](javascript:alert(1))",
    "![x](http:evil.png) https:\\\\evil www.evil.org <b>",
    "$\\frac{$ &lt;b&gt; &#60;",
    "line\none\r\n\n# heading\n- item",
    "\x1b[31mred\x07 \u202eesrever\u202c \udcff",
    "=HYPERLINK(1)",
    "名前 😀 " + "long" * 20,
]
ATTRIBUTES = {"alt", "aria-label", "charset", "class", "colspan", "content", "href", "id", "lang"}
ATTRIBUTES |= {"name", "rel", "role", "scope", "src", "tabindex"}
TAGS = "a b body br details div figcaption figure h1 h2 head header html img li link main meta nav "
TAGS += "p section style summary table tbody td th thead title tr ul"


class Checked(HTMLParser):
    """A page whose elements, attributes and addresses are those of this package."""

    def __init__(self, text: str):
        super().__init__()
        self.text, self.ids, self.links = "", [], []
        self.feed(text)
        self.close()
        assert {x[1:] for x in self.links if x.startswith("#")} <= set(self.ids)
        assert len(self.ids) == len(set(self.ids))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS.split(), tag
        for name, value in attrs:
            assert name in ATTRIBUTES, (tag, name)
            if name in ("src", "href"):
                assert re.match(r"#[\w.-]+$|data:(image/png;base64,[\w+/=]+|,)$", value or "")
                self.links.append(value)
            if name in ("id", "class"):
                assert re.fullmatch(r"[\w.-]+", value or "", re.ASCII)
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


def check_markdown(text: str) -> str:
    """The text that a reader sees; no HTML, code or links, and no images but the report's."""
    parser = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable("table")
    shown = []
    for block in parser.parse(text):
        assert block.type not in ("html_block", "fence", "code_block", "hr"), block
        for token in block.children or []:
            kind = token.type
            assert kind in ("text", "image", "text_special", "softbreak") or re.match(
                "(em|strong)_", kind
            ), (kind, token.content, block.content)
            if kind == "image":
                assert re.fullmatch(r"figures/[\w.-]+\.png", token.attrs["src"], re.ASCII)
            else:
                shown.append(token.content)
    return "".join(shown)


def write_hostile(logdir: Path) -> None:
    """Suites, units, lanes, environments, settings and logs with such names."""
    for i, name in enumerate(HOSTILE):
        lanes = [logs.lane("dense", 0), logs.lane(name, 1), logs.lane(HOSTILE[i - 1], 2)]
        unit = logs.unit(name, "Hopper-v5", lanes)
        for suite in (name, "nstep" if i else "table2"):
            folder = logs.plan(logdir, suite, [unit], name=name, env_options={name: name})
            path = logs.run(folder, unit, logs.learning(300), commit=name, jax=name)
            config = json.loads((path / "config.json").read_text())
            config["env"], config["config"]["algo"] = name, name if i % 2 else "td3"
            (path / "config.json").write_text(json.dumps(config))
            with (path / "evaluations.csv").open("a") as file:
                file.write(f"{name.encode('utf-8', 'replace').decode()}\n")
        plan = json.loads((folder / "suite.json").read_text())
        plan["title"], plan["units"] = name, [*plan["units"], {**unit, "name": f"../{name}"}]
        (logdir / name / "suite.json").write_text(json.dumps(plan))


def test_a_report_on_hostile_names(tmp_path: Path, capsys: Any) -> None:
    write_hostile(tmp_path / "logs")
    assert report.report(tmp_path / "logs", tmp_path / "out") == 0
    said = capsys.readouterr()
    assert all(c.isprintable() or c == "\n" for c in said.err)
    assert "which is not a directory name" in said.err
    out = tmp_path / "out"
    found = Checked((out / "index.html").read_text("utf-8"))
    markdown = check_markdown((out / "report.md").read_text("utf-8"))
    for name in HOSTILE:
        assert markup.printable(name) in found.text
        assert " ".join(markup.printable(name).split()) in markdown
    files = [p for p in out.rglob("*") if p.is_file()]
    assert all(re.fullmatch(r"[\w.-]{1,120}", p.name, re.ASCII) for p in files)
    assert {p.parent for p in files} == {out, out / "tables", out / "figures"}
    for path in (out / "tables").iterdir():
        cells = [cell for row in csv.reader(io.StringIO(path.read_text("utf-8"))) for cell in row]
        assert not any(re.match(r"[=@\t]|[+-](?![\d.])", cell) for cell in cells)
    for path in (out / "figures").glob("*.svg"):
        tags = {x.tag.rpartition("}")[2] for x in ElementTree.parse(path).iter()}
        assert not tags & {"a", "script", "foreignObject", "image"}


@pytest.mark.fast
@pytest.mark.parametrize("name", HOSTILE)
def test_every_field_of_a_page_is_text(name: str, tmp_path: Path) -> None:
    """Also fields that no log reaches today."""
    column = Column(name, name)
    table = Table(name, name, (column, column), ((name, None),), (name,))
    folded = Table(f"2{name}", name, (column,), ((name,),), (name,), folded=True)
    items = [table, folded, Absent(name, name)]
    sections = [Section(name, name, (name,), items)]
    made = page(name, sections, [name], name, tmp_path)
    assert Checked(made).text.count(name) >= 10
    check_markdown(_markdown(sections, [name], name))


@pytest.mark.fast
def test_tag_by_hand() -> None:
    inner = tag("i", "a<b", title='"x"')
    assert inner == '<i title="&quot;x&quot;">a&lt;b</i>'
    assert tag("p", inner, "&", class_="c", aria_label="l", id=None) == (
        f'<p class="c" aria-label="l">{inner}&amp;</p>'
    )
    assert tag("br") == "<br>"
    assert not isinstance(f"{inner}", Html)  # and would be escaped


@pytest.mark.fast
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("td3-hopper: rlx2_jax 1.5 (2 of 3)", "td3-hopper: rlx2_jax 1.5 (2 of 3)"),
        ("-3.5 ± 1", "-3.5 ± 1"),
        ("A & B", "A & B"),
        ("&amp;", "\\&amp;"),
        ("_x_", "\\_x\\_"),
        ("a|b", "a\\|b"),
        ("- a", "\\- a"),
        ("# a", "\\# a"),
        ("1. a", "1\\. a"),
        ("1.5", "1.5"),
        ("a\n\nb", "a b"),
        ("https://x www.y", "https\\://x www\\.y"),
    ],
)
def test_markdown_by_hand(text: str, shown: str) -> None:
    assert markup.markdown(text) == shown


@pytest.mark.fast
def test_names_that_differ_have_different_files() -> None:
    names = ["a b", "a_b", "a/b", "a\nb", "A" * 300, "A" * 301, "..", ".", "", "名", "前"]
    assert len({markup.slug(n) for n in names}) == len(names)
    assert len({markup.printable(n) for n in ["a\x01", "a\x02", "b" * 300, "b" * 301]}) == 4
