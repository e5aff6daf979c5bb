"""Kills: SIGKILL at random times and at every kind of write, then resumed to the end."""

import dataclasses
import random
import shutil
import signal
from pathlib import Path

from . import cases, compare, inject
from .cases import Reference
from .process import Ended, Pool, Server
from .report import Outcome


@dataclasses.dataclass(frozen=True)
class Kill:
    """One way to end a process early."""

    rule: str = "log"
    signals: tuple[tuple[float, int], ...] = ()

    def __str__(self) -> str:
        times = " ".join(f"{signal.Signals(s).name}@{t:.2f}s" for t, s in self.signals)
        return times or self.rule


@dataclasses.dataclass(frozen=True)
class Trial:
    """A run that is ended early once or more, resumed each time, and compared."""

    reference: Reference
    kills: tuple[Kill, ...]
    column: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.reference.case.name} #{self.seed}: " + ", then ".join(map(str, self.kills))


def kinds(reference: Reference) -> list[tuple[str, str, int]]:
    """Operation, pattern and number of calls of every kind of write of a run."""
    found = dict.fromkeys((c.operation, c.kind) for c in reference.ended.calls)
    return [(o, k, inject.matches(reference.ended.calls, o, k)) for o, k in found]


def _at_write(reference: Reference, kind: tuple[str, str, int], chance: random.Random) -> Kill:
    operation, pattern, count = kind
    actions = ["kill", "killafter"] + ["killhalf"] * (operation in ("write", "writev", "pwrite"))
    which = chance.randint(1, max(count, 1))
    return Kill(f"{chance.choice(actions)}@{operation}:{pattern}:{which}")


def _at_time(reference: Reference, chance: random.Random) -> Kill:
    seconds = reference.ended.seconds
    return Kill(signals=((chance.uniform(0.1, 1.0) * seconds, signal.SIGKILL),))


def _signals(reference: Reference, chance: random.Random) -> list[tuple[str, Kill]]:
    when = lambda: chance.uniform(0.3, 0.9) * reference.ended.seconds  # noqa: E731
    kind = chance.choice([k for k in kinds(reference) if k[2] > 1])
    once = [
        ("SIGTERM at a write", Kill(f"term@{kind[0]}:{kind[1]}:{chance.randint(1, kind[2])}")),
        ("SIGTERM", Kill(signals=((when(), signal.SIGTERM),))),
        ("SIGINT", Kill(signals=((when(), signal.SIGINT),))),
    ]
    start = when()
    twice = ((start, signal.SIGINT), (start + 0.05, signal.SIGINT))
    return [*once, ("SIGINT twice", Kill(signals=twice))]


def plan(references: list[Reference], count: int, seed: int) -> list[Trial]:
    """`count` kills: every kind of write of every case in turn, then random times; and signals."""
    chance = random.Random(seed)
    targets = [(r, kind) for r in references for kind in kinds(r)]
    chance.shuffle(targets)
    seen: set[tuple[str, str]] = set()  # kinds that no case has had yet come first
    first, rest = [], []
    for target in targets:
        key = target[1][:2]
        (rest if key in seen else first).append(target)
        seen.add(key)
    at_writes = (first + rest)[: max(count * 2 // 3, min(len(first), count))]
    trials = [
        Trial(r, (_at_write(r, kind, chance),), "at a write", i)
        for i, (r, kind) in enumerate(at_writes)
    ]
    left = count - len(trials)
    while left > 0:
        r = references[len(trials) % len(references)]
        number = min(left, chance.choice((1, 1, 2, 3)))
        kills = tuple(_at_time(r, chance) for _ in range(number))
        trials.append(Trial(r, kills, "at a time", len(trials)))
        left -= number
    for r in references[: max(1, count // 10)]:
        for column, kill in _signals(r, chance):
            trials.append(Trial(r, (kill,), column, len(trials)))
    return trials


def run(trial: Trial, pool: Pool, scratch: Path) -> Outcome:
    """Kills, resumes and compares one run."""
    case = trial.reference.case
    directory = scratch / f"kill-{trial.seed}"
    shutil.rmtree(directory, ignore_errors=True)
    with pool.server() as server:
        outcome, detail = _judge(trial, server, directory)
    if outcome in ("exact", "warned"):
        shutil.rmtree(directory, ignore_errors=True)
    return Outcome(case.name, trial.column, outcome, f"kills {trial.name}", detail)


def _judge(trial: Trial, server: Server, directory: Path) -> tuple[str, str]:
    case = trial.reference.case
    told = ""
    for kill in trial.kills:
        arguments = case.proceed(directory)
        ended = server.run(case.module, arguments, directory, rule=kill.rule, signals=kill.signals)
        told += ended.stderr
        wrong = _wrong_end(ended, trial)
        if wrong:
            return wrong, cases.last_words(ended)
    ended = server.run(case.module, case.proceed(directory), directory)
    told += ended.stderr
    if cases.complaint(ended) or ended.code != 0:
        return cases.complaint(ended) or f"exit {ended.code}", cases.last_words(ended)
    found = compare.differences(directory, trial.reference.directory)
    if found:
        return "differs", "; ".join(found)
    return ("warned" if cases.warnings(told) else "exact"), "; ".join(cases.warnings(told)[:2])


def _wrong_end(ended: Ended, trial: Trial) -> str | None:
    """Whether a process that was killed or signalled ended in a way that it should not."""
    if ended.code in (0, -signal.SIGKILL):  # the end came first, or the kill
        return None
    if trial.column.startswith("SIG"):
        number = signal.SIGTERM if "TERM" in trial.column else signal.SIGINT
        if "Traceback" in ended.stderr:
            return "traceback"
        return None if ended.code in (128 + number, -number) else f"exit {ended.code}"
    return cases.complaint(ended) or f"exit {ended.code}"
