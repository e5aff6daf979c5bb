"""Generated results: the repository's are up to date, and stale ones are detected."""

import json
import shutil
from pathlib import Path

import pytest
import report_logs as logs

from experiments import results
from experiments.reporting import evidence

HAND = "Written by hand, with *marks*."


def test_the_results_of_this_repository_are_up_to_date():
    assert results.stale(results.ROOT) == [], "run python -m experiments.results"


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """A repository with results of two tasks; a sparse unit and all of SAC are missing."""
    root = tmp_path_factory.mktemp("repository")
    envs = {"env": "Hopper-v5", "group": "td3-hopper"}
    units = []
    for name in logs.LEVEL:
        own = [logs.lane(name, s) for s in range(4)]
        units.append(logs.unit(f"td3-hopper-{name}", lanes=own, **envs))
        units.append(logs.unit(f"td3-ant-{name}", "Ant-v5", own, group="td3-ant"))
        units.append(logs.unit(f"sac-ant-{name}", "Ant-v5", own, "sac", group="sac-ant"))
    folder = logs.plan(root / "results", "table2", units, name="short", fraction=1e-4)
    for own in units:
        if own["algo"] == "td3" and own["name"] != "td3-ant-rigl":
            path = logs.run(folder, own, logs.learning(300))
            summary = json.loads((path / "summary.json").read_text())
            rate = 100.0 if own["name"].endswith("dense") else 400.0
            summary["lanes"] = [{"steps_per_second": rate} for _ in range(4)]
            summary |= {"training_seconds": 7200.0, "evaluation_seconds": None}
            (path / "summary.json").write_text(json.dumps(summary))
    (root / "results" / "discussion.md").write_text(f"{HAND}\n")
    (root / "README.md").write_text(f"# Head\n\n{results.BEGIN}\n{results.END}\n\nTail.\n")
    results.generate(root)
    return root


@pytest.fixture
def root(generated, tmp_path):
    return shutil.copytree(generated, tmp_path / "copy")


def test_one_command_writes_everything(generated):
    assert results.stale(generated) == []
    folder = generated / "results"
    for name in ("curves.png", "manifest.json", "report/index.html", "report/report.md"):
        assert (folder / name).stat().st_size > 1000 or name == "manifest.json"
    assert not list(folder.rglob("*.svg"))


def lines(path: Path, begin: str) -> list[str]:
    return [x for x in path.read_text().splitlines() if x.startswith(begin)]


def test_the_main_readme_has_the_headline(generated):
    text = (generated / "README.md").read_text()
    assert text.startswith("# Head\n\n<!--") and text.endswith("-->\n\nTail.\n")
    assert "![TD3: return against environment steps" in text
    hopper, ant, absent = (
        lines(generated / "README.md", f"| {x} ")[0] for x in ("Hopper", "Ant", "Walker2d")
    )
    assert hopper.split(" | ")[3].endswith("(90.6)") and "missing" not in hopper  # the paper's
    assert ant.split(" | ")[3] == "missing (68.5)" and absent.count("missing") == 6
    assert "4 planned" in text and "0.01 % of the paper's steps" in text
    (mean,) = lines(generated / "README.md", "| mean over tasks")
    assert "(99.7), 2 of 4 tasks" in mean


def test_the_page_has_returns_percentages_differences_and_speed(generated):
    page = generated / "results" / "README.md"
    text = page.read_text()
    assert f"## Discussion\n\n{HAND}\n" in text
    assert "SAC: missing, no unit has been collected." in text
    assert "table2: td3-ant-rigl, sac-ant-dense" in text.replace("sac-ant-tiny, ", "")
    (ahead,) = lines(page, "| RLx2 − RigL")
    assert ahead.split(" | ")[1] == "1"  # Hopper alone has both
    (dense,) = lines(page, "| table2/td3-hopper | Dense")
    (sparse,) = lines(page, "| table2/td3-hopper | RLx2")
    cells = [x.strip() for x in dense.split("|")[3:-1]]
    assert cells == ["1", "4", "100", "400", "1.00", "2.00", "not noted"]
    assert sparse.split(" | ")[6] == "4.00"
    assert "experiments.reproduce results/table2/td3-hopper-dense --until=20000" in text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("results/README.md", "results/README.md"),
        ("README.md", "README.md"),
        ("results/report/report.md", "results/report/report.md"),
        ("results/report/tables/table2.csv", "results/report/tables/table2.csv"),
        ("results/curves.png", "results/curves.png"),
        ("results/discussion.md", "results/README.md"),
        ("results/table2/td3-ant-ss/metrics.csv", "results/table2/td3-ant-ss/metrics.csv"),
    ],
)
def test_a_changed_file_is_out_of_date(root, name, expected):
    path = root / name
    data = path.read_bytes() if path.exists() else b""
    path.write_bytes(data.replace(b"| Hopper", b"| hopper").replace(b".", b",") + b" ")
    assert expected in results.stale(root)


def test_one_evaluation_more_or_less_is_noticed(root):
    path = root / "results" / "table2" / "td3-hopper-ss" / "evaluations.csv"
    path.write_text(path.read_text().replace("0,ss,0,100,", "0,ss,0,101,"))
    wrong = results.stale(root)
    assert "results/table2/td3-hopper-ss/evaluations.csv" in wrong
    shutil.rmtree(path.parent)
    assert {"README.md", "results/README.md"} <= set(results.stale(root))
    results.generate(root)
    assert results.stale(root) == []


def test_a_readme_without_a_place_is_refused(root):
    (root / "README.md").write_text("# Head\n")
    with pytest.raises(ValueError, match="results: begin"):
        results.generate(root)


def test_differences_by_hand(generated):
    """All Hopper lanes of a method have nearly one level: the difference is that of the levels."""
    found = results.load(generated / "results")
    table = evidence.versus(found.suites["table2"], "td3")
    (row,) = [r for r in table.rows if r[0] == "RLx2 − Tiny"]
    mean = row[2]
    assert isinstance(mean, float) and mean == pytest.approx(100 * (3050 - 1500) / 3000, abs=8)
    low, high = map(float, str(row[3]).split(" to "))
    assert low < mean < high and high - low < 20
