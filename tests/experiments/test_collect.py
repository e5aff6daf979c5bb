"""Collected units: small, complete, readable as run directories, never silently overwritten."""

import csv
import json
import shutil

import numpy as np
import pytest
from recorded_unit import FOLDER
from report_logs import plan

from experiments import collect
from experiments.reporting import results
from rlx2_jax import files
from rlx2_jax.training import weights

pytestmark = pytest.mark.fast
MASK = {"Dense_0": {"kernel": np.ones((4, 2), bool), "bias": np.ones(2, bool)}}


def networks(seed: int) -> dict[str, weights.Weights]:
    rng = np.random.default_rng(seed)
    layer = {"kernel": rng.normal(size=(4, 2)), "bias": np.zeros(2)}
    layer = {name: array.astype(np.float32) for name, array in layer.items()}
    return {"actor": weights.Weights({"Dense_0": layer}, MASK)}


@pytest.fixture
def logdir(tmp_path):
    """A suite with a finished unit that has many evaluations, and an unfinished unit."""
    folder = plan(tmp_path / "runs", "mine", [{"name": "unit", "lanes": []}])
    unit = shutil.copytree(FOLDER, folder / "unit")
    (folder / "open").mkdir()
    shutil.copy(FOLDER / "config.json", folder / "open")
    for i in range(4):
        weights.save(unit / "final" / f"lane-{i}.npz", networks(i))
    head = "lane,method,seed,step,mean_return,std_return,min_return,max_return,mean_length,"
    lines = [head + "value_bias,value_spread,weights"]
    measured = ["lane,method,seed,step,q,buffer_length,policy_distance,train_flops"]
    for step in range(0, 60_300, 300):
        for lane in range(4):
            value = f"{1000 * np.sin(step + lane):.7g}"
            text = ",".join([value] * 7)
            lines.append(f"{lane},rlx2,{lane},{step},{text},{step:016x}")
            measured.append(f"{lane},rlx2,{lane},{step},{value},{step},0.1,1e9")
    (unit / "evaluations.csv").write_text("\r\n".join(lines) + "\r\n")
    (unit / "metrics.csv").write_text("\r\n".join(measured) + "\r\n")
    summary = files.read_json(unit / "summary.json")
    for row in summary["lanes"]:
        means = 1000 * np.sin(np.arange(300, 60_300, 300) + row["lane"])
        row |= {"final_score": means[-30:].mean(), "evaluations_used": 30}
    files.write_json(unit / "summary.json", summary)
    return tmp_path / "runs"


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_finished_units_become_small_run_directories(logdir, tmp_path):
    out = tmp_path / "out"
    assert collect.collect(logdir, out) == 0
    assert {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()} == {
        "mine/suite.json",
        *(f"mine/unit/{x}" for x in collect.small_files(logdir / "mine" / "unit")),
    }
    unit, source = out / "mine" / "unit", logdir / "mine" / "unit"
    assert sum(p.stat().st_size for p in unit.iterdir()) < collect.LARGE
    found, given = rows(unit / "evaluations.csv"), rows(source / "evaluations.csv")
    assert len(found) == len(given) == 4 * 201
    exact = {(r["lane"], r["step"]): r["mean_return"] for r in given}
    assert exact == {(r["lane"], r["step"]): r["mean_return"] for r in found}
    kept = [r["step"] for r in found if r["lane"] == "2" and r["weights"]]
    assert kept == [str(300 * i) for i in range(20)] + ["60000"]
    measured = [r for r in rows(unit / "metrics.csv") if r["lane"] == "1"]
    assert 40 <= len(measured) <= 60 and measured[-1]["step"] == "60000"
    assert "train_flops" not in measured[0] and "buffer_length" in measured[0]


def test_the_summary_has_the_fields_of_a_record(logdir, tmp_path):
    collect.collect(logdir, tmp_path / "out")
    found = files.read_json(tmp_path / "out" / "mine" / "unit" / "summary.json")
    assert [row["weights"] for row in found["lanes"]] == [
        weights.digest(networks(i)) for i in range(4)
    ]
    assert found["training_seconds"] > 0 and found["evaluation_seconds"] > 0
    assert found["processor"] and "instructions" in found and found["machines"][0]["step"] == 0
    assert "ledger" not in found["lanes"][0]


def test_what_older_runs_did_not_note_is_null(logdir, tmp_path):
    unit = logdir / "mine" / "unit"
    new = ("machines", "evaluation_seconds", "training_seconds", "instructions")
    summary = files.read_json(unit / "summary.json")
    seconds = summary["training_seconds"]
    files.write_json(unit / "summary.json", {k: v for k, v in summary.items() if k not in new})
    shutil.rmtree(unit / "final")
    text = (unit / "evaluations.csv").read_text().splitlines()
    lines = [line.rpartition(",")[0] for line in text]
    (unit / "evaluations.csv").write_text("\n".join(lines) + "\n")
    assert collect.collect(logdir, tmp_path / "out") == 0
    found = files.read_json(tmp_path / "out" / "mine" / "unit" / "summary.json")
    assert [found[x] for x in ("machines", "evaluation_seconds", "instructions")] == [None] * 3
    assert found["training_seconds"] == pytest.approx(seconds)  # from steps/s
    assert [row["weights"] for row in found["lanes"]] == [None] * 4
    assert "weights" not in rows(tmp_path / "out" / "mine" / "unit" / "evaluations.csv")[0]


def test_reports_read_collected_units_as_the_runs(logdir, tmp_path):
    collect.collect(logdir, tmp_path / "out")
    ours, theirs = (results.load(x, {"mine": ""}) for x in (tmp_path / "out", logdir))
    assert ours.warnings == [] and ours.suites["mine"].units[0].status == "finished"
    for a, b in zip(*(x.suites["mine"].units[0].lanes for x in (ours, theirs)), strict=True):
        assert (a.score, a.settings) == (b.score, b.settings)


def test_a_collected_unit_is_replaced_only_on_demand(logdir, tmp_path, capsys):
    out = tmp_path / "out"
    collect.collect(logdir, out)
    before = (out / "mine" / "unit" / "evaluations.csv").read_bytes()
    capsys.readouterr()
    assert collect.collect(logdir, out) == 0  # the same again: nothing to say
    assert capsys.readouterr() == ("", "")
    path = logdir / "mine" / "unit" / "evaluations.csv"
    path.write_text(path.read_text().replace("0,rlx2,0,300,", "0,rlx2,0,301,"))
    assert collect.collect(logdir, out) == 1
    assert "--replace" in capsys.readouterr().err
    assert (out / "mine" / "unit" / "evaluations.csv").read_bytes() == before
    assert collect.collect(logdir, out, replace=True) == 0
    assert (out / "mine" / "unit" / "evaluations.csv").read_bytes() != before


def test_a_damaged_unit_is_named_and_the_rest_collected(logdir, tmp_path, capsys):
    other = shutil.copytree(logdir / "mine" / "unit", logdir / "mine" / "other")
    value = json.loads((logdir / "mine" / "unit" / "summary.json").read_text())
    value["lanes"][0]["final_score"] = 1e9
    (logdir / "mine" / "unit" / "summary.json").write_text(json.dumps(value))
    assert collect.collect(logdir, tmp_path / "out") == 1
    assert "mine/unit: cannot be collected" in capsys.readouterr().err
    assert (tmp_path / "out" / "mine" / other.name / "summary.json").exists()


@pytest.mark.parametrize(
    "text",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("0,rlx2,0,60000,", "0,rlx2,0,60000,9"),
        lambda text: "lane,step,mean_return\n",
        lambda text: text + "\0" + '"' * 10**6,
        lambda text: text.replace("lane", "line"),
    ],
)
def test_evaluations_that_do_not_give_the_score_are_refused(logdir, tmp_path, capsys, text):
    path = logdir / "mine" / "unit" / "evaluations.csv"
    path.write_text(text(path.read_text()))
    assert collect.collect(logdir, tmp_path / "out") == 1
    assert "mine/unit: cannot be collected" in capsys.readouterr().err
    assert not (tmp_path / "out" / "mine" / "unit").exists()
