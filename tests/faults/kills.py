"""Kills: SIGKILL at random times and at every kind of write; the run is then resumed."""

import collections
import dataclasses
import random
import shutil
import signal
from pathlib import Path

from . import cases, compare, inject
from .cases import Reference
from .process import Ended, Pool, Server
from .report import Outcome, Verdict


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


def _at_write(kind: tuple[str, str, int], chance: random.Random) -> Kill:
    operation, pattern, count = kind
    actions = ["kill", "killafter"] + ["killhalf"] * ("write" in operation)
    which = chance.randint(1, max(count, 1))
    return Kill(f"{chance.choice(actions)}@{operation}:{pattern}:{which}")


def _at_time(reference: Reference, chance: random.Random, earliest: float = 0.1) -> Kill:
    seconds = reference.ended.seconds
    return Kill(signals=((chance.uniform(earliest, 1.0) * seconds, signal.SIGKILL),))


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
    """`count` kills: at every kind of write of all cases, at random times, and among the first
    calls of a resumed run; and signals that ask the run to stop."""
    chance = random.Random(seed)
    trials: list[Trial] = []

    def add(reference: Reference, column: str, *kills: Kill) -> None:
        trials.append(Trial(reference, kills, column, len(trials)))

    resumes, times = count // 12, count // 5
    writes = _spread(references, chance)
    for i in range(count - times - 2 * resumes):
        reference, kind = writes[i % len(writes)]
        add(reference, "at a write", _at_write(kind, chance))
    for i in range(resumes):
        reference = references[i % len(references)]
        again = Kill(f"{chance.choice(('kill', 'killhalf'))}@*:*:{chance.randint(1, 40)}")
        add(reference, "while resuming", _at_time(reference, chance, 0.5), again)
    while times > 0:
        reference = references[len(trials) % len(references)]
        number = min(times, chance.choice((1, 1, 2, 3)))
        add(reference, "at a time", *(_at_time(reference, chance) for _ in range(number)))
        times -= number
    for reference in references[: count // 10]:
        for column, kill in _signals(reference, chance):
            add(reference, column, kill)
    return trials


def _spread(
    references: list[Reference], chance: random.Random
) -> list[tuple[Reference, tuple[str, str, int]]]:
    """All kinds of writes of all cases: each kind once in one of the cases that have it, the
    quick ones more often, then the others."""
    groups = collections.defaultdict(list)
    for reference in references:
        for kind in kinds(reference):
            # a sweep has the same files two levels down, in addition to its own
            path = kind[1].split("/")
            inner = path[2 * (reference.case.module == "experiments.sweep") :]
            groups[kind[0], *(inner or path)].append((reference, kind))
    first, rest = [], []
    for group in groups.values():
        speeds = [1 / reference.ended.seconds for reference, _ in group]
        (index,) = chance.choices(range(len(group)), speeds)
        first.append(group.pop(index))
        rest += group
    chance.shuffle(first)
    chance.shuffle(rest)
    return first + rest


def run(trial: Trial, pool: Pool, scratch: Path) -> Outcome:
    """Kills, resumes and compares one run."""
    directory = scratch / f"kill-{trial.seed}"
    shutil.rmtree(directory, ignore_errors=True)
    with pool.server() as server:
        verdict = _judge(trial, server, directory)
    if verdict.good:
        shutil.rmtree(directory, ignore_errors=True)
    row = trial.reference.case.name
    return Outcome(row, trial.column, verdict.outcome, f"kills {trial.name}", *verdict[1:])


def _judge(trial: Trial, server: Server, directory: Path) -> Verdict:
    case, patience, kills = trial.reference.case, trial.reference.patience, 0
    commands: list[Ended] = []
    for kill in trial.kills:
        arguments = case.proceed(directory)
        faults = {"rule": kill.rule, "signals": kill.signals}
        ended = server.run(case.module, arguments, directory, **faults, timeout=patience)
        commands.append(ended)
        kills += ended.code != 0
        wrong = _wrong_end(ended, trial)
        if wrong:
            return Verdict(wrong, cases.last_words(ended), kills)
    arguments = case.proceed(directory)
    ended = server.run(case.module, arguments, directory, timeout=patience, stay=True)
    commands.append(ended)
    if cases.complaint(ended) or ended.code != 0:
        wrong = cases.complaint(ended) or f"exit {ended.code}"
        return Verdict(wrong, cases.last_words(ended), kills)
    found = compare.differences(directory, trial.reference.directory)
    if found:
        return Verdict("differs", "; ".join(found), kills)
    told = [line for command in commands for line in cases.warnings(command.stderr)]
    outcome = cases.settled("warned" if told else "exact", *commands)
    return Verdict(outcome, "; ".join(told[:2]), kills)


def _wrong_end(ended: Ended, trial: Trial) -> str | None:
    """Whether a process that was killed or signalled ended incorrectly."""
    if ended.code in (0, -signal.SIGKILL):  # it finished first, or was killed
        return None
    if trial.column.startswith("SIG"):
        number = signal.SIGTERM if "TERM" in trial.column else signal.SIGINT
        if cases.traceback_shown(ended):
            return "traceback"
        return None if ended.code in (128 + number, -number) else f"exit {ended.code}"
    return cases.complaint(ended) or f"exit {ended.code}"
