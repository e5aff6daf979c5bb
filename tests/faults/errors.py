"""Failing writes: every call that changes a file fails with ENOSPC and EIO, once or for a while.

The run goes on to its end with the results of the undisturbed one, or refuses to begin with a
message; either way the directory can be resumed afterwards.
"""

import dataclasses
import itertools
import random
import re
import shutil
from pathlib import Path

from . import cases, compare, inject
from .cases import Reference
from .process import Pool, Server
from .report import Outcome, Verdict

ERRORS = ("ENOSPC", "EIO")
SPACE = "open|write|pwrite|writev|pwritev|truncate|mkdir|link"  # calls that need disk space


@dataclasses.dataclass(frozen=True)
class Trial:
    """A run with a rule of failing calls."""

    reference: Reference
    rule: str
    row: str
    column: str
    number: int
    lasting: bool = False  # the disk stays full: results may be missing but must be listed

    @property
    def name(self) -> str:
        return f"errors {self.reference.case.name} {self.rule}"


def _startup(calls: list[inject.Call]) -> int:
    """Calls before the first row is logged: a run may refuse to start if these fail."""
    return next((c.number for c in calls if c.path.endswith("evaluations.csv")), len(calls)) - 1


def once(reference: Reference, count: int, seed: int) -> list[Trial]:
    """Single failures: every kind of call with each error, then killed soon after, then short
    writes; at random occurrences."""
    chance = random.Random(seed)
    calls = reference.ended.calls
    kinds = list(dict.fromkeys((c.operation, c.kind) for c in calls))
    actions = [(f"fail={e}", e) for e in ERRORS]
    actions += [(f"fail={e},then={{n}}", f"{e}, then killed") for e in ERRORS]
    trials: list[Trial] = []
    for action, column in actions:
        chance.shuffle(kinds)
        for operation, kind in kinds:
            which = chance.randint(1, max(1, inject.matches(calls, operation, kind)))
            rule = f"{action.format(n=chance.randint(1, 8))}@{operation}:{kind}:{which}"
            trials.append(Trial(reference, rule, f"{operation} {kind}", column, len(trials)))
    for operation, kind in kinds:
        if "write" in operation:
            rule = f"short=ENOSPC@{operation}:{kind}:1"
            trials.append(Trial(reference, rule, f"{operation} {kind}", "short", len(trials)))
    chance.shuffle(trials)
    return trials[:count]


def _stride(calls: list[inject.Call]) -> int:
    """More calls than lie between two checkpoints: with failures this far apart, one that failed
    is followed by one that succeeds, and every call of a checkpoint is reached."""
    made = [
        call.number
        for call in calls
        if call.operation == "rename" and re.fullmatch(r"checkpoints/states/\d+", call.path)
    ]
    return int(1.1 * max(b - a for a, b in itertools.pairwise([0, *made])))


def every(reference: Reference) -> list[Trial]:
    """Each call of the run after its start fails in one of many runs, for each error."""
    begin, stride = _startup(reference.ended.calls), _stride(reference.ended.calls)
    row = f"each of {len(reference.ended.calls) - begin} calls, {stride} apart"
    return [
        Trial(reference, f"fail={error}@*:*:{r}%{stride}>{begin}", row, error, 10_000 + i)
        for i, (error, r) in enumerate((e, r) for e in ERRORS for r in range(stride))
    ]


def full(reference: Reference, seed: int) -> list[Trial]:
    """A disk that is full for some time, and one that stays full."""
    chance = random.Random(seed)
    calls = reference.ended.calls
    total = sum(c.operation in SPACE.split("|") for c in calls)
    first = sum(c.operation in SPACE.split("|") for c in calls[: _startup(calls)]) + 1
    trials = []
    for i in range(4):
        begin = chance.randint(first, total // 2)
        rule = f"fail=ENOSPC@{SPACE}:*:{begin}-{begin + chance.choice((20, 60, 150))}"
        trials.append(Trial(reference, rule, "full disk", "for a while", 20_000 + i))
        rule = f"fail=ENOSPC@{SPACE}:*:{chance.randint(first, total)}-"
        trials.append(Trial(reference, rule, "full disk", "to the end", 20_100 + i, lasting=True))
    return trials


def run(trial: Trial, pool: Pool, scratch: Path) -> Outcome:
    """Runs with failing calls, compares, resumes, compares again."""
    directory = scratch / f"error-{trial.number}"
    shutil.rmtree(directory, ignore_errors=True)
    with pool.server() as server:
        verdict = _judge(trial, server, directory)
    if verdict.good:
        shutil.rmtree(directory, ignore_errors=True)
    return Outcome(trial.row, trial.column, verdict.outcome, trial.name, *verdict[1:])


def _judge(trial: Trial, server: Server, directory: Path) -> Verdict:
    case, reference = trial.reference.case, trial.reference.directory
    patience = trial.reference.patience
    start = case.start(directory)
    dies = ",then=" in trial.rule
    ended = server.run(
        case.module, start, directory, rule=trial.rule, timeout=patience, stay=not dies
    )
    faults = sum(call.action in ("fail", "short") for call in ended.calls)
    killed = ended.code == -9 and dies
    wrong = None if killed else cases.complaint(ended)
    if wrong:
        return Verdict(wrong, cases.last_words(ended), faults)
    told = cases.warnings(ended.stderr)
    outcome = "rejected" if cases.rejected(ended) else "warned" if told else "exact"
    if ended.code == 0:
        found = compare.differences(directory, reference)
        unnamed = [x for x in found if Path(x.split()[0]).name not in ended.stderr]
        if unnamed and trial.lasting:
            return Verdict("unreported", "; ".join(unnamed), faults)
        if found and not trial.lasting:
            text = "; ".join(found + told[:2])
            return Verdict("differs" if told else "silent", text, faults)
        outcome = "reported" if found else outcome
    elif not killed and outcome != "rejected":
        return Verdict(f"exit {ended.code}", cases.last_words(ended), faults)
    proceed = case.proceed(directory)
    again = server.run(case.module, proceed, directory, timeout=patience, stay=True)
    wrong = cases.complaint(again)
    if wrong or again.code != 0:
        return Verdict(f"resume {wrong or again.code}", cases.last_words(again), faults)
    found = compare.differences(directory, reference)
    if found:
        return Verdict("resume differs", "; ".join(found), faults)
    return Verdict(cases.settled(outcome, ended, again), "; ".join(told[:2]), faults)
