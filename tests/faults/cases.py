"""The runs that faults are injected into: small, but using every mechanism."""

import dataclasses
import re
import shutil
import signal
from pathlib import Path

from .process import Ended, Server

# Evolutions, trims and the n-step switch happen before and after every checkpoint.
SCHEDULE = (
    "--hidden=32,32",
    "--batch_size=32",
    "--steps=240",
    "--warmup=60",
    "--mask_interval=20",
    "--t0=120",
    "--buffer_interval=40",
    "--b_min=60",
    "--b_max=200",
    "--d0=0.0001",
    "--eval_interval=80",
    "--metrics_interval=40",
    "--checkpoint_interval=40",
    "--episodes=2",
)
BRAX = ("--env_backend=brax", "--env=inverted_pendulum")
CHUNKS = ("--seeds=2", "--chunk=1")
COMPILING = 3600.0  # seconds for a run that compiles everything, on a busy machine


@dataclasses.dataclass(frozen=True)
class Case:
    """A command that trains, and the command that continues it."""

    name: str
    flags: tuple[str, ...]
    module: str = "experiments.train"

    def start(self, directory: Path) -> list[str]:
        return [f"--logdir={directory}", *self.flags]

    def proceed(self, directory: Path) -> list[str]:
        """The arguments that continue the run in `directory`, or start it if there is none."""
        resumable = self.module == "experiments.train" and any(
            (directory / name).exists() for name in ("config.json", "checkpoints/config.json")
        )
        return ["--resume", f"--logdir={directory}"] if resumable else self.start(directory)


def _train(name: str, *flags: str) -> Case:
    return Case(name, (*SCHEDULE, *flags))


def _sweep(name: str, *flags: str) -> Case:
    return Case(name, ("--budget=smoke", "--seeds=1", *flags), "experiments.sweep")


CASES = {
    case.name: case
    for case in (
        _train("td3-masked", "--algo=td3", "--method=rlx2", "--execution=masked"),
        _train("sac-compact", "--algo=sac", "--method=rlx2", "--execution=compact"),
        _train("td3-compact", "--algo=td3", "--method=rlx2,rigl", "--execution=compact"),
        _train("sac-masked", "--algo=sac", "--method=rlx2,dense", "--execution=masked"),
        _train("td3-chunks", "--algo=td3", "--method=rlx2", "--execution=masked", *CHUNKS),
        _train("sac-chunks", "--algo=sac", "--method=set", "--execution=compact", *CHUNKS),
        _train("brax-td3", "--algo=td3", "--method=rlx2", "--execution=masked", *BRAX),
        _train("brax-chunks", "--algo=sac", "--method=rlx2", "--execution=compact", *CHUNKS, *BRAX),
        _train("hopper", "--env=Hopper-v5", "--algo=td3", "--method=rlx2,ss", "--num_envs=2"),
        _sweep("sweep-masks", "--suite=masks"),
        _sweep("sweep-toy", "--suite=toy"),
    )
}


@dataclasses.dataclass(frozen=True)
class Reference:
    """The undisturbed run of a case and its output files."""

    case: Case
    directory: Path
    ended: Ended

    @property
    def patience(self) -> float:
        """Seconds after which another run of the case counts as hung."""
        return max(300.0, 10 * self.ended.seconds)


def reference(case: Case, server: Server, store: Path, *, warm: bool = True) -> Reference:
    """Runs `case` undisturbed in `store`; twice to `warm` the cache, so that the times and calls
    are those of a run that compiles nothing."""
    directory = store / case.name
    for _ in range(1 + warm):
        shutil.rmtree(directory, ignore_errors=True)
        ended = server.run(case.module, case.start(directory), directory, timeout=COMPILING)
        if ended.code != 0:
            raise RuntimeError(f"{case.name} does not run undisturbed:\n{ended.stderr[-3000:]}")
    return Reference(case, directory, ended)  # pyright: ignore[reportPossiblyUnboundVariable]


_WARNING = re.compile(
    r"warn|damaged|cannot be|could not|checksum|missing|lost|rebuil|restored|repair|fail|differ"
    r"|incomplete|not match|falling back|previous checkpoint",
    re.I,
)
# Progress and internal logs of libraries, which do not report faults.
_NORMAL = re.compile(
    r"^(step [\d,]+/|\d+ lanes, writing|resumed at step|\[\d+/\d+\] |\w+:absl:|[IWEF]\d{4} )"
)


def warnings(stderr: str) -> list[str]:
    """The lines in which a command reports something unusual."""
    lines = stderr.splitlines()
    return [line for line in lines if _WARNING.search(line) and not _NORMAL.match(line)]


def traceback_shown(ended: Ended) -> bool:
    """Whether the command printed a Python traceback, from any thread."""
    return "Traceback (most recent call last)" in ended.stderr + ended.stdout


def complaint(ended: Ended) -> str | None:
    """What is wrong with the way a command ended, whatever its results: or None.

    A traceback of a command that went on to its end (a library logs them) is left to the caller.
    """
    if ended.code is None:
        return "hang"
    if ended.code != 0 and traceback_shown(ended):
        return "traceback"
    if ended.code < 0:
        name = signal.Signals(-ended.code).name
        return f"crash ({name})"
    return None


def settled(outcome: str, *commands: Ended) -> str:
    """`outcome`, or `noise` if one of the commands printed a traceback."""
    return "noise" if any(map(traceback_shown, commands)) else outcome


def rejected(ended: Ended) -> bool:
    """Whether the command failed with a one-line message."""
    lines = [x for x in ended.stderr.splitlines() if x.startswith("error:")]
    return ended.code == 2 and len(lines) == 1


def last_words(ended: Ended, lines: int = 3) -> str:
    """The end of a command's output, for the list of failures."""
    found = [x for x in ended.stderr.splitlines() if x.strip() and not _NORMAL.match(x)]
    return " | ".join(x.strip()[:160] for x in found[-lines:])
