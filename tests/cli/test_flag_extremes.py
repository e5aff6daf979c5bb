"""Extreme flags: no traceback, an answer within seconds, and what a dry run accepts starts."""

import collections
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults import extremes
from paths import ROOT

from rlx2_jax.cli import main

LIMIT = 5.0  # processor seconds, without importing the package
PATIENCE = 90.0  # wall-clock seconds, on a busy machine


@pytest.fixture
def dry_run(capsys, monkeypatch, tmp_path):
    """`dry_run(args)` gives the outcome (`accepted`, `flag`, `setting`) and its message."""
    monkeypatch.chdir(tmp_path)

    def run(args: list[str]) -> tuple[str, str]:
        begun, worked = time.perf_counter(), time.process_time()
        code = main.run("train", [*args, "--dry_run"])
        assert time.process_time() - worked < LIMIT
        assert time.perf_counter() - begun < PATIENCE
        out, err = capsys.readouterr()
        if code == 0:
            assert "lanes in" in out
            return "accepted", out
        assert code == 2 and err.startswith("error: ") and err.count("\n") == 1, (code, err)
        return "flag" if "--help lists the flags" in err else "setting", err

    return run


def check(dry_run, commands) -> dict[str, list[list[str]]]:
    """Dry-runs all of them; returns command lines by outcome."""
    found, slowest, wrong = collections.defaultdict(list), (0.0, []), []
    for args in commands:
        begun = time.process_time()
        try:
            outcome, message = dry_run(args)
        except Exception as error:
            wrong.append((args, repr(error)))
            continue
        slowest = max(slowest, (time.process_time() - begun, args))
        found[outcome].append(args)
        if outcome != "accepted" and not _helps(args, message):
            wrong.append((args, message))
    counts = {k: len(v) for k, v in found.items()}
    print(f"{counts}; slowest {slowest[0]:.2f} s: {slowest[1]}")
    assert not wrong, "\n".join(map(str, wrong))
    return found


def _helps(args: list[str], message: str) -> bool:
    """Whether a message names a given flag, or a quantity that depends on several."""
    names = [arg.split("=")[0].removeprefix("--") for arg in args]
    return any(x in message for x in [*names, "capacity", "lanes"]) and not any(
        x in message for x in ("Traceback", "these settings fail")
    )


@pytest.mark.fast
def test_some_extremes(dry_run):
    every = list(extremes.singles())
    some = random.Random(1).sample(every, 60) + list(extremes.combinations(80, seed=1))
    found = check(dry_run, some)
    assert min(len(found[k]) for k in ("accepted", "flag", "setting")) >= 5


@pytest.mark.slow
def test_every_extreme_by_itself(dry_run):
    found = check(dry_run, extremes.singles())
    assert sum(map(len, found.values())) > 2500 and len(found["accepted"]) > 200


@pytest.mark.slow
def test_combinations_of_extremes(dry_run):
    found = check(dry_run, extremes.combinations(600, seed=2))
    assert sum(map(len, found.values())) == 600 and len(found["accepted"]) > 60


@pytest.mark.slow
def test_some_extremes_as_commands():
    """The whole command, including flag parsing and exit code, on an ASCII-only terminal."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for args in (["--helpshort"], *extremes.combinations(20, seed=3)):
        begun, worked = time.monotonic(), _work_of_children()
        command = [sys.executable, "-m", "rlx2_jax", "train", *args, "--dry_run"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
        assert "Traceback" not in done.stderr, (args, done.stderr)
        assert done.returncode in (0, 1, 2), (args, done.stderr)
        assert _work_of_children() - worked < LIMIT + 10, args  # and the import
        assert time.monotonic() - begun < PATIENCE, args


def _work_of_children() -> float:
    """Processor seconds of finished child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.fast
def test_edges_are_accepted(dry_run):
    found = check(dry_run, [extremes.small(edge.split()) for edge in extremes.EDGES])
    assert set(found) == {"accepted"}


@pytest.mark.slow
@pytest.mark.parametrize("edge", extremes.EDGES)
def test_edges_start(tmp_path, edge):
    _assert_starts(extremes.small(edge.split()), tmp_path / "edge")


@pytest.mark.slow
def test_what_a_dry_run_accepts_also_starts(dry_run, tmp_path):
    accepted = check(dry_run, extremes.combinations(600, seed=2))["accepted"]
    for i, args in enumerate(random.Random(0).sample(accepted, 10)):
        _assert_starts(args, tmp_path / str(i))


def _assert_starts(args: list[str], directory: Path) -> None:
    code, errors = start(args, directory)
    assert "Traceback" not in errors, (args, errors)
    assert code in (0, 128 + signal.SIGTERM), (args, code, errors)


def start(args: list[str], directory: Path, patience: float = 120.0) -> tuple[int, str]:
    """Starts a run and sends SIGTERM after some updates; returns exit code and stderr."""
    args = [x for x in args if not x.startswith("--logdir")]
    directory.mkdir(parents=True)
    command = [sys.executable, "-m", "experiments.train", f"--logdir={directory / 'run'}", *args]
    log = directory / "stderr"
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file, cwd=ROOT)
        deadline = time.monotonic() + patience
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
            metrics = directory / "run" / "metrics.csv"
            if metrics.exists() and len(metrics.read_text().splitlines()) > 1:
                break
        if process.poll() is None:
            process.terminate()
        code = process.wait(timeout=300)
    return code, log.read_text(errors="replace")
