"""SIGKILL at random moments: the resumed run equals the uninterrupted one, bit for bit."""

import csv
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from saved_runs import snapshots

pytestmark = pytest.mark.slow

# Evolutions, trims and the n-step switch happen before and after every checkpoint.
SCHEDULE = [
    "--method=rlx2",
    "--seeds=2",
    "--hidden=32,32",
    "--batch_size=32",
    "--steps=1200",
    "--warmup=200",
    "--mask_interval=20",
    "--t0=400",
    "--buffer_interval=50",
    "--b_min=150",
    "--b_max=900",
    "--d0=0.0001",
    "--eval_interval=300",
    "--metrics_interval=300",
    "--checkpoint_interval=150",
    "--episodes=2",
]


def launch(directory: Path, *flags: str) -> subprocess.Popen:
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(directory.parent / "cache")}
    return subprocess.Popen(
        [sys.executable, "-m", "experiments.train", f"--logdir={directory}", *flags],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen) -> str:
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors
    return errors


def checkpoints(directory: Path) -> list[Path]:
    return list((directory / "checkpoints" / "chunk-0" / "states").glob("[0-9]*"))


def final(directory: Path):
    return [(s.state._replace(replay=None), s.env) for s in snapshots(directory)]


@pytest.mark.parametrize(
    ("env", "algo", "backend"),
    [
        ("Hopper-v5", "td3", "gymnasium"),
        ("Ant-v5", "sac", "gymnasium"),
        ("Humanoid-v5", "td3", "gymnasium"),
        ("Hopper-v5", "sac", "gymnasium"),
        ("inverted_pendulum", "td3", "brax"),
        ("inverted_pendulum", "sac", "brax"),
    ],
)
def test_kill_and_resume(tmp_path, env, algo, backend):
    flags = [f"--env={env}", f"--algo={algo}", f"--env_backend={backend}", *SCHEDULE]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(launch(whole, *flags))
    chance = random.Random(f"{env}{algo}")
    process = launch(killed, *flags)
    kills = 0
    while process.poll() is None and kills < 3:
        seen = len(checkpoints(killed))
        while process.poll() is None and len(checkpoints(killed)) <= min(seen, 1):
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, 0.6))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            kills += 1
            process = launch(killed, "--resume")
    finish(process)
    assert kills >= 1
    for name in ("evaluations.csv", "metrics.csv"):
        assert (killed / name).read_text() == (whole / name).read_text()
    with (whole / "metrics.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    assert int(last["critic_evolutions"]) > 20 and int(last["trims"]) > 5 and last["n"] != "1"
    jax.tree.map(np.testing.assert_array_equal, final(killed), final(whole))
