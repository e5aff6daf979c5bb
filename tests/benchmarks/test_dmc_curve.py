"""The curve of a DeepMind Control task: taken from a run, one line per lane, errors."""

import json

import pytest
from paths import DOCS

from benchmarks import dmc_curve

pytestmark = pytest.mark.fast


@pytest.fixture
def run(tmp_path):
    """A run of two lanes with three evaluations."""
    (tmp_path / "run").mkdir()
    (tmp_path / "measured").mkdir()
    lanes = [{"method": "dense", "seed": 0}, {"method": "rlx2", "seed": 0}]
    config = {"env": dmc_curve.TASK, "lanes": lanes}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    rows = [f"{lane},{t},{10 * lane + t}" for t in (0, 2, 4) for lane in (0, 1)]
    text = "\n".join(["lane,step,mean_return", *rows]) + "\n"
    (tmp_path / "run" / "evaluations.csv").write_text(text)
    return tmp_path


def test_a_run_becomes_curves(run):
    dmc_curve.take_over(run / "run", run)
    found = dmc_curve.curves(run / dmc_curve.NAME)
    assert list(found) == ["dense", "rlx2"]
    (dense,), (sparse,) = found.values()
    assert dense.step.tolist() == sparse.step.tolist() == [0, 2, 4]
    assert (dense.value.tolist(), sparse.value.tolist()) == ([0, 2, 4], [10, 12, 14])


def test_a_run_of_another_task_is_refused(run):
    path = run / "run" / "config.json"
    path.write_text(json.dumps({"env": "Hopper-v5", "lanes": []}))
    with pytest.raises(ValueError, match="trained Hopper-v5: give a run of HumanoidStand-v1"):
        dmc_curve.take_over(run / "run", run)
    assert not (run / dmc_curve.NAME).exists()


def test_the_published_curve_is_of_dense_and_sparse_agents():
    found = dmc_curve.curves(DOCS / dmc_curve.NAME)
    assert list(found) == ["dense", "rlx2"]
    for (curve,) in found.values():
        assert curve.step[0] == 0 and curve.step[-1] == 20_000
    assert (DOCS / "dmc.png").exists() and "dmc.png" in (DOCS / "environments.md").read_text()
