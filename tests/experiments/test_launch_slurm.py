"""A sweep on a local SLURM cluster: jobs are requeued, killed and preempted."""

import csv
import os
import signal
import subprocess
import sys
import time

import pytest
import slurm_cluster

from rlx2_jax import files
from rlx2_jax.reporting import status

pytestmark = pytest.mark.slow
PREFIX = "toy/inverted-pendulum-"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    pytest.importorskip("submitit")
    if reason := slurm_cluster.impossible():
        pytest.skip(f"no SLURM here: {reason}")
    with slurm_cluster.running(tmp_path_factory.mktemp("slurm") / "cluster") as found:
        found.environment.setdefault("JAX_COMPILATION_CACHE_DIR", str(found.directory / "cache"))
        yield found


def sweep(cluster, logdir, *flags, launcher="slurm"):
    """Runs `experiments.sweep`; returns its exit code and output."""
    command = [sys.executable, "-m", "experiments.sweep", "--suite=toy", "--seeds=1"]
    command += [f"--logdir={logdir}", f"--launcher={launcher}", *flags]
    done = subprocess.run(
        command, env=cluster.environment, capture_output=True, text=True, timeout=1800
    )
    return done.returncode, done.stderr


def states(logdir):
    return {unit.name.removeprefix(PREFIX): unit for unit in status.find(logdir)}


def wait_for(what, condition, patience=900.0):
    end = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} does not happen"
        time.sleep(0.3)
    return found


def checkpoints(directory):
    found = (directory / "checkpoints" / "states").glob("[0-9]*")
    return [int(path.name) for path in found if path.name.isdecimal()]


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def output(logdir):
    return "".join(p.read_text() for p in sorted((logdir / "slurm").glob("*_log.*")))


def test_a_sweep_finishes_and_is_not_run_again(cluster, tmp_path):
    flags = ("--slurm_wait", "--slurm_time=60", "--slurm_option=chdir=" + os.getcwd())
    code, said = sweep(cluster, tmp_path / "sweep", *flags)
    assert code == 0, said + output(tmp_path / "sweep")
    assert "submitted 5 units in 4 tasks" in said
    assert {unit.state for unit in states(tmp_path / "sweep").values()} == {"finished"}
    written = {p: p.stat().st_mtime_ns for p in (tmp_path / "sweep").rglob("summary.json")}
    assert len(written) == 5
    code, said = sweep(cluster, tmp_path / "sweep", *flags)
    assert code == 0 and said.count("finished before") == 5 and "submitted" not in said
    assert written == {p: p.stat().st_mtime_ns for p in written}


def begin(cluster, logdir, unit, *flags):
    """Submits one long unit; returns its directory once it has checkpoints."""
    only = (f"--units=inverted-pendulum-{unit}", "--fraction=0.0003", "--evaluations=30")
    code, said = sweep(cluster, logdir, *only, "--slurm_time=60", *flags)
    assert code == 0 and "submitted 1 units" in said, said
    directory = logdir / "toy" / f"inverted-pendulum-{unit}"
    wait_for("a checkpoint", lambda: len(checkpoints(directory)) >= 2)
    return directory


@pytest.fixture(scope="module")
def whole(cluster, tmp_path_factory):
    """The long unit undisturbed, in a sweep of this process."""
    logdir = tmp_path_factory.mktemp("whole")
    only = ("--units=inverted-pendulum-rlx2", "--fraction=0.0003", "--evaluations=30")
    code, said = sweep(cluster, logdir, *only, launcher="local")
    assert code == 0, said
    return logdir / "toy" / "inverted-pendulum-rlx2"


def preempt(cluster, directory):
    """A job of another partition preempts the running one."""
    path = cluster.directory / "urgent.sh"
    path.write_text("#!/bin/sh\nsleep 5\n")
    cluster.run("sbatch", "--partition=high", "--exclusive", "--output=/dev/null", str(path))


def fail_node(cluster, directory):
    """The node goes down and comes back once its processes are gone, as after a reboot: SLURM does
    not start a job on a node that still runs it."""
    update = ("scontrol", "update", f"NodeName={cluster.node}")
    cluster.run(*update, "State=DOWN", "Reason=test")
    wait_for("the end of its processes", lambda: not cluster.steps())
    cluster.run(*update, "State=RESUME")


def warn(cluster, directory):
    """SLURM's signal before a job's time limit."""
    (job,) = {line.split()[0] for line in cluster.run("squeue", "-h", "-o", "%i").splitlines()}
    cluster.run("scancel", "--signal=USR2", job)


def kill(cluster, directory):
    """The process dies, as out of memory; the sweep is submitted again."""
    os.kill(json_of(directory)["pid"], signal.SIGKILL)
    wait_for("the end of the job", lambda: not cluster.run("squeue", "-h").strip())
    assert states(directory.parents[1])["rlx2"].state == "interrupted"
    begin(cluster, directory.parents[1], "rlx2")


def json_of(directory):
    return files.parse_json(directory / "status.json")


@pytest.mark.parametrize("trouble", [warn, fail_node, preempt, kill])
def test_a_job_that_is_interrupted_continues(cluster, whole, tmp_path, trouble):
    logdir = tmp_path / "sweep"
    directory = begin(cluster, logdir, "rlx2")
    assert states(logdir)["rlx2"].state == "running"
    before = json_of(directory)["pid"]
    trouble(cluster, directory)
    wait_for("another process", lambda: json_of(directory)["pid"] != before)
    wait_for("the end", lambda: states(logdir)["rlx2"].state == "finished")
    wait_for("an empty queue", lambda: not cluster.run("squeue", "-h").strip())
    said = output(logdir)
    assert "resumed at step" in said, said
    if trouble is warn:
        assert "stopped by SIGUSR2" not in said  # not an error: the job was requeued
        assert "Requeued job" in said
    for name in ("evaluations.csv", "metrics.csv"):
        assert rows(directory / name) == rows(whole / name)
    code, again = sweep(
        cluster, logdir, "--units=inverted-pendulum-rlx2", "--fraction=0.0003", "--evaluations=30"
    )
    assert code == 0 and "finished before" in again


def test_a_queued_unit_is_not_submitted_twice(cluster, tmp_path):
    directory = begin(cluster, tmp_path / "sweep", "ss")
    only = ("--units=inverted-pendulum-ss", "--fraction=0.0003", "--evaluations=30")
    code, said = sweep(cluster, tmp_path / "sweep", *only)
    assert code == 0 and "queued before as job" in said and "submitted" not in said
    cluster.run("scancel", "--user=root")
    wait_for("an empty queue", lambda: not cluster.run("squeue", "-h").strip())
    assert states(tmp_path / "sweep")["ss"].state == "interrupted"
    assert "resumed" not in output(directory.parents[1])
