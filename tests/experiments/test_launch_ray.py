"""A sweep on a local two-node Ray cluster; one node leaves, another joins."""

import csv
import os
import signal
import subprocess
import sys
import time

import pytest

from rlx2_jax import files
from rlx2_jax.reporting import status

pytestmark = pytest.mark.slow
LONG = ("--units=inverted-pendulum-rlx2", "--fraction=0.0003", "--evaluations=30")


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    memory = {"object_store_memory": 100_000_000, "include_dashboard": False}
    # The head runs no units, so that any node that does may be killed.
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **memory})
    for _ in range(2):
        found.add_node(num_cpus=1, object_store_memory=100_000_000)
    yield found
    found.shutdown()


def begin(cluster, logdir, *flags, launcher="ray"):
    command = [sys.executable, "-m", "experiments.sweep", "--suite=toy", "--seeds=1"]
    command += [f"--logdir={logdir}", f"--launcher={launcher}", *flags]
    if launcher == "ray":
        command += [f"--ray_address={cluster.address}"]
    with (logdir.parent / f"{logdir.name}.said").open("w") as said:
        return subprocess.Popen(command, stdout=said, stderr=said)


def finish(process, logdir):
    """Waits for the end; returns the output."""
    code = process.wait(1500)
    said = (logdir.parent / f"{logdir.name}.said").read_text()
    assert code == 0, said
    return said


def wait_for(what, condition, patience=600.0):
    end = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} does not happen"
        time.sleep(0.2)
    return found


def pid(directory):
    path = directory / "status.json"
    return files.parse_json(path)["pid"] if path.exists() else None


def checkpoints(directory):
    found = (directory / "checkpoints" / "states").glob("[0-9]*")
    return [int(path.name) for path in found if path.name.isdecimal()]


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def node_of(cluster, worker):
    """The node whose raylet is the parent of a worker."""
    line = subprocess.run(["ps", "-o", "ppid=", "-p", str(worker)], capture_output=True, text=True)
    parent = int(line.stdout)
    for node in cluster.worker_nodes:
        if any(info.process.pid == parent for own in node.all_processes.values() for info in own):
            return node
    raise AssertionError(f"{worker} is no worker of the cluster")


def test_a_sweep_finishes_and_is_not_run_again(cluster, tmp_path):
    logdir = tmp_path / "sweep"
    said = finish(begin(cluster, logdir), logdir)
    assert said.count(": finished") == 5
    assert [unit.state for unit in status.find(logdir)] == ["finished"] * 5
    written = {p: p.stat().st_mtime_ns for p in logdir.rglob("summary.json")}
    finish(begin(cluster, logdir), logdir)
    assert len(written) == 5 and written == {p: p.stat().st_mtime_ns for p in written}


@pytest.mark.parametrize("how", ["worker", "node", "stop"])
def test_a_unit_that_loses_its_place_continues_in_another(cluster, tmp_path, how):
    """The worker is killed; its whole node leaves, and a new one joins; the sweep is stopped."""
    whole, logdir = tmp_path / "whole", tmp_path / "sweep"
    finish(begin(cluster, whole, *LONG, launcher="local"), whole)
    process = begin(cluster, logdir, *LONG)
    directory = logdir / "toy" / "inverted-pendulum-rlx2"
    wait_for("a checkpoint", lambda: len(checkpoints(directory)) >= 2)
    first = pid(directory)
    assert first is not None
    if how == "worker":
        os.kill(first, signal.SIGKILL)
    elif how == "node":
        cluster.remove_node(node_of(cluster, first), allow_graceful=False)
        cluster.add_node(num_cpus=1, object_store_memory=100_000_000)
    else:
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 128 + signal.SIGINT
        assert status.read(directory, "").state == "interrupted"
        process = begin(cluster, logdir, *LONG)
    wait_for("another worker", lambda: pid(directory) != first)
    finish(process, logdir)
    for name in ("evaluations.csv", "metrics.csv"):
        assert rows(directory / name) == rows(whole / "toy" / directory.name / name)
    assert status.read(directory, "").state == "finished"
