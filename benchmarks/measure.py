"""Measurement helpers: alternating subjects, peers in subprocesses, machine information."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags

FLAGS = flags.FLAGS
PEER = Path(__file__).parent / "peers" / "sbx_peer.py"


@dataclass(frozen=True)
class Turns:
    """Measurements of each subject by turn. Subjects of one turn ran right after each other."""

    values: dict[str, list[float]]

    def medians(self) -> dict[str, float]:
        return {name: float(np.median(values)) for name, values in self.values.items()}

    def ratio(self, over: str, under: str) -> float:
        """The median of the ratios within turns, in which a slowdown shared by a turn cancels."""
        return float(np.median(np.divide(self.values[over], self.values[under])))


def interleaved(subjects: dict[str, Callable[[], float]]) -> Turns:
    """Measures all subjects in turns and logs each to stderr."""
    turns = Turns({name: [] for name in subjects})
    for i in range(FLAGS.repeats):
        for name, measure in subjects.items():
            turns.values[name].append(measure())
            shown = f"turn {i + 1}/{FLAGS.repeats}  {name}: {turns.values[name][-1]:,.1f}"
            print(shown, file=sys.stderr, flush=True)
    return turns


def over_sbx(results: Turns, algo: str) -> dict[str, float]:
    """Every subject as a multiple of SBX, if SBX was measured."""
    sbx = f"sbx_{algo}"
    ours = [name for name in results.values if name != sbx and sbx in results.values]
    return {f"{name}_over_sbx": results.ratio(name, sbx) for name in ours}


class Peer:
    """SBX in a subprocess, which makes one measurement per request."""

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
        raise RuntimeError(f"{FLAGS.sbx} {PEER.name} exited: is SBX installed there?")


class Peers:
    """Closes the added peers on exit, also after an error."""

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
    """The processor, software versions and load of this machine."""
    return {
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "processor": processor(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
    }


def processor() -> str:
    """The processor's name, if the system reports one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(x.split(":")[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
