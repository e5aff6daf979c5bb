"""Checkpoint manifests that are damaged, malicious or of another version."""

import copy

import pytest

from rlx2_jax.files import Damaged
from rlx2_jax.training import manifest
from rlx2_jax.training.checkpoint import Checkpoints

pytestmark = pytest.mark.fast

FILE = {"file": "rows-0.npy", "sha256": "12ab"}
GOOD = {
    "chunk": 0,
    "times": [40],
    "arrays": {"0.state.seed": "int32[2]"},
    "states": {"manifest.ocdbt": "12ab"},
    "rows": [{**FILE, "begin": 0, "end": 40, "chunk": 0, "group": 0, "array": "data"}],
    "logs": [{**FILE, "begin": 0, "end": 40, "log": "metrics.csv"}],
    "copies": [{**FILE, "name": "initial/lane-0.npz"}],
    "more": None,
}


def test_a_good_description_passes():
    manifest.check(GOOD)


@pytest.mark.parametrize("name", [name for name in GOOD if name != "more"])
def test_a_missing_or_wrong_field_is_named(name):
    for meta in ({k: v for k, v in GOOD.items() if k != name}, {**GOOD, name: "text"}):
        with pytest.raises(Damaged, match=f"no valid {name}"):
            manifest.check(meta)


@pytest.mark.parametrize("kind", manifest.ENTRIES)
def test_entries_have_every_field(kind):
    for field in manifest.ENTRIES[kind]:
        meta = copy.deepcopy(GOOD)
        del meta[kind][0][field]
        with pytest.raises(Damaged, match=f"no valid {field}"):
            manifest.check(meta)
    with pytest.raises(Damaged, match=f"7 among {kind}"):
        manifest.check({**GOOD, kind: [7]})


@pytest.mark.parametrize("path", ["", ".", "..", "/etc/passwd", "../x", "a/../../x", "a/b/c"])
@pytest.mark.parametrize(("kind", "field"), [("rows", "file"), ("logs", "log"), ("copies", "name")])
def test_paths_stay_in_the_run_directory(kind, field, path):
    meta = copy.deepcopy(GOOD)
    meta[kind][0][field] = path
    with pytest.raises(Damaged, match="not a file of this run"):
        manifest.check(meta)


def test_targets_of_symbolic_links_are_not_touched(tmp_path):
    other = tmp_path / "other"
    names = ("letter.txt", "rows.npy", "5.txt", "a.tmp", "7", "data")
    for name in names:
        (other / name).parent.mkdir(exist_ok=True)
        (other / name).write_text("precious")
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    for name in ("states", "data"):
        (run / "checkpoints" / name).symlink_to(other)
    for name in ("evaluations.csv", "metrics.csv"):
        (run / name).symlink_to(other / "letter.txt")
    (other / "rows-0-0-data-0-4.npy").write_text("left behind")
    (other / "40.tmp").mkdir()
    store = Checkpoints(run / "checkpoints")
    (other / "7").unlink()  # would count as a checkpoint that cannot be read
    store.clean()
    assert store.restore_log(None, run / "evaluations.csv", print) == 0
    assert {x.name for x in other.iterdir()} == {*names} - {"7"}
    assert all(x.read_text() == "precious" for x in other.iterdir())
    assert not (run / "evaluations.csv").exists()
