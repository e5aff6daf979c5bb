"""Offline stores of Weights & Biases and Trackio: the numbers of the tables, for 32 lanes, once
each, after SIGKILL and resume. No network is used."""

import contextlib
import csv
import json
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from paths import ROOT

from rlx2_jax import files

pytestmark = pytest.mark.slow
LANES = 32
SCHEDULE = [
    "--env=InvertedPendulum-v5",
    "--max_episode_steps=50",
    "--method=rlx2,dense",
    f"--seeds={LANES // 2}",
    "--hidden=8,8",
    "--batch_size=8",
    "--steps=1500",
    "--warmup=100",
    "--mask_interval=50",
    "--t0=300",
    "--buffer_interval=100",
    "--b_min=150",
    "--b_max=900",
    "--eval_interval=100",
    "--metrics_interval=50",
    "--checkpoint_interval=100",
    "--episodes=1",
]


def launch(directory, *flags):
    environment = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(directory.parent / "cache"),
        "WANDB_MODE": "offline",
        "WANDB_ERROR_REPORTING": "false",
        "TRACKIO_DIR": str(directory.parent / "trackio"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
    }
    command = [sys.executable, "-m", "rlx2_jax", *flags]
    if flags[0].endswith(".py"):
        command = [sys.executable, *flags]
    with (directory.parent / "said").open("a") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def expected(directory):
    """Of each lane: its rows by step, the columns of both tables merged."""
    found = [{} for _ in range(LANES)]
    for name in ("metrics.csv", "evaluations.csv"):
        with (directory / name).open(newline="") as file:
            for row in csv.DictReader(file):
                skip = ("lane", "method", "seed", "step", "weights")
                numbers = {k: float(v) for k, v in row.items() if k not in skip and v}
                found[int(row["lane"])].setdefault(int(row["step"]), {}).update(numbers)
    return found


def equal(a, b):
    return a.keys() == b.keys() and all(
        a[k] == b[k] or (math.isnan(a[k]) and math.isnan(b[k])) for k in b
    )


def in_wandb(directory, key):
    """Rows of each lane as the offline stores have them, in their order."""
    from rlx2_jax.trackers import wandb

    return [
        [
            (s, {k: float(v) for k, v in row.items()})
            for s, row in wandb.rows(directory, f"{key}-{i}")
        ]
        for i in range(LANES)
    ]


def in_trackio(directory, key):
    found = [[] for _ in range(LANES)]
    (store,) = (directory.parent / "trackio").glob("*.db")
    with contextlib.closing(sqlite3.connect(store)) as database:
        rows = database.execute(
            "SELECT run_name, step, metrics FROM metrics ORDER BY id"
        ).fetchall()
    for name, step, text in rows:
        run, lane = name.split()[-1].split("-")
        assert run == key
        numbers = {k: float(v) for k, v in json.loads(text).items()}
        found[int(lane)].append((step, numbers))
    return found


def newest(directory):
    """The time step of the newest checkpoint."""
    states = (directory / "checkpoints" / "states").glob("[0-9]*")
    return max([int(p.name) for p in states if p.name.isdecimal()], default=0)


@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_stores_hold_the_tables_after_kills(tmp_path, tracker):
    pytest.importorskip(tracker)
    directory, chance, kills = tmp_path / "run", random.Random(tracker), 0
    command = ["train", f"--logdir={directory}", f"--tracker={tracker}", *SCHEDULE]
    process = launch(directory, *command)
    while kills < 3:
        before = newest(directory)
        while process.poll() is None and newest(directory) <= before + 100:
            time.sleep(0.02)
        time.sleep(chance.uniform(0.0, 4.0))  # among others while lanes are opened, or rows sent
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        process = launch(directory, "resume", str(directory))
    said = (tmp_path / "said").read_text
    assert process.wait(900) == 0, said()
    assert kills >= 2 and "warning" not in said()
    assert_stored(directory, tracker, 31)  # at 0, and every 50 steps to 1500


def assert_stored(directory, tracker, count):
    """Every lane has the `count` rows of the tables: all, in order, none twice."""
    key = files.read_json(directory / "tracker.json")["id"]
    wanted = expected(directory)
    stored = {"wandb": in_wandb, "trackio": in_trackio}[tracker](directory, key)
    assert sum(map(len, wanted)) == LANES * count
    for own, table in zip(stored, wanted):
        assert [step for step, _ in own] == sorted(table)
        assert all(equal(row, table[step]) for step, row in own)


@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_stores_hold_the_tables_after_kills_at_any_moment(tmp_path, tracker):
    """The same without training, so that most of the time lanes are opened or rows are sent."""
    pytest.importorskip(tracker)
    (tmp_path / "run").mkdir()
    chance = random.Random(tracker)
    command = (str(ROOT / "tests" / "tracked_process.py"), str(tmp_path / "run"), tracker)
    for _ in range(4):
        before = checkpoint(tmp_path / "run")
        process = launch(tmp_path / "run", *command)
        while process.poll() is None and checkpoint(tmp_path / "run") == before:
            time.sleep(0.02)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0.0, 20.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
        if checkpoint(tmp_path / "run") >= 2000:
            break
    process = launch(tmp_path / "run", *command)
    said = (tmp_path / "said").read_text
    assert process.wait(900) == 0 and "warning" not in said(), said()
    assert_stored(tmp_path / "run", tracker, 100)


def checkpoint(directory):
    path = directory / "checkpoint"
    return int(path.read_text().split()[0]) if path.exists() else 0


@pytest.fixture
def trackio_lane(tmp_path, monkeypatch):
    """Opens a lane in a new store; returns its storage class too."""
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage  # pyright: ignore[reportMissingImports]

    from rlx2_jax.trackers import trackio
    from rlx2_jax.trackers.base import TrackedLane

    monkeypatch.setattr("trackio.utils.TRACKIO_DIR", tmp_path)
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path)
    monkeypatch.setattr(trackio, "_PAUSE", 0.01)
    lane = TrackedLane("abc-0", "0:rlx2/s0", "group", "run", "rlx2", {"seed": 0}, tmp_path)
    return lambda: trackio.TrackioLane(lane), SQLiteStorage


def test_rows_that_trackio_cannot_write_are_repeated(trackio_lane, tmp_path, monkeypatch):
    """A store that is locked for longer than Trackio waits; rows keep their order."""
    make, storage = trackio_lane
    lane, write, calls = make(), storage.bulk_log, []

    def locked(*args, **options):
        calls.append(options["steps"])
        if len(calls) <= 3:
            raise OSError("Could not acquire database lock after 10 seconds")
        return write(*args, **options)

    monkeypatch.setattr(storage, "bulk_log", locked)
    for step in range(6):
        lane.log(step, {"q": float(step)})
        time.sleep(0.2)
    lane.close(None)
    assert len(calls) > 3
    (store,) = tmp_path.glob("*.db")
    with contextlib.closing(sqlite3.connect(store)) as database:
        rows = database.execute("SELECT step FROM metrics ORDER BY id").fetchall()
    assert [step for (step,) in rows] == list(range(6))
    assert make().last == 5


def test_rows_that_trackio_never_writes_are_an_error(trackio_lane, monkeypatch):
    make, storage = trackio_lane

    def broken(*args, **options):
        raise OSError("disk full")

    lane = make()
    monkeypatch.setattr(storage, "bulk_log", broken)
    lane.log(0, {"q": 1.0})
    with pytest.raises(OSError, match="disk full"):
        lane.close(None)
    monkeypatch.undo()
