"""`rlx2 report`: reports on run directories that are finished, unfinished, damaged or hostile."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from small_runs import small_run, stop_after

from rlx2_jax import files
from rlx2_jax.cli import main
from rlx2_jax.reporting import runs
from rlx2_jax.training import execute, guards
from rlx2_jax.training.run import RunError


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("report") / "pole"
    execute.execute(small_run(), directory, progress=False)
    return directory


def copy(directory: Path, to: Path) -> Path:
    """The small files of a run."""
    to.mkdir()
    for path in directory.glob("*.*"):
        (to / path.name).write_bytes(path.read_bytes())
    return to


class _Page(HTMLParser):
    """The page's text and all references to external resources."""

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.links, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [v for k, v in attrs if k in ("src", "href")]

    def handle_data(self, data):
        self.text += data


def test_a_finished_run(finished, capsys):
    assert main.main(["report", str(finished)]) == 0
    out, err = capsys.readouterr()
    assert out.split() == [str(finished / "report" / x) for x in ("report.md", "index.html")]
    assert err == ""
    text = (finished / "report" / "report.md").read_text()
    summary = files.read_json(finished / "summary.json")
    for row in summary["lanes"]:
        assert f"| {row['final_score']:.1f} | {row['evaluations_used']} |" in text
    assert "4 lanes of 240 steps, finished; training took" in text
    assert "| pole | finished | 240 | 240 |" in text
    assert "0:rlx2/s0" in text and "3:dense/s1" in text
    assert re.search(r"\| dense \| [\d,]+ \| 1\.000 \| [\d.]+ \| 1\.000 \|", text)
    assert (finished / "report" / "curves-0.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_needs_nothing_else(finished, tmp_path):
    runs.write([runs.read(finished)], tmp_path)
    page = _Page((tmp_path / "index.html").read_text())
    assert all(x.startswith("data:") for x in page.links) and "script" not in page.tags
    assert page.tags.count("table") == 4 and page.tags.count("img") == 1
    assert "pole: InvertedPendulum-v5, TD3" in page.text


def test_scores_without_a_summary_are_the_same(finished, tmp_path):
    whole = runs.read(finished)
    other = copy(finished, tmp_path / "pole")
    (other / "summary.json").unlink()
    found = runs.read(other)
    assert found.warnings == [] and found.facts == []
    for a, b in zip(whole.lanes, found.lanes):
        for name in ("final_score", "best_return", "actor_sparsity", "critic_sparsity"):
            assert a[name] == pytest.approx(b[name], rel=1e-6)
        for name in ("evaluations_used", "n", "trims", "buffer_length", "alive", "ledger"):
            assert a[name] == b[name]


def test_an_unfinished_run(tmp_path, monkeypatch, capsys):
    stop_after(monkeypatch, 3)
    with pytest.raises(guards.Stopped):
        execute.execute(small_run(), tmp_path / "run", progress=False)
    assert main.main(["report", str(tmp_path / "run")]) == 0
    text = (tmp_path / "run" / "report" / "report.md").read_text()
    assert "unfinished, evaluated up to step" in text
    capsys.readouterr()


def test_a_run_that_has_only_its_settings(finished, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_bytes((finished / "config.json").read_bytes())
    found = runs.read(tmp_path / "run")
    assert found.warnings == ["evaluations.csv is missing", "metrics.csv is missing"]
    runs.write([found], tmp_path / "out")
    assert "missing" in (tmp_path / "out" / "report.md").read_text()
    with pytest.raises(RunError, match="there is no run"):
        runs.read(tmp_path)


@pytest.mark.parametrize("text", ["{", "{}", '{"lanes": [1, 2, 3, 4]}', '{"lanes": []}'])
def test_a_damaged_summary_is_a_warning(finished, tmp_path, text, capsys):
    run = copy(finished, tmp_path / "run")
    (run / "summary.json").write_text(text)
    assert main.main(["report", str(run)]) == 0
    assert "warning: run: summary.json is not used" in capsys.readouterr().err
    assert "summary.json is not used" in (run / "report" / "index.html").read_text()


def test_several_runs(finished, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    other = copy(finished, tmp_path / "other")
    assert main.main(["report", str(finished), str(other)]) == 0
    assert capsys.readouterr().out.split()[0] == "report/report.md"
    text = Path("report/report.md").read_text()
    assert "## pole: " in text and "## other: " in text and "![" in text
    assert text.count("| pole |") == text.count("| other |") == 3  # status, methods
    assert {p.name for p in Path("report").glob("*.png")} == {"curves-0.png", "curves-1.png"}


def test_names_are_text(finished, tmp_path):
    evil = copy(finished, tmp_path / "<b>x")
    settings = files.read_json(evil / "config.json")
    settings["env"] = "<script>alert(1)</script>-v0"
    settings["lanes"][0]["name"] = "a|b<img src=x>\x1b[2J"
    files.write_json(evil / "config.json", settings)
    runs.write([runs.read(evil)], tmp_path / "out")
    page = _Page((tmp_path / "out" / "index.html").read_text())
    assert "script" not in page.tags and page.tags.count("img") == 1
    text = (tmp_path / "out" / "report.md").read_text()
    assert "\x1b" not in text and " <script" not in text and "a\\|b\\<img" in text
