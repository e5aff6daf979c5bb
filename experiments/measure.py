"""How benchmarks measure: subjects in turns, a peer in a process of its own, the machine."""

import json
import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags

FLAGS = flags.FLAGS
PEER = Path(__file__).parent / "peers" / "sbx_peer.py"


def interleaved(subjects: dict[str, Callable[[], float]]) -> dict[str, float]:
    """The median of each subject, taken in turns so that all meet the same machine."""
    found: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(FLAGS.repeats):
        for name, measure in subjects.items():
            found[name].append(measure())
    return {name: float(np.median(values)) for name, values in found.items()}


class Peer:
    """SBX in a process of its own, measured whenever asked."""

    def __init__(self, mode: str, algo: str, **options: Any):
        args = [f"--{name}={value}" for name, value in options.items()]
        self._name = f"{mode}_per_second"
        self._process = subprocess.Popen(
            [FLAGS.sbx, str(PEER), mode, f"--algo={algo}", *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer("ready")

    def __call__(self) -> float:
        """Updates or steps per second."""
        assert self._process.stdin
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return json.loads(self._answer("{"))[self._name]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answer(self, begin: str) -> str:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith(begin):
                return line
        raise RuntimeError(f"{FLAGS.sbx} {PEER.name} ended: does it have SBX?")


class Peers:
    """Closes the processes of the peers that were added, whatever happens."""

    def __init__(self):
        self._all: list[Peer] = []

    def add(self, peer: Peer) -> Peer:
        self._all.append(peer)
        return peer

    def __enter__(self) -> "Peers":
        return self

    def __exit__(self, *error: object) -> None:
        for peer in self._all:
            peer.close()


def machine() -> dict[str, Any]:
    """What it was measured on."""
    return {
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "machine": platform.machine(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
    }
