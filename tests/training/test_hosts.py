"""Processes that watch each other, and runs in parts."""

import csv
import dataclasses
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from several_devices import environment, logs
from small_runs import small_run

from rlx2_jax import files
from rlx2_jax.training import distributed, hosts, parts
from rlx2_jax.training.hosts import DONE, FOLDER, HostLost, Hosts, Watch
from rlx2_jax.training.run import Run, RunError

TWO = [Hosts(0, 2, "session"), Hosts(1, 2, "session")]


def wait_for(condition, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.fast
def test_a_process_that_falls_silent_is_lost(tmp_path):
    with Watch(tmp_path, TWO[0], 1.0) as first:
        with Watch(tmp_path, TWO[1], 30.0) as second:
            first.wait(lambda states: states == ["training"])
            time.sleep(0.5)
            assert first.problem is None and second() is None
            second._ended.set()  # as if it was killed
            wait_for(lambda: first.problem is not None)
            assert first() == "process 1 of 2 was lost (no heartbeat for 1 s)"
        with pytest.raises(HostLost, match="process 1 of 2 was lost"):
            first.wait(lambda states: False)


@pytest.mark.fast
def test_a_process_that_is_done_may_fall_silent(tmp_path):
    with Watch(tmp_path, TWO[0], 0.3) as first:
        with Watch(tmp_path, TWO[1], 30.0) as second:
            second.say(DONE)
        first.wait(lambda states: states == [DONE])
        time.sleep(0.6)
        assert first() is None


@pytest.mark.fast
def test_an_error_of_one_process_reaches_the_others(tmp_path):
    with Watch(tmp_path, TWO[0], 30.0) as first:
        with pytest.raises(RunError), Watch(tmp_path, TWO[1], 30.0):
            raise RunError("there is\nno space")
        with pytest.raises(HostLost, match="process 1 of 2 has stopped there is no space"):
            first.wait(lambda states: False)


@pytest.mark.fast
def test_a_file_system_that_is_not_shared(tmp_path):
    folder = tmp_path / FOLDER
    folder.mkdir()
    (folder / "1").write_text("earlier-session 7 training")  # of another start
    with Watch(tmp_path, TWO[0], 0.3) as first:
        wait_for(lambda: first.problem is not None)
    assert "process 1 of 2 did not appear in" in str(first.problem)


@pytest.mark.fast
def test_signs_of_life_are_overwritten_in_place(tmp_path):
    with Watch(tmp_path, TWO[0], 30.0) as first:
        path = tmp_path / FOLDER / "0"
        size, node = path.stat().st_size, path.stat().st_ino
        first.say("stopped", "ü" * 2000)
        assert (path.stat().st_size, path.stat().st_ino) == (size, node)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("lanes", "hosts", "expected"),
    [(4, 2, [[0, 1], [2, 3]]), (4, 3, [[0, 1], [2, 3]]), (3, 2, [[0, 1], [2]]), (2, 5, [[0], [1]])],
)
def test_parts(lanes, hosts, expected):
    run = small_run()
    run = parts.divided(dataclasses.replace(run, lanes=run.lanes[:lanes]), hosts)
    found = [parts.part(run, k) for k in range(run.parts)]
    assert [[run.lanes.index(x) for x in own.lanes] for own in found] == expected
    assert [own.first for own in found] == [own[0] for own in expected]
    for lane in range(lanes):
        own, folder, index = parts.holding(run, Path("run"), lane)
        assert own.lanes[index] == run.lanes[lane] and own.first + index == lane
        assert folder.parent == Path("run/parts")
    assert Run.from_json(run.to_json()) == run


@pytest.mark.fast
def test_parts_see_the_files_of_their_lanes():
    run = small_run()
    lanes = (dataclasses.replace(run.lanes[0], masks="../other/final/lane-0.npz"), *run.lanes[1:])
    own = parts.part(parts.divided(dataclasses.replace(run, lanes=lanes), 2), 0)
    assert own.lanes[0].masks == "../../../other/final/lane-0.npz"


@pytest.mark.fast
def test_merged_tables_are_in_the_order_of_one_process(tmp_path):
    run = parts.divided(small_run(), 2)
    for number, text in enumerate(
        ("lane,step,q\n0,0,1\n1,0,2\n0,60,3\n1,60,4\n0,12", "lane,step,q\n2,0,5\n3,0,6\n")
    ):
        folder = parts.folder(tmp_path, number)
        folder.mkdir(parents=True)
        (folder / "metrics.csv").write_text(text)
    assert parts.merge(run, tmp_path) is None  # not finished
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = [tuple(row.values()) for row in csv.DictReader(file)]
    assert rows == [
        *[("0", "0", "1"), ("1", "0", "2"), ("2", "0", "5"), ("3", "0", "6")],
        *[("0", "60", "3"), ("1", "60", "4")],
    ]


FLAGS = (
    *("--env=InvertedPendulum-v5", "--method=rlx2", "--seeds=4", "--steps=240", "--warmup=40"),
    *("--hidden=16,16", "--batch_size=16", "--oldest_k=32", "--mask_interval=10", "--t0=100"),
    *("--buffer_interval=20", "--b_min=60", "--b_max=150", "--d0=0.0001", "--execution=masked"),
    *("--eval_interval=60", "--metrics_interval=60", "--checkpoint_interval=40", "--episodes=2"),
)


def start(*arguments: str, devices: int = 2) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "from rlx2_jax.cli.main import script; exit(script())", *arguments],
        env=environment(devices),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    out, err = process.communicate(timeout=900)
    assert process.returncode == code, (process.returncode, out[-2000:], err[-3000:])
    return out + err


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("localhost", 0))
        return server.getsockname()[1]


def start_two(command: str, *flags: str) -> list[subprocess.Popen[str]]:
    """Two processes with two devices each."""
    common = (f"--coordinator=localhost:{free_port()}", "--num_processes=2", "--host_timeout=20")
    return [start(command, *flags, *common, f"--process_id={i}") for i in range(2)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The run of one process on one device: the same lanes and blocks, in sequence."""
    directory = tmp_path_factory.mktemp("alone") / "run"
    flags = (f"--logdir={directory}", "--chunk=2", "--shards=2", "--devices=1")
    finish(start("train", *FLAGS, *flags, devices=1))
    return directory


def assert_same_run(found: Path, expected: Path) -> None:
    """Every number of logs, weights and scores; chunks are logged one after the other."""
    for name, text in logs(expected).items():
        head, *rows = text.splitlines()
        key = [head.split(",").index(x) for x in ("step", "lane")]
        rows.sort(key=lambda row: [int(row.split(",")[i]) for i in key])
        assert (found / name).read_text().splitlines() == [head, *rows]
    for folder in ("initial", "final"):
        for number in range(4):
            name = f"{folder}/lane-{number}.npz"
            assert files.file_digest(found / name) == files.file_digest(expected / name)
    ours, theirs = (files.read_json(x / "summary.json") for x in (found, expected))
    for row in (*ours["lanes"], *theirs["lanes"]):
        del row["steps_per_second"]
    assert ours["lanes"] == theirs["lanes"]
    assert (found / "curves.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_two_processes_give_the_results_of_one(alone, tmp_path):
    directory = tmp_path / "run"
    first, second = start_two("train", *FLAGS, f"--logdir={directory}")
    assert "process 1 of 2" in finish(second)
    assert "final score" in finish(first)
    assert_same_run(directory, alone)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_process_stops_the_other_and_one_continues(lost, alone, tmp_path):
    directory = tmp_path / "run"
    started = start_two("train", *FLAGS, f"--logdir={directory}")
    states = [parts.folder(directory, k) / "checkpoints" / "states" for k in (0, 1)]
    # At an intermediate checkpoint: with several, the newest is not the run's last.
    wait_for(lambda: all(x.is_dir() and any(x.glob("*")) for x in states), 600)
    started[lost].kill()
    started[lost].communicate()
    kept = {path: path.read_text() for path in directory.glob("parts/*/evaluations.csv")}
    said = finish(started[1 - lost], 4)
    assert f"process {lost} of 2 was lost" in said and f"rlx2 resume {directory}" in said
    assert not (directory / "summary.json").exists()
    finish(start("resume", str(directory), devices=1))
    assert_same_run(directory, alone)
    for path, text in kept.items():  # no written row has changed
        assert path.read_text().startswith(text[: text.rfind("\n") + 1])


@pytest.mark.slow
def test_a_run_of_one_process_cannot_be_resumed_by_two(alone):
    first, second = start_two("resume", str(alone))
    assert "started in one process" in finish(first, 2)
    assert "started in one process" in finish(second, 2)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("place", "message"),
    [
        ((None, 2, None), "--coordinator, --num_processes and --process_id must be given together"),
        (("node0", 2, 0), "--coordinator=node0: use host:port"),
        (("node0:http", 2, 0), "--coordinator=node0:http: use host:port"),
        ((":1234", 2, 0), "--coordinator=:1234: use host:port"),
        (("node0:123456", 2, 0), "--coordinator=node0:123456: use host:port"),
        (("node0:1234", 2, 2), "--process_id=2: use 0 to 1 with --num_processes=2"),
    ],
)
def test_mistakes_are_reported_before_anything_starts(place, message):
    with pytest.raises(ValueError, match=message):
        hosts.meet("run", *place)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("own", "message"),
    [
        (("--num_processes=2",), "must be given together"),
        (("--coordinator=node0", "--num_processes=2", "--process_id=0"), "use host:port"),
    ],
)
def test_a_dry_run_reports_them_too(own, message):
    said = finish(start("train", *FLAGS, "--dry_run", *own), 2)
    assert message in said and "Traceback" not in said


@pytest.mark.fast
@pytest.mark.parametrize("index", [0, 1])
def test_processes_that_never_appear(index):
    """JAX aborts the process that waits for them."""
    address = f"localhost:{free_port()}"
    with pytest.raises(ValueError, match=r"did not find each other at \S+ \(DEADLINE_EXCEEDED: "):
        hosts.meet("run", address, 2, index, seconds=2)


@pytest.mark.fast
def test_nothing_to_detect(monkeypatch):
    for name in ("SLURM_JOB_ID", "OMPI_MCA_orte_hnp_uri", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=r"--distributed: .* Give --coordinator=host:port"):
        hosts.meet("run")


def test_threads_are_not_left_behind(tmp_path):
    before = threading.active_count()
    with Watch(tmp_path, TWO[0], 0.5):
        assert threading.active_count() == before + 1
    wait_for(lambda: threading.active_count() == before)


@pytest.mark.fast
def test_one_process_has_nothing_to_watch(tmp_path):
    with Watch(tmp_path, Hosts(), 0.1) as watch:
        watch.wait(lambda states: all(x == DONE for x in states))
    assert watch() is None and not list(tmp_path.iterdir())
    assert distributed._check(watch, None) is None
