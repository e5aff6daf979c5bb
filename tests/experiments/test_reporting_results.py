"""Reading of sweep directories, complete and damaged."""

import json
from pathlib import Path

import numpy as np
import pytest
import report_logs as logs

from experiments.reporting import provenance, results
from experiments.reporting.exhibits import EXHIBITS
from rlx2_jax.reporting import csvlog

pytestmark = pytest.mark.fast

KNOWN = {name: exhibit.title for name, exhibit in EXHIBITS.items()}


def constant(name: str, seed: int, step: int) -> float:
    return 100.0 * (seed + 1) + (step == 0) * 1e6


def nstep(logdir: Path, **options):
    unit = logs.unit("td3-hopper", "Hopper-v5", [logs.lane("dense", s) for s in (0, 1)])
    folder = logs.plan(logdir, "nstep", [unit])
    return logs.run(folder, unit, constant, **options)


def only(found: results.Results) -> results.Unit:
    (suite,) = found.suites.values()
    (unit,) = suite.units
    return unit


def test_a_complete_unit(tmp_path: Path) -> None:
    nstep(tmp_path)
    found = results.load(tmp_path, KNOWN)
    unit = only(found)
    assert found.warnings == []
    assert (unit.status, unit.task, unit.algo, unit.steps) == ("finished", "Hopper", "td3", 300)
    assert unit.planned == (("dense", 0), ("dense", 1)) and unit.hidden == (256, 256)
    assert [lane.score for lane in unit.lanes] == [100, 200]  # step 0 is not counted
    assert [lane.evaluations_used for lane in unit.lanes] == [3, 3]
    assert all(lane.finished for lane in unit.lanes)


def test_names_default_to_methods(tmp_path: Path) -> None:
    path = nstep(tmp_path) / "config.json"
    value = json.loads(path.read_text())
    value["lanes"][0]["name"] = ""
    del value["lanes"][1]["name"]
    path.write_text(json.dumps(value))
    assert only(results.load(tmp_path, KNOWN)).names == ["dense"]


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        ("0,dense,0,300,77,1,2,3", "the last line (9) is incomplete"),
        ("0,dense,0,300,77,1,2,3,4,5,6", "the last line (9) is incomplete"),
        ("0,dense,0,300,77,1,2,3\n", "line 9 has 8 of 11 columns"),
        ("0,dense,0,3oo,77,1,2,3,4,5,6\n", "line 9 dropped: could not convert"),
        ("7,dense,0,300,77,1,2,3,4,5,6\n", "1 row(s) of lanes that config.json lacks"),
        ("0,dense,0,200,100,1,2,3,4,5,6\n", "lane 0 has steps twice"),
    ],
)
def test_damaged_lines_are_dropped_with_a_warning(tmp_path: Path, tail: str, message: str) -> None:
    path = nstep(tmp_path, reached=200, finished=False)
    with (path / "evaluations.csv").open("a") as file:
        file.write(f"1,dense,1,300,200,1,2,3,4,5,6\n{tail}")
    found = results.load(tmp_path, KNOWN)
    (warning,) = found.warnings
    assert warning.startswith("nstep/td3-hopper: evaluations.csv: ") and message in warning
    first, second = only(found).lanes
    assert (first.score, first.evaluations_used, first.finished) == (100, 2, False)
    assert (second.score, second.evaluations_used, second.finished) == (200, 3, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "is empty"), ("lane,st", "is incomplete"), ("a,b\n1,2\n", "no column")],
)
def test_logs_without_rows(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "evaluations.csv"
    path.write_text(text)
    log = csvlog.read(path, ("lane", "step"))
    assert message in log.problems[0] and log.columns["step"].size == 0
    assert csvlog.read(tmp_path / "none.csv", ("lane",)).problems == ["none.csv is missing"]
    assert "cannot be read" in csvlog.read(tmp_path, ("lane",)).problems[0]


def test_empty_values_are_not_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("lane,step,x\r\n0,1,\r\n0,2,nan\r\n")
    log = csvlog.read(tmp_path / "a.csv", ("step", "x"))
    assert log.problems == [] and list(log.columns["step"]) == [1, 2]
    assert np.isnan(log.columns["x"]).all()


def test_missing_and_unfinished_units(tmp_path: Path) -> None:
    units = [
        logs.unit(f"td3-{t.lower()}", f"{t}-v5", [logs.lane("dense", 0)])
        for t in ("Hopper", "Ant", "Walker2d")
    ]
    folder = logs.plan(tmp_path, "topology", units)
    logs.run(folder, units[0], constant)
    logs.run(folder, units[1], constant, reached=100, finished=False)
    found = results.load(tmp_path, KNOWN).suites["topology"].units
    assert [u.status for u in found] == ["finished", "unfinished", "missing"]
    assert found[2].lanes == () and found[2].planned == (("dense", 0),)
    assert found[2].task == "Walker2d" and found[1].lanes[0].evaluations_used == 1


def test_damaged_json(tmp_path: Path) -> None:
    path = nstep(tmp_path)
    whole = (path / "config.json").read_text()
    (path / "summary.json").write_text('{"env": "Hop')
    found = results.load(tmp_path, KNOWN)
    assert (
        only(found).status == "unfinished" and "summary.json is not valid JSON" in found.warnings[0]
    )
    (path / "config.json").write_text(whole[:50])
    found = results.load(tmp_path, KNOWN)
    assert only(found).status == "missing" and "config.json is not valid" in found.warnings[0]
    (path / "config.json").write_text("[1]")
    assert "is not a JSON object" in results.load(tmp_path, KNOWN).warnings[0]
    value = {"format": results.FORMAT, "config": [], "lanes": [{"seed": "x"}]}
    (path / "config.json").write_text(json.dumps(value))
    found = results.load(tmp_path, KNOWN)
    assert only(found).status == "missing"
    assert "td3-hopper is not a run directory" in found.warnings[-1]
    (path / "config.json").write_text(whole)
    (path.parent / "suite.json").unlink()
    found = results.load(tmp_path, KNOWN)
    assert found.warnings[0] == "nstep: suite.json is missing"
    assert len(only(found).lanes) == 2


def test_other_formats_give_warnings(tmp_path: Path) -> None:
    path = nstep(tmp_path)
    value = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(value | {"format": results.FORMAT + 1}))
    found = results.load(tmp_path, KNOWN)
    assert only(found).status == "missing"
    said = f"has format {results.FORMAT + 1}, this version reads {results.FORMAT}: not read"
    assert f"config.json {said}" in found.warnings[0]


def test_mixed_versions_give_warnings(tmp_path: Path) -> None:
    units = [
        logs.unit(f"td3-{t.lower()}", f"{t}-v5", [logs.lane("dense", 0)])
        for t in ("Hopper", "Ant", "Walker2d")
    ]
    folder = logs.plan(tmp_path, "topology", units)
    for i, unit in enumerate(units):
        logs.run(folder, unit, constant, commit="ab"[i == 1] * 40, jax=f"0.10.{2 + (i == 2)}")
    assert provenance.differences(results.load(tmp_path, KNOWN)) == [
        "units differ in jax: 0.10.2 (topology/td3-hopper, topology/td3-ant); "
        "0.10.3 (topology/td3-walker2d)",
        "units differ in git commit: aaaaaaaaaaaa (topology/td3-hopper, topology/td3-walker2d); "
        "bbbbbbbbbbbb (topology/td3-ant)",
    ]


def test_frozen_and_diverged_lanes_give_warnings(tmp_path: Path) -> None:
    path = nstep(tmp_path)
    summary = json.loads((path / "summary.json").read_text())
    summary["lanes"] = [{"lane": 0, "alive": True}, {"lane": 1, "alive": False}]
    (path / "summary.json").write_text(json.dumps(summary))
    text = (path / "evaluations.csv").read_text().replace("1,dense,1,300,200", "1,dense,1,300,nan")
    (path / "evaluations.csv").write_text(text)
    found = results.load(tmp_path, KNOWN).warnings
    assert "the score of lane 1 (dense, seed 1) is not finite" in found[0]
    assert "lane 1 froze" in found[1]


def test_the_wrong_directory(tmp_path: Path) -> None:
    path = nstep(tmp_path)
    with pytest.raises(results.ReportError, match="not a directory: give --logdir"):
        results.load(tmp_path / "none", KNOWN)
    with pytest.raises(results.ReportError, match="directory of one suite: give --logdir its par"):
        results.load(path.parent, KNOWN)
    with pytest.raises(results.ReportError, match="directory of one run"):
        results.load(path, KNOWN)


def test_order_selection_and_strangers(tmp_path: Path) -> None:
    for name in ("toy", "mine", "table2"):
        logs.plan(tmp_path, name, [])
    (tmp_path / "report").mkdir()
    found = results.load(tmp_path, KNOWN)
    assert list(found.suites) == ["table2", "toy", "mine"]
    assert found.warnings == ["mine is not one of the paper's suites: only its scores are shown"]
    assert list(results.load(tmp_path, KNOWN, ["toy"]).suites) == ["toy"]


def test_units_of_a_group_are_one_and_may_live_in_another_suite(tmp_path):
    """The ablation's 3-step lanes are the main table's RLx2 lanes under another name."""
    envs = {"env": "Hopper-v5", "group": "td3-hopper"}
    parts = {
        n: logs.unit(f"td3-hopper-{n}", lanes=[logs.lane(n, s) for s in (0, 1)], **envs)
        for n in ("dense", "rlx2", "5-step")
    }
    main = logs.plan(tmp_path, "table2", [parts["dense"], parts["rlx2"]])
    shared = {**parts["dense"], "directory": "../table2/td3-hopper-dense"}
    renamed = logs.unit("td3-hopper-3-step", lanes=[logs.lane("3-step", s) for s in (0, 1)], **envs)
    renamed["directory"] = "../table2/td3-hopper-rlx2"
    other = logs.plan(tmp_path, "nstep", [shared, renamed, parts["5-step"]])
    logs.run(main, parts["dense"], lambda *_: 100.0)
    logs.run(main, parts["rlx2"], lambda *_: 90.0, commit="b" * 40)
    found = results.load(tmp_path, {"table2": "", "nstep": ""})
    (table,), (ablation,) = (found.suites[name].units for name in ("table2", "nstep"))
    assert (table.name, table.status, len(table.lanes)) == ("td3-hopper", "finished", 4)
    assert (ablation.name, ablation.status) == ("td3-hopper", "unfinished")
    assert [x.score for x in ablation.named("3-step")] == [90.0, 90.0]
    assert ablation.names == ["dense", "3-step", "5-step"] and not ablation.named("5-step")
    assert any("git commit" in text for text in provenance.differences(found))
    logs.run(other, parts["5-step"], lambda *_: 80.0)
    (ablation,) = results.load(tmp_path, {"table2": "", "nstep": ""}).suites["nstep"].units
    assert ablation.status == "finished" and ablation.named("5-step")[0].score == 80.0


@pytest.mark.parametrize(
    "where", ["../../etc", "/etc", "../table2/../x", "..", "../a/b/c", "../table2/.."]
)
def test_a_plan_cannot_lead_out_of_the_logdir(tmp_path, where):
    own = logs.unit("td3-hopper-dense", "Hopper-v5", [logs.lane("dense", 0)], directory=where)
    folder = logs.plan(tmp_path, "table2", [own])
    logs.run(folder, own, lambda *_: 1.0)
    (found,) = results.load(tmp_path, {"table2": ""}).suites["table2"].units
    assert found.directory == folder / "td3-hopper-dense" and found.status == "finished"
