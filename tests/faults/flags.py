"""Extreme flags: every command line gets an answer within seconds and no traceback, and whatever a
dry run accepts also starts and stops on request."""

import dataclasses
import re
import shutil
import signal
import threading
from pathlib import Path

from . import cases, extremes
from .process import Ended, Pool, Server
from .report import Outcome, Verdict

ANSWER = 5.0  # processor seconds that a dry run may take, without imports
HUNG = 240.0  # wall-clock seconds, on a busy machine
PATIENCE = 90.0  # seconds after which a run that shows no metrics is asked to stop
STOPPING = 240.0  # seconds for that: compiling a large program cannot be interrupted
LARGE = 3e9  # bytes: runs that need more start one at a time

_alone = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Trial:
    """One command line."""

    flags: tuple[str, ...]
    number: int

    @property
    def name(self) -> str:
        return f"flags #{self.number}: {' '.join(x for x in self.flags if x not in _USUAL)!r:.400}"


_USUAL = {f"--{name}={value}" for name, value in extremes.SMALL.items()}


def plan(count: int, seed: int) -> list[Trial]:
    """`count` combinations, and the edges of what is allowed."""
    drawn = [extremes.small(edge.split()) for edge in extremes.EDGES]
    drawn += extremes.combinations(count, seed)
    return [Trial(tuple(flags), i) for i, flags in enumerate(drawn)]


def run(trial: Trial, pool: Pool, scratch: Path) -> Outcome:
    """A dry run; if accepted, also a start in a new directory."""
    directory = scratch / f"flags-{trial.number}"
    shutil.rmtree(directory, ignore_errors=True)
    with pool.server() as server:
        column, verdict = _judge(trial, server, directory)
    if verdict.good:
        shutil.rmtree(directory, ignore_errors=True)
    return Outcome("flags", column, verdict.outcome, trial.name, *verdict[1:])


def _judge(trial: Trial, server: Server, directory: Path) -> tuple[str, Verdict]:
    arguments = [*trial.flags, "--dry_run"]
    ended = server.run("experiments.train", arguments, directory, timeout=HUNG, stay=True)
    wrong = cases.complaint(ended)
    if wrong is None and ended.work > ANSWER:
        wrong = f"slow ({ended.work:.1f} s)"
    if wrong or ended.code not in (0, 1, 2):
        return "dry run", Verdict(wrong or f"exit {ended.code}", cases.last_words(ended))
    if ended.code == 1:  # by the parser of flags
        told = "flag" in ended.stderr.lower() or "unexpected" in ended.stderr
        return "dry run", Verdict("rejected" if told else "unclear", cases.last_words(ended, 1))
    if ended.code == 2:
        text = cases.last_words(ended, 1)
        return "dry run", Verdict("rejected" if cases.rejected(ended) else "unclear", text)
    if _estimate(ended) < LARGE:
        return "start", _start(trial, server, directory)
    with _alone:
        return "start", _start(trial, server, directory)


def _start(trial: Trial, server: Server, directory: Path) -> Verdict:
    """Starts a run and stops it after the first metrics, or after `PATIENCE` seconds."""
    flags = [x for x in trial.flags if not x.startswith("--logdir")]
    rule, late = "term@write:*metrics.csv:1", ((PATIENCE, signal.SIGTERM),)
    arguments = [f"--logdir={directory}", *flags]
    limits = {"signals": late, "timeout": PATIENCE + STOPPING, "stay": True}
    ended = server.run("experiments.train", arguments, directory, rule=rule, **limits)
    wrong = cases.complaint(ended)
    if wrong or ended.code not in (0, 128 + signal.SIGTERM):
        return Verdict(wrong or f"exit {ended.code}", cases.last_words(ended))
    outcome = "learned" if ended.fired or ended.code == 0 else "began"
    return Verdict(cases.settled(outcome, ended), f"{ended.seconds:.0f} s")


def _estimate(dry: Ended) -> float:
    """Bytes that the run takes according to the dry run."""
    found = re.search(r"^memory: ([\d.]+) GB", dry.stdout, re.M)
    return float(found[1]) * 1e9 if found else LARGE
