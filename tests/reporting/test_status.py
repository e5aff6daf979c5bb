"""The status of runs and sweeps: every state, from files."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from rlx2_jax import files
from rlx2_jax.cli import main
from rlx2_jax.reporting import status, tables
from rlx2_jax.training import heartbeat

pytestmark = pytest.mark.fast


def beat(directory, state="running", **fields):
    directory.mkdir(parents=True, exist_ok=True)
    about = {"state": state, "time": time.time(), "host": socket.gethostname(), "pid": os.getpid()}
    more = {"step": 600, "total": 1000, "steps_per_second": 20.0, "error": None}
    (directory / "status.json").write_text(json.dumps({**about, **more, **fields}))


def evaluations(directory, rows=((0, 0, 1.0), (1, 0, 2.0), (0, 500, 30.0), (1, 500, 50.0))):
    directory.mkdir(parents=True, exist_ok=True)
    lines = [f"{lane},rlx2,0,{step},{value}\n" for lane, step, value in rows]
    text = "lane,method,seed,step,mean_return\n" + "".join(lines)
    (directory / "evaluations.csv").write_text(text)


@pytest.fixture
def sweep(tmp_path):
    """One unit in every state, and one that another suite has."""
    units = ("done", "alive", "elsewhere", "killed", "stopped", "broken", "next")
    for name, own in (("a", units), ("b", ("done", "own"))):
        plan = [
            {"name": u, "directory": "../a/done" if (name, u) == ("b", "done") else u, "steps": 900}
            for u in own
        ]
        (tmp_path / name).mkdir()
        files.write_json(tmp_path / name / "suite.json", {"units": plan})
    folder = tmp_path / "a"
    beat(folder / "done", "finished", step=1000)
    files.write_json(folder / "done" / "summary.json", {"lanes": []})
    evaluations(folder / "done")
    beat(folder / "alive")
    evaluations(folder / "alive")
    beat(folder / "elsewhere", host="another", pid=1, steps_per_second=None)
    beat(folder / "killed", pid=_dead())
    beat(folder / "stopped", "interrupted")
    beat(folder / "broken", "failed", error="no space\nleft <on> device\x1b[2J")
    return tmp_path


def _dead() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_every_state(sweep):
    found = {unit.name: unit for unit in status.find(sweep)}
    assert {name: unit.state for name, unit in found.items()} == {
        "a/done": "finished",
        "a/alive": "running",
        "a/elsewhere": "running",
        "a/killed": "interrupted",
        "a/stopped": "interrupted",
        "a/broken": "failed",
        "a/next": "waiting",
        "b/own": "waiting",
    }
    alive = found["a/alive"]
    assert (alive.step, alive.total, alive.rate, alive.score) == (600, 1000, 20.0, 40.0)
    assert alive.eta == 20.0 and alive.host == socket.gethostname()
    assert found["a/done"].step == found["a/done"].total == 1000 and found["a/done"].score == 40.0
    assert found["a/killed"].eta is None and found["a/killed"].rate is None
    assert (found["a/next"].step, found["a/next"].total) == (0, 900)
    assert found["a/elsewhere"].eta is None  # its speed is not known yet
    text = "8 units: 2 waiting, 2 running, 1 finished, 1 failed, 2 interrupted."
    assert status.summary([*found.values()]) == text


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({}, {"host": "b", "step": 500, "steps_per_second": 10.0}, ("running", 500, 10.0)),
        ({}, {"state": "finished", "step": 1000}, ("running", 600, 20.0)),
        ({"state": "interrupted"}, {"pid": None}, ("running", 600, 20.0)),
        ({"state": "interrupted"}, {"state": "failed", "error": "oh"}, ("failed", 600, None)),
        ({"state": "finished"}, None, ("interrupted", 0, None)),
    ],
)
def test_a_run_on_several_hosts_is_one_unit(tmp_path, first, second, expected):
    """Each process has a status of its own, and the run directory has none."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"parts": 2, "config": {"steps": 1000}}))
    evaluations(run)
    for number, fields in enumerate((first, second)):
        if fields is not None:
            beat(run / "parts" / str(number), **fields)
    (found,) = status.find(run)
    assert (found.name, found.total, found.score) == ("run", 1000, 40.0)
    assert (found.state, found.step, found.rate) == expected
    if second and second.get("host"):
        assert found.host == ", ".join(sorted(["b", socket.gethostname()]))
    assert ("oh" in found.error) == (found.state == "failed")


def test_a_process_that_is_silent_is_not_running(tmp_path):
    for host in (socket.gethostname(), "another"):
        beat(tmp_path / "run", host=host, time=time.time() - status.SILENCE - 1)
        assert status.read(tmp_path / "run", "run").state == "interrupted"
        beat(tmp_path / "run", host=host, time=time.time() - status.SILENCE / 2)
        assert status.read(tmp_path / "run", "run").state == "running"


def test_the_command(sweep, capsys):
    assert main.main(["status", str(sweep)]) == 0
    head, rule, *lines, total = capsys.readouterr().out.splitlines()
    assert " ".join(head.split()) == "unit state step of steps/s time left last score host error"
    assert set(rule) == {"-", " "} and total.startswith("8 units: ")
    assert lines[1].split()[:9] == [
        "a/alive",
        "running",
        "600",
        "1,000",
        "20",
        "0m20s",
        "40.0",
        socket.gethostname(),
    ]
    assert lines[5].split()[:4] == ["a/broken", "failed", "600", "1,000"]
    assert lines[5].endswith("no space left <on> device\\u001b[2J") and "\x1b" not in lines[5]
    assert main.main(["status", str(sweep / "a"), "--state=failed"]) == 0
    assert capsys.readouterr().out.count("\n") == 4
    assert main.main(["status", str(sweep / "a" / "alive")]) == 0
    assert capsys.readouterr().out.splitlines()[2].split()[:2] == ["alive", "running"]
    assert main.main(["status", str(sweep / "b"), "--state=failed"]) == 0
    assert capsys.readouterr().out.startswith("2 units: ")
    assert main.main(["status", str(sweep / "a" / "next")]) == 2
    assert "there is no run or sweep in" in capsys.readouterr().err


def test_it_starts_without_jax():
    code = (
        "import sys; from rlx2_jax.cli.main import main\n"
        "assert main(['status', 'nowhere']) == 2 and 'jax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", ["", "[]", '{"state": 3}', '{"state": "running", "time": "x"}'])
def test_damaged_files_are_no_error(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    (tmp_path / "status.json").write_text(text)
    (tmp_path / "evaluations.csv").write_text("lane,step\n1,")
    assert [unit.state for unit in status.find(tmp_path)] == ["interrupted"]
    (tmp_path / "suite.json").write_text(text)
    assert [unit.state for unit in status.find(tmp_path)] == ["failed"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e308, 10**400, 2**70, "x", True])
@pytest.mark.parametrize("field", ["step", "total", "steps_per_second", "pid", "time"])
def test_numbers_that_no_run_writes_are_ignored(tmp_path, capsys, field, value):
    beat(tmp_path, **{field: value})
    assert main.main(["status", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[2].split()[1] in ("running", "interrupted")


@pytest.mark.parametrize("step", ["", "nan", "inf", "1e400", "-1", "0.5"])
def test_rows_without_a_step_do_not_count(tmp_path, step):
    beat(tmp_path, step=None)
    evaluations(tmp_path, rows=((0, 500, 30.0), (0, step, 99.0)))
    (unit,) = status.find(tmp_path)
    assert (unit.step, unit.score) == (500, 30.0)


def test_a_pipe_is_not_waited_for(tmp_path):
    beat(tmp_path)
    os.mkfifo(tmp_path / "evaluations.csv")
    assert [unit.score for unit in status.find(tmp_path)] == [None]


def test_a_plan_names_no_outside_directories(tmp_path):
    (tmp_path / "suites" / "a").mkdir(parents=True)
    beat(tmp_path / "secret")
    plan = [{"name": "x", "directory": "../../secret"}, {"name": "y", "directory": str(tmp_path)}]
    files.write_json(tmp_path / "suites" / "a" / "suite.json", {"units": plan})
    with pytest.raises(status.NoRuns):
        status.find(tmp_path / "suites")


def test_markup_of_names_and_errors(sweep):
    page = tables.html(status.table(status.find(sweep)))
    assert "no space left &lt;on&gt; device" in page and "<on>" not in page


# --- the heartbeat ---


def state(directory):
    return json.loads((directory / "status.json").read_text())


class Stop(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "expected", "text"),
    [
        (None, "finished", None),
        (Stop("bye"), "interrupted", None),
        (KeyboardInterrupt(), "interrupted", None),
        (ValueError("wrong"), "failed", "wrong"),
        (AssertionError(), "failed", "AssertionError"),
    ],
)
def test_how_a_run_ends(tmp_path, error, expected, text):
    try:
        with heartbeat.Heartbeat(tmp_path, 100, pytest.fail, stops=(Stop,)) as pulse:
            pulse.at(20)
            pulse.at(50)
            if error:
                raise error
    except BaseException as raised:
        assert raised is error
    found = state(tmp_path)
    assert (found["state"], found["error"], found["step"], found["total"]) == (
        expected,
        text,
        50,
        100,
    )
    assert found["steps_per_second"] > 0 and found["pid"] == os.getpid()


def test_it_beats_while_the_run_is_busy(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "_INTERVAL", 0.01)
    with heartbeat.Heartbeat(tmp_path, 100, pytest.fail) as pulse:
        pulse.at(0)
        first = _later(tmp_path, 0)
        assert first["state"] == "running" and first["steps_per_second"] is None
        pulse.at(30)
        assert _later(tmp_path, first["time"])["time"] > first["time"]


def _later(directory, than):
    for _ in range(500):
        if (directory / "status.json").exists() and state(directory)["time"] > than:
            return state(directory)
        time.sleep(0.01)
    raise AssertionError("no heartbeat")


def test_a_full_disk_is_reported_once(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "_PAUSE", 0.0)
    said = []

    def check():
        raise OSError(28, "No space left on device")

    with heartbeat.Heartbeat(tmp_path, 100, said.append, check):
        pass
    assert said == ["warning: status.json not written (No space left on device)"]
    assert not list(tmp_path.iterdir())
