"""Peak memory of starting, saving and resuming a run, compared with the `--dry_run` estimate."""

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from .process import ROOT, environment

# Execution of the lanes, and the capacity of each buffer.
SIZES = (("masked", 2_000_000), ("masked", 8_000_000), ("compact", 2_000_000))
LANES = 4
TOLERANCE = 0.15
COMPILER = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")
SAVING = 4.0  # seconds for which saves are observed


class Peaks(NamedTuple):
    """Peak resident bytes in each phase."""

    form: str
    capacity: int
    estimate: float
    start: int  # until the first checkpoint begins
    save: int
    resume: int

    @property
    def good(self) -> bool:
        """Whether the estimate covers the peak, and exceeds it by no more than the tolerance."""
        peak = max(self.start, self.save, self.resume)
        return abs(self.estimate / peak - 1) <= TOLERANCE


def _flags(form: str, capacity: int, directory: Path) -> list[str]:
    hidden, batch = {"masked": ("32,32", 32), "compact": ("256,256", 256)}[form]
    return [
        f"--logdir={directory}", "--method=rlx2", f"--seeds={LANES}", f"--chunk={LANES}",
        f"--execution={form}", "--actor_sparsity=0.9", "--critic_sparsity=0.9",
        f"--capacity={capacity}", f"--hidden={hidden}", f"--batch_size={batch}", "--steps=6000",
        "--warmup=500", "--eval_interval=6000", "--metrics_interval=1000",
        "--checkpoint_interval=1500", "--episodes=1",
    ]  # fmt: skip


def _status(pid: int, key: str) -> int:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(x for x in lines if x.startswith(key)).split()[1]) * 1024
    return 0


def _reset_peak(pid: int) -> None:
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def _saves(directory: Path) -> int:
    """Number of checkpoint files: an increase means that one is being written."""
    checkpoints = directory / "checkpoints"
    return sum(p.is_file() for name in ("states", "data") for p in _walk(checkpoints / name))


def _walk(directory: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return list(directory.rglob("*"))
    return []


def estimate(arguments: list[str], variables: dict[str, str]) -> float:
    """The largest amount on the line `memory:` of the dry run, other than what is available."""
    command = [sys.executable, "-m", "experiments.train", *arguments, "--dry_run"]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    lines = [x for x in done.stdout.splitlines() if x.lstrip().startswith("memory:")]
    if not lines:
        raise RuntimeError(f"--dry_run has no line that begins with memory:\n{done.stdout}")
    amounts = re.findall(r"([\d.,]+) (GB|MB)(?! (?:available|free))", lines[0])
    return max(float(n.replace(",", "")) * {"GB": 1e9, "MB": 1e6}[unit] for n, unit in amounts)


def _watch(arguments: list[str], directory: Path, variables: dict[str, str]) -> tuple[int, int]:
    """Peaks before the first new file below the checkpoints, and after it until the second save
    has begun; the run is then asked to stop."""
    command = [sys.executable, "-m", "experiments.train", *arguments]
    process = subprocess.Popen(
        command, cwd=ROOT, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    before, began = _saves(directory), 0.0
    start, peak, stopped = 0, 0, False
    while process.poll() is None:
        seen = _status(process.pid, "VmHWM")
        if not start:
            peak = max(peak, seen)
            if _saves(directory) > before:
                start, peak = peak, 0
                _reset_peak(process.pid)
                began = time.monotonic()
        else:
            peak = max(peak, seen)
            if time.monotonic() - began > SAVING and not stopped:
                process.send_signal(signal.SIGTERM)
                stopped = True
        time.sleep(0.02)
    return start or peak, peak


def measure(form: str, capacity: int, scratch: Path, cache: Path) -> Peaks:
    """Starts, saves, stops and resumes a run with buffers of `capacity`."""
    directory = scratch / f"memory-{form}-{capacity}"
    shutil.rmtree(directory, ignore_errors=True)
    # With XLA's default flags and an empty cache, as for a user: compiling needs the most memory.
    variables = {k: v for k, v in environment(cache).items() if k not in COMPILER}
    arguments = _flags(form, capacity, directory)
    guess = estimate(arguments, variables)
    start, save = _watch(arguments, directory, variables)
    again = _watch(["--resume", f"--logdir={directory}"], directory, variables)
    shutil.rmtree(directory, ignore_errors=True)
    return Peaks(form, capacity, guess, start, save, max(again))


def table(found: list[Peaks]) -> str:
    """Peaks in GB and as a share of the estimate."""
    lines = [
        f"{'form':>8} {'capacity':>12} {'estimate':>10} {'start':>16} {'save':>16} {'resume':>16}"
    ]
    for x in found:
        peaks = [f"{p / 1e9:8.2f} ({p / x.estimate:4.2f}x)" for p in (x.start, x.save, x.resume)]
        lines.append(
            f"{x.form:>8} {LANES} x {x.capacity:>8,} {x.estimate / 1e9:>7.2f} GB " + " ".join(peaks)
            + ("" if x.good else f"  FAILURE: not within {TOLERANCE:.0%}")
        )  # fmt: skip
    return "\n".join(lines)
