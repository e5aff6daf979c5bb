"""Trackers: every checkpointed row is sent exactly once, despite tracker errors and kills."""

import csv
import json
import struct
import threading
import zlib

import pytest
from small_runs import STEPS, rows, small_run, stop_after

import rlx2_jax as rlx2
from rlx2_jax import trackers
from rlx2_jax.cli import main
from rlx2_jax.trackers import wandb_file
from rlx2_jax.training import execute, guards, tracking
from rlx2_jax.training.tracking import Track, Tracking

LANES = 4


class Lines:
    """One file of JSON lines per lane; `fail` makes it raise, `hang` makes it wait."""

    fail = False
    hang = threading.Event()

    def __init__(self, lane):
        self.path = lane.directory / "lines" / lane.id
        self.path.parent.mkdir(exist_ok=True)
        self.last = max((row["step"] for row in read(self.path)), default=-1)
        self._append({"about": lane._replace(directory=None)._asdict()})

    def _append(self, row):
        if Lines.fail:
            raise ConnectionError("no route to the service")
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def log(self, step, row):
        self._append({"step": step, **row})

    def close(self, summary):
        self._append({"closed": summary and summary["final_score"]})


def read(path, key="step"):
    lines = path.read_text().splitlines() if path.exists() else []
    return [row for row in map(json.loads, lines) if key in row]


def lane_paths(directory):
    return sorted((directory / "lines").iterdir(), key=lambda p: int(p.name.split("-")[1]))


def expected(directory):
    """Expected rows of each lane: both tables, merged by step."""
    found = [{} for _ in range(LANES)]
    for name in ("metrics.csv", "evaluations.csv"):
        for row in rows(directory / name):
            own = found[int(row["lane"])].setdefault(int(row["step"]), {"step": int(row["step"])})
            skip = ("lane", "method", "seed", "step", "weights")
            own |= {k: float(v) for k, v in row.items() if k not in skip and v}
    return [[own[step] for step in sorted(own)] for own in found]


def same(a, b):
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def assert_complete(directory):
    paths = lane_paths(directory)
    assert len(paths) == LANES
    for path, wanted in zip(paths, expected(directory)):
        assert same(
            [{k: float(v) for k, v in row.items()} for row in read(path)],
            [{k: float(v) for k, v in row.items()} for row in wanted],
        )


@pytest.fixture(autouse=True)
def table(monkeypatch):
    monkeypatch.setattr(trackers, "TRACKERS", dict(trackers.TRACKERS))
    monkeypatch.setattr(Lines, "fail", False)
    rlx2.register_tracker("lines", Lines)


def run(directory, *, track=None, resume=False, said=None):
    say = (said if said is not None else []).append
    return execute.execute(
        small_run(), directory, track=track, resume=resume, say=say, progress=False
    )


def test_every_lane_has_the_numbers_of_the_tables(tmp_path):
    """Stopped in the middle and resumed, without naming the tracker again."""
    said = []
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 60)
        with pytest.raises(guards.Stopped):
            run(tmp_path, track=Track(("lines",), "pole", "group"), said=said)
    half = [len(read(path)) for path in lane_paths(tmp_path)]
    assert len(set(half)) == 1 and 0 < half[0] < 5
    summary = run(tmp_path, resume=True, said=said)
    assert_complete(tmp_path)
    assert [row["step"] for row in read(lane_paths(tmp_path)[0])] == [0, 60, 120, 180, STEPS]
    for i, path in enumerate(lane_paths(tmp_path)):
        first, again = (row["about"] for row in read(path, "about"))
        assert first == again and first["id"].endswith(f"-{i}") and first["project"] == "pole"
        assert first["group"] == "group" and first["job"] == tmp_path.name
        assert first["config"]["seed"] == i % 2 and first["config"]["env"] == small_run().env
        scores = [row["closed"] for row in read(path, "closed")]
        assert scores == [None, summary["lanes"][i]["final_score"]]
    assert not [line for line in said if "warning" in line]

    # Rows that the tracker has lost since, or never got: a resume sends what is missing at the end.
    path = lane_paths(tmp_path)[2]
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    run(tmp_path, resume=True)
    assert_complete(tmp_path)


def test_a_tracker_that_fails_never_stops_a_run(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(Lines, "fail", True)
    run(tmp_path, track=Track(("lines",)), said=said)
    warnings = [line for line in said if "warning" in line]
    assert len(warnings) == 2
    assert (
        "lines failed (ConnectionError: no route to the service); training continues" in warnings[0]
    )
    assert f"lack rows of {LANES} lanes" in warnings[1] and "rlx2 resume" in warnings[1]
    monkeypatch.setattr(Lines, "fail", False)
    run(tmp_path, resume=True)
    assert_complete(tmp_path)


# --- the reader and the thread, without training ---


def write(directory, name, lines):
    with (directory / name).open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    return (directory / name).stat().st_size


@pytest.fixture
def logs(tmp_path):
    """Three steps of two lanes; the last evaluation is not there yet."""
    head = ["lane", "method", "seed", "step"]
    metrics = [[lane, "rlx2", 0, step, 0.5, "nan"] for step in (50, 100) for lane in (0, 1)]
    values = [[lane, "rlx2", 0, step, 10 * step, "abc"] for step in (0, 50) for lane in (0, 1)]
    sizes = {
        "metrics.csv": write(tmp_path, "metrics.csv", [[*head, "q", "alpha"], *metrics]),
        "evaluations.csv": write(
            tmp_path, "evaluations.csv", [[*head, "mean_return", "weights"], *values]
        ),
    }
    return tmp_path, sizes


@pytest.mark.fast
def test_rows_of_both_tables_are_merged_and_late_ones_kept_back(logs):
    directory, sizes = logs
    reader = tracking._Reader(directory)

    found = reader.read(sizes, 100)
    assert sorted(found) == [0, 1] and sorted(found[0]) == [0, 50]
    assert found[1][0] == {"mean_return": 0}
    assert {k: str(v) for k, v in found[1][50].items()} == {
        "q": "0.5",
        "alpha": "nan",
        "mean_return": "500",
    }
    with (directory / "evaluations.csv").open("a") as file:
        file.write("0,rlx2,0,100,7,abc\n1,rlx2,0,100,8,abc\n0,rlx2,0,150,9")  # half a row
    sizes["evaluations.csv"] = (directory / "evaluations.csv").stat().st_size
    found = reader.read(sizes, None)
    assert {lane: list(own) for lane, own in found.items()} == {0: [100], 1: [100]}
    assert found[0][100]["mean_return"] == 7 and found[0][100]["q"] == 0.5
    assert reader.read(sizes, None) == {}


@pytest.mark.fast
def test_rows_beyond_a_checkpoint_are_not_read(logs):
    directory, sizes = logs
    short = {**sizes, "metrics.csv": sizes["metrics.csv"] - 4}  # in the middle of the last row
    found = tracking._Reader(directory).read(short, None)
    assert list(found[0]) == [50, 100, 0] and 100 not in found[1]
    assert tracking._Reader(directory / "nowhere").read(sizes, None) == {}


@pytest.mark.fast
def test_a_tracker_that_works_again_gets_all_rows(logs, monkeypatch):
    directory, sizes = logs
    said = []
    with Tracking(Track(("lines",)), small_run(), directory, said.append) as sent:
        monkeypatch.setattr(Lines, "fail", True)
        sent.publish(sizes, 50)
        sent.publish(sizes, 100)
        wait_for(lambda: len(said) == 1 and sent._queue.empty())
        wait_for(lambda: len(sent._feeds[0].behind) == 2)
        Lines.fail = False
        sent.publish(sizes, None)
    assert [line.split("(")[0] for line in said] == [
        "warning: lines failed ",
        "lines works again and has all rows",
    ]
    for path in lane_paths(directory):
        assert [row["step"] for row in read(path)] == [0, 50, 100]


def wait_for(condition):
    for _ in range(500):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it does not happen")


@pytest.mark.fast
def test_a_tracker_that_hangs_is_left_behind(logs, monkeypatch):
    directory, sizes = logs
    monkeypatch.setattr(tracking, "_PATIENCE_STOPPED", 0.1)
    over = threading.Event()
    monkeypatch.setattr(Lines, "log", lambda *_: over.wait())
    said = []
    with Tracking(Track(("lines",)), small_run(), directory, said.append) as sent:
        sent.publish(sizes)
    over.set()
    (line,) = said
    assert "lines may lack rows (it did not respond in time): rlx2 resume" in line


@pytest.mark.fast
def test_what_is_kept_of_a_run(tmp_path):
    said = []
    first, key = tracking._begin(Track(("lines",), "p"), tmp_path, said.append, restart=False)
    assert first == Track(("lines",), "p", tmp_path.name, tmp_path.name) and len(key) == 8
    assert tracking._begin(None, tmp_path, said.append, restart=False) == (first, key)
    other, same_key = tracking._begin(Track(()), tmp_path, said.append, restart=False)
    assert other.trackers == () and same_key == key  # --tracker= ends it
    assert tracking._begin(None, tmp_path, said.append, restart=False)[0].trackers == ()
    assert tracking._begin(first, tmp_path, said.append, restart=True)[1] != key
    assert not said
    trackers.TRACKERS.pop("lines")
    assert tracking._begin(first, tmp_path, said.append, restart=False)[0].trackers == ()
    (tmp_path / tracking.NAME).write_text("{")
    tracking._begin(None, tmp_path, said.append, restart=False)
    assert "no tracker 'lines'" in said[0] and "as a new one" in said[-1]


@pytest.mark.fast
def test_a_run_without_trackers_has_no_file_and_no_thread(tmp_path):
    with Tracking(None, small_run(), tmp_path, pytest.fail) as sent:
        sent.publish({})
        assert not sent._thread.is_alive()
    assert not list(tmp_path.iterdir())


@pytest.mark.fast
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--tracker=wandbb"], "--tracker=wandbb: use one or more of wandb, trackio"),
        (["--tracker=absent"], "--tracker=absent needs the package no_such_package: pip install"),
        (["--tracker_project=x"], "--tracker_project=x needs --tracker"),
    ],
)
def test_mistakes_are_refused_before_anything_starts(args, message, tmp_path, capsys):
    rlx2.register_tracker("absent", Lines, package="no_such_package")
    assert main.main(["train", f"--logdir={tmp_path / 'run'}", *args]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "run").exists()


@pytest.mark.fast
def test_registered_names_are_checked():
    rlx2.register_tracker("lines", Lines)  # the same again
    with pytest.raises(ValueError, match="there is already a tracker 'lines'"):
        rlx2.register_tracker("lines", lambda lane: Lines(lane))
    with pytest.raises(ValueError, match="letters, digits and underscores"):
        rlx2.register_tracker("my lines", Lines)


# --- stores of Weights & Biases ---


def fragment(body, kind):
    crc = zlib.crc32(body, zlib.crc32(bytes([kind])))
    return struct.pack("<IHB", crc, len(body), kind) + body


@pytest.mark.fast
def test_records_of_an_offline_store(tmp_path):
    """Whole ones, one over the end of a block, padding, and one that a kill cut short."""
    start = b":W&B\xe1\xbe\x00"
    whole = fragment(b"a" * 100, 1)
    left = 32768 - len(start) - len(whole)
    split = fragment(b"b" * (left - 7), 2) + fragment(b"c" * 10, 4)
    data = start + whole + split + fragment(b"d" * 50, 1)
    assert [(len(x), x[:1]) for x in wandb_file.records(data)] == [
        (100, b"a"),
        (left - 7 + 10, b"b"),
        (50, b"d"),
    ]
    assert len(list(wandb_file.records(data[:-1]))) == 2
    damaged = bytearray(data)
    damaged[-1] ^= 1
    assert len(list(wandb_file.records(bytes(damaged)))) == 2
    padded = start + fragment(b"e" * (32768 - 7 - 7 - 3), 1) + b"\0\0\0" + fragment(b"f", 1)
    assert [x[:1] for x in wandb_file.records(padded)] == [b"e", b"f"]
    assert not list(wandb_file.records(b""))
