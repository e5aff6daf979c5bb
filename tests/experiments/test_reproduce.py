"""Records: confirmed by a rerun, rejected when changed, explained if rounding differs."""

import copy
import json
import shutil

import pytest
from recorded_unit import FOLDER
from small_runs import small_run

from experiments import collect, reproduce
from experiments.reproduce import judge, read_record
from rlx2_jax import files
from rlx2_jax.training import execute, fingerprint
from rlx2_jax.training.run import RunError

UNTIL = 120  # steps, of which 80 have an update
OTHER = {"processor": "another CPU"}


@pytest.fixture(scope="module")
def rerun():
    """The first steps of the stored unit on this machine."""
    record = read_record(FOLDER)
    return record, reproduce.rerun(record.run, UNTIL, range(4), progress=False)


def test_the_stored_unit_is_confirmed_on_any_machine(rerun):
    """Bit for bit where it was made; elsewhere within 1 % over the first 80 updates."""
    record, found = rerun
    assert set(found) == {(lane, step) for lane in range(4) for step in (0, 60, 120)}
    code, text = judge(record, found, UNTIL, range(4), fingerprint.fingerprint() | OTHER)
    assert code == 0, text


@pytest.mark.parametrize("column", ["mean_return", "value_bias", "value_spread"])
def test_a_changed_number_is_found_on_any_machine(rerun, column):
    record, found = copy.deepcopy(rerun)
    row = record.rows[2, 120]
    row[column] = str(float(row[column]) * 1.05)
    code, text = judge(record, found, UNTIL, range(4), fingerprint.fingerprint() | OTHER)
    assert code == 1 and f"lane 2, step 120: {column} is {row[column]} in the record" in text
    assert judge(record, found, 60, [0, 1, 3], fingerprint.fingerprint() | OTHER)[0] == 0


def test_a_missing_row_is_a_difference(rerun):
    record, found = copy.deepcopy(rerun)
    del record.rows[1, 60]
    code, text = judge(record, found, UNTIL, range(4), fingerprint.fingerprint() | OTHER)
    assert code == 1 and "lane 1, step 60: the evaluation is absent in the record" in text


@pytest.mark.fast
def test_where_rounding_is_the_same_nothing_may_differ():
    record = read_record(FOLDER)
    here, found = record.machines[0], copy.deepcopy(record.rows)
    code, text = judge(record, found, 240, range(4), here)
    assert code == 0 and text == "equal: 20 evaluations of lanes 0, 1, 2, 3, 20 digests of weights"
    found[3, 180]["weights"] = "0" * 16
    code, text = judge(record, found, 240, range(4), here)
    assert code == 1 and "this machine does not explain it" in text
    assert "lane 3, step 180: weights" in text and here["commit"] in text
    assert judge(record, found, 240, range(4), here | {"commit": "other"})[0] == 1  # no excuse
    code, text = judge(record, found, 240, range(4), here | OTHER)
    assert code == 0 and "processor was" in text and "another CPU" in text and "1%" in text


@pytest.mark.fast
def test_another_machine_later_in_the_run_counts_only_if_it_was_reached():
    record = read_record(FOLDER)
    first = record.machines[0]
    record = record._replace(machines=[first, {**first, **OTHER, "step": 100}])
    assert reproduce.machine_differences(record, 100, first) == []
    (line,) = reproduce.machine_differences(record, 101, first)
    assert line.startswith("processor was another CPU")


def test_a_new_record_is_confirmed_bit_for_bit(tmp_path):
    """One group of lanes is rerun in full, stopped early, and equal to the last digit."""
    whole, folder = tmp_path / "run", tmp_path / "record"
    execute.execute(small_run(), whole, progress=False)
    folder.mkdir()
    for name, data in collect.small_files(whole).items():
        (folder / name).write_bytes(data)
    code, text = reproduce.reproduce(folder, 180, [3], progress=False)
    assert (code, text) == (0, "equal: 4 evaluations of lanes 3, 4 digests of weights")


@pytest.mark.fast
def test_what_cannot_be_rerun_is_refused(tmp_path):
    with pytest.raises(RunError, match="no lane 4"):
        reproduce.reproduce(FOLDER, 60, [4])
    with pytest.raises(RunError, match="--until=-1"):
        reproduce.reproduce(FOLDER, -1)
    folder = shutil.copytree(FOLDER, tmp_path / "unit")
    config = files.read_json(folder / "config.json")
    own = {**config["config"], "algo": "bc"}
    files.write_json(folder / "config.json", {**config, "config": own})
    with pytest.raises(RunError, match="expert"):
        reproduce.reproduce(folder, 60)
    config["lanes"][1]["masks"] = "../other/final/lane-0.npz"
    files.write_json(folder / "config.json", config)
    with pytest.raises(RunError, match=r"lane 1 starts from \.\./other/final"):
        reproduce.reproduce(folder, 60)
    value = json.loads((folder / "config.json").read_text())
    value["config"]["steps"] = 241  # by hand: its digest no longer matches
    (folder / "config.json").write_text(json.dumps(value))
    with pytest.raises(RunError, match="was changed after it was written"):
        reproduce.reproduce(folder, 60)
    with pytest.raises(SystemExit) as caught:
        reproduce.parse_flags(["reproduce", "--no_such_flag"])
    assert caught.value.code == 2
