"""The report command: its files, its page in a browser, and its messages about bad logs."""

import csv
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import report_logs as logs
from paths import ROOT
from PIL import Image

from experiments import report
from experiments.reporting.exhibits import EXHIBITS

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium found: on Debian, apt-get install chromium"
)
# Posts what a reader with a given window width would see; details are opened first.
MEASURE = """<script>addEventListener("load", () => {
document.querySelectorAll("details").forEach(d => d.open = true);
const scrolls = [...document.querySelectorAll(".scroll")];
const found = { page: document.documentElement.scrollWidth, window: innerWidth,
  tables: scrolls.length, scrolling: scrolls.filter(s => s.scrollWidth > s.clientWidth).length,
  images: document.images.length, broken: [...document.images].filter(i => !i.naturalWidth).length,
  text: parseFloat(getComputedStyle(document.body).fontSize) };
parent.postMessage(JSON.stringify(found), "*"); });</script>"""
WRAPPER = """<!DOCTYPE html><body style="margin:0"><script>
addEventListener("message", e => { document.body.dataset.found = e.data; });</script>
<iframe src="copy.html" style="border:0;width:WIDTHpx;height:800px"></iframe></body>"""


class Page(HTMLParser):
    """What a page refers to, its ids, tables and text; complains about tags that do not match."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []
        self.viewport = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)
        self.links += [values[a] or "" for a in ("src", "href", "srcset", "action") if a in values]
        self.ids += [values["id"] or ""] if "id" in values else []
        if values.get("name") == "viewport":
            self.viewport = values["content"] or ""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A report on all suites, one task of most."""
    folder = tmp_path_factory.mktemp("report")
    logs.everything(folder / "logs", tasks=("Hopper",))
    assert report.report(folder / "logs", folder / "out") == 0
    return folder / "out"


@pytest.fixture(scope="module")
def page(made: Path) -> Page:
    return Page((made / "index.html").read_text())


def test_the_page_is_complete_and_self_contained(page: Page) -> None:
    assert page.open == []
    assert all(x.startswith(("data:", "#")) for x in page.links)
    assert {x[1:] for x in page.links if x.startswith("#")} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert page.viewport == "width=device-width, initial-scale=1"
    assert "script" not in page.tags
    text = "".join(page.text)
    assert not re.search(r"url\(|@import|https?:", text)


def test_the_page_and_the_markdown_have_every_table_and_figure(made: Path, page: Page) -> None:
    tables = {p.stem for p in (made / "tables").iterdir()}
    figures = {p.stem for p in (made / "figures").iterdir()}
    assert tables | figures <= set(page.ids)
    assert page.tags.count("table") == len(tables) and page.tags.count("img") == len(figures)
    wanted = "table2 table7 table3-topology table3-nstep table8 table9 table10 table11 table12 "
    wanted += "table13 table14 figure5 flops-table2 flops-table5 flops-table6 overview"
    assert set(wanted.split()) <= tables
    markdown = (made / "report.md").read_text()
    assert all(f"](figures/{name}.png)" in markdown for name in figures)
    for name in EXHIBITS:
        assert f"suite-{name}" in page.ids and f"## {name}: " in markdown
    text = "".join(page.text)
    for part in ("0.01 % of the paper's steps", "seeds found: 2 of 2 planned", "unfinished"):
        assert part in text and part in markdown
    assert (
        text.strip().startswith("rlx2_jax compared to the paper") and "Not a reproduction" in text
    )


def test_missing_units_are_missing_everywhere(made: Path) -> None:
    with (made / "tables" / "table3-nstep.csv").open() as file:
        rows = {row["task"]: row for row in csv.DictReader(file)}
    assert {rows[t]["3-step: ours"] for t in rows} == {"missing"}
    assert rows["Hopper"]["3-step: paper"] == "97.0"
    assert "td3-hopper: 3-step | 0 of 2 | missing" in (made / "report.md").read_text()


def test_figures_are_pictures(made: Path) -> None:
    stems = sorted({p.stem for p in (made / "figures").iterdir()})
    for part in ("curves", "value-error", "iqm-td3", "connections-actor", "mask-critic-q1-Dense_2"):
        assert any(part in stem for stem in stems), part
    for stem in stems:
        with Image.open(made / "figures" / f"{stem}.png") as image:
            image.load()
            assert image.format == "PNG" and image.width > 600
            low, high = image.convert("L").getextrema()
            assert (low, high) != (255, 255)
        svg = (made / "figures" / f"{stem}.svg").read_text()
        assert svg.startswith("<?xml") and svg.rstrip().endswith("</svg>")


@needs_chromium
@pytest.mark.parametrize("width", [1280, 375])
def test_the_page_fits_its_window(made: Path, tmp_path: Path, width: int) -> None:
    text = (made / "index.html").read_text().replace("</body>", f"{MEASURE}</body>")
    (tmp_path / "copy.html").write_text(text)
    (tmp_path / "wrapper.html").write_text(WRAPPER.replace("WIDTH", f"{width}"))
    found = dump(tmp_path / "wrapper.html", tmp_path / "profile")
    match = re.search(r'data-found="\{(.*?)\}"', found)
    assert match, found[:500]
    seen = dict(x.split(":") for x in match[1].replace("&quot;", "").split(","))
    assert int(seen["window"]) == width
    assert int(seen["page"]) <= width
    assert int(seen["broken"]) == 0 and int(seen["images"]) > 20
    assert float(seen["text"]) >= 16
    if width == 375:
        assert int(seen["scrolling"]) > 5  # wide tables scroll within themselves


def dump(path: Path, profile: Path) -> str:
    """The page as Chromium has it after its scripts ran."""
    assert CHROMIUM is not None
    flags = "headless no-sandbox disable-gpu no-first-run disable-background-networking "
    flags += "disable-component-update disable-sync hide-scrollbars dump-dom"
    command = [CHROMIUM, *(f"--{flag}" for flag in flags.split()), "--window-size=1400,900"]
    command += [f"--user-data-dir={profile}", "--virtual-time-budget=5000", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def test_an_empty_directory_still_gives_the_ledger(tmp_path: Path, capsys) -> None:
    (tmp_path / "logs").mkdir()
    assert report.report(tmp_path / "logs", tmp_path / "out") == 1
    assert "logs has no suite (<logdir>/<suite>/suite.json)" in capsys.readouterr().err
    found = Page((tmp_path / "out" / "index.html").read_text())
    assert {"flops-table2", "flops-table5", "flops-table6"} <= set(found.ids)
    assert "No training results" in "".join(found.text)
    assert report.report(tmp_path / "none", tmp_path / "out") == 2
    assert "error: " in capsys.readouterr().err


def test_bad_names_give_warnings_and_the_rest_is_reported(tmp_path: Path, capsys) -> None:
    units = [logs.unit("td3-hopper", "Hopper-v5", [logs.lane("dense", 0)])]
    for name in ("nstep", "topology"):
        logs.run(logs.plan(tmp_path, name, units), units[0], lambda *_: 1.0)
    out = tmp_path / "out"
    assert report.report(tmp_path, out, ["nstep", "tabel2", "toy"]) == 2
    said = capsys.readouterr().err
    assert "error: no suite 'tabel2': choose among table2, toy" in said
    assert "warning: suite toy was requested, but" in said
    markdown = (out / "report.md").read_text()
    assert "## nstep: " in markdown and "## topology: " not in markdown
    assert "suite toy was requested" in markdown
    assert (out / "tables" / "table3-nstep.csv").exists()
    (out / "tables" / "mine.txt").touch()
    assert report.report(tmp_path, out, ["flops"]) == 0
    assert "## nstep: " not in (out / "report.md").read_text()
    # An earlier report's files are gone, others are not.
    left = {p.name for p in (out / "tables").iterdir()}
    assert "mine.txt" in left and "table3-nstep.csv" not in left
    assert report.report(tmp_path, out, ["all"]) == 0
    assert "## nstep: " in (out / "report.md").read_text()
    (tmp_path / "file").touch()
    assert report.report(tmp_path, tmp_path / "file") == 2
    assert "error: the report cannot be written to" in capsys.readouterr().err


def test_problems_are_in_the_report(tmp_path: Path, capsys) -> None:
    units = [
        logs.unit(f"td3-{t.lower()}", f"{t}-v5", [logs.lane("dense", 0)]) for t in ("Hopper", "Ant")
    ]
    folder = logs.plan(tmp_path, "topology", units)
    first = logs.run(folder, units[0], lambda *_: 1.0)
    logs.run(folder, units[1], lambda *_: 1.0, commit="b" * 40)
    with (first / "evaluations.csv").open("a") as file:
        file.write("0,dense,0,4")
    assert report.report(tmp_path, tmp_path / "out") == 0
    said = capsys.readouterr().err
    for problem in ("the last line (6) is incomplete, dropped", "units differ in git commit"):
        assert problem in said
        assert problem in (tmp_path / "out" / "report.md").read_text()
        assert problem in (tmp_path / "out" / "index.html").read_text()


def test_the_same_logs_give_the_same_files(tmp_path: Path) -> None:
    unit = logs.unit("inverted-pendulum", "InvertedPendulum-v5", [logs.lane("dense", 0)])
    logs.run(logs.plan(tmp_path / "logs", "toy", [unit]), unit, logs.learning(300))
    outs = [tmp_path / name for name in ("one", "two")]
    for out in outs:
        assert report.report(tmp_path / "logs", out) == 0
    files = [{p.name: p.read_bytes() for p in out.rglob("*") if p.is_file()} for out in outs]
    assert files[0] == files[1] and "toy-all-curves.svg" in files[0]


def test_seeds_that_go_on_alone_are_drawn(tmp_path: Path) -> None:
    """A chunk of lanes is done, the next has begun: curves of different lengths."""
    lanes = [logs.lane("dense", 0), logs.lane("dense", 1), logs.lane("ss", 0)]
    unit = logs.unit("inverted-pendulum", "InvertedPendulum-v5", lanes)
    path = logs.run(logs.plan(tmp_path / "logs", "toy", [unit]), unit, logs.learning(300))
    (path / "summary.json").unlink()
    lines = (path / "evaluations.csv").read_text().splitlines(keepends=True)
    kept = [x for x in lines if not re.match(r"1,dense,1,[23]00|2,ss", x)]
    (path / "evaluations.csv").write_text("".join(kept))
    assert report.report(tmp_path / "logs", tmp_path / "out") == 0
    markdown = (tmp_path / "out" / "report.md").read_text()
    assert "| inverted-pendulum: Dense | 2 of 2 | 100 to 300 † | 1 to 3 |" in markdown
    assert "| inverted-pendulum: SS | 0 of 1 | missing |" in markdown


def test_non_finite_numbers_give_warnings(tmp_path: Path) -> None:
    lanes = [logs.lane(n, s) for n in ("dense", "rlx2", "ss") for s in (0, 1)]
    unit = logs.unit("td3-hopper", "Hopper-v5", lanes)
    path = logs.run(
        logs.plan(tmp_path / "logs", "table2", [unit]),
        unit,
        lambda name, seed, step: float("nan") if (name, seed) == ("rlx2", 1) else 5.0 + seed,
    )
    text = (path / "evaluations.csv").read_text()
    (path / "evaluations.csv").write_text(re.sub(r"[^,]+,2$", "nan,nan", text, flags=re.M))
    assert report.report(tmp_path / "logs", tmp_path / "out") == 0
    with (tmp_path / "out" / "tables" / "table2.csv").open() as file:
        hopper = next(r for r in csv.DictReader(file) if r["task"] == "TD3 Hopper")
    assert (hopper["RLx2: ours"], float(hopper["SS: ours"])) == ("nan", 100)
    markdown = (tmp_path / "out" / "report.md").read_text()
    assert "not finite" in markdown and "(rlx2, seed 1) is not finite" in markdown


def test_the_command_line(tmp_path: Path) -> None:
    logs.plan(tmp_path, "topology", [])

    def call(*args: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "experiments.report", *args]
        env = {**os.environ, "JAX_PLATFORMS": "cpu"}
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)

    done = call(f"--logdir={tmp_path}", "--suites=topology,flops")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report" / "index.html").exists() and "index.html" in done.stdout
    assert "--logdir is needed" in call().stderr
