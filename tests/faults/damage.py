"""Damaged files: every file of a run directory has bits flipped, or is cut, emptied, deleted or
replaced; then the run is resumed and the outcome classified."""

import collections
import dataclasses
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from . import cases, compare, inject
from .cases import Reference
from .process import Ended, Pool, Server
from .report import Outcome, Verdict


def _flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(bytes(data))


def _truncate(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data))] if data else data)


def _empty(path: Path, _: random.Random) -> None:
    path.write_bytes(b"")


def _zeros(path: Path, chance: random.Random) -> None:
    """Replaces a block with zeros, as if a page was lost."""
    data = bytearray(path.read_bytes())
    if data:
        begin = chance.randrange(len(data))
        end = min(len(data), begin + chance.choice((64, 512, 4096)))
        data[begin:end] = bytes(end - begin)
    path.write_bytes(bytes(data))


def _extend(path: Path, chance: random.Random) -> None:
    with path.open("ab") as file:
        file.write(chance.randbytes(chance.choice((1, 40, 3000))))


def _replace(path: Path, _: random.Random) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "bit flip": _flip,
    "truncated": _truncate,
    "emptied": _empty,
    "deleted": lambda path, _: path.unlink(),
    "zeros": _zeros,
    "extended": _extend,
    "directory": _replace,
}


@dataclasses.dataclass(frozen=True)
class Source:
    """A run directory to damage copies of."""

    name: str
    reference: Reference
    directory: Path
    finished: bool


@dataclasses.dataclass(frozen=True)
class Trial:
    """One file of one source, damaged in one way."""

    source: Source
    file: str
    damage: str
    seed: str
    number: int

    @property
    def name(self) -> str:
        return f"damage {self.source.name} {self.file} [{self.damage}] #{self.seed}"


def interrupted(reference: Reference, server: Server, scratch: Path, how: str) -> Source:
    """A run that SIGTERM (`term`) or SIGKILL (`kill`) ended at two thirds of its metrics."""
    case = reference.case
    directory = scratch / f"{how}-{case.name}"
    shutil.rmtree(directory, ignore_errors=True)
    # the third quarter of a run of several chunks is in its second chunk
    count = inject.matches(reference.ended.calls, "write", "*metrics.csv")
    rule = f"{how}@write:*metrics.csv:{count * 3 // 4}"
    ended = server.run(
        case.module, case.start(directory), directory, rule=rule, timeout=reference.patience
    )
    if ended.code not in (143, -9):
        raise RuntimeError(f"{case.name} {rule} ended with {ended.code}: {ended.stderr[-2000:]}")
    state = {"term": "stopped", "kill": "killed"}[how]
    return Source(f"{state} {case.name}", reference, directory, False)


def finished(reference: Reference) -> Source:
    """A run that ended."""
    return Source(f"finished {reference.case.name}", reference, reference.directory, True)


def plan(sources: list[Source], count: int, seed: int) -> list[Trial]:
    """`count` cases; every kind of file gets every damage once before any repeats."""
    queues: dict[tuple[str, str, str], list[tuple[Source, str, str]]]
    queues = collections.defaultdict(list)
    chance = random.Random(seed)
    for source in sources:
        for path in sorted(p for p in source.directory.rglob("*") if p.is_file()):
            file = str(path.relative_to(source.directory))
            for damage in DAMAGES:
                key = (source.name, inject.kind_of(file), damage)
                queues[key].append((source, file, damage))
    for queue in queues.values():
        chance.shuffle(queue)
    order = list(queues.values())
    chance.shuffle(order)
    found: list[Trial] = []
    turn = 0
    while len(found) < count:
        for queue in order:
            if len(found) < count:
                source, file, damage = queue[turn % len(queue)]
                found.append(Trial(source, file, damage, f"{seed}.{turn}", len(found)))
        turn += 1
    return found


def run(trial: Trial, pool: Pool, scratch: Path) -> Outcome:
    """Damages a copy of the directory, reads it, resumes it and compares."""
    directory = scratch / f"damage-{trial.number}"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(trial.source.directory, directory)
    DAMAGES[trial.damage](directory / trial.file, random.Random(trial.name))
    with pool.server() as server:
        verdict = _judge(trial, server, directory)
    if verdict.good:
        shutil.rmtree(directory, ignore_errors=True)
    row = f"{trial.source.name.split()[0]}: {inject.kind_of(trial.file)}"
    return Outcome(row, trial.damage, verdict.outcome, trial.name, *verdict[1:])


def _judge(trial: Trial, server: Server, directory: Path) -> Verdict:
    case, reference = trial.source.reference.case, trial.source.reference.directory
    commands = []
    if trial.source.finished:
        ended = _read(trial, server, directory)
        wrong = cases.complaint(ended)
        if wrong or ended.code not in (0, 1, 2):
            return Verdict(f"reader {wrong or ended.code}", cases.last_words(ended))
        commands.append(ended)
    arguments = case.start(directory)
    if case.module == "experiments.train":
        arguments = ["--resume", f"--logdir={directory}"]
    patience = trial.source.reference.patience
    ended = server.run(case.module, arguments, directory, timeout=patience, stay=True)
    wrong = cases.complaint(ended)
    if wrong:
        return Verdict(wrong, cases.last_words(ended))
    commands.append(ended)
    if cases.rejected(ended):
        return Verdict(cases.settled("rejected", *commands), cases.last_words(ended, 1))
    if ended.code != 0:
        return Verdict(f"exit {ended.code}", cases.last_words(ended))
    found = compare.differences(directory, reference)
    told = cases.warnings(ended.stderr)
    if found:
        return Verdict("differs" if told else "silent", "; ".join(found + told[:2]))
    return Verdict(cases.settled("warned" if told else "exact", *commands), "; ".join(told[:2]))


def _read(trial: Trial, server: Server, directory: Path) -> Ended:
    """The commands that read finished runs."""
    out = directory.with_name(directory.name + "-read")
    arguments = [f"--logdir={directory}", f"--out={out}"]
    if trial.source.reference.case.module == "experiments.train":
        arguments.append("--format=npz")
        ended = server.run("experiments.export", arguments, directory, stay=True)
    else:
        ended = server.run("experiments.report", arguments, directory, stay=True)
    shutil.rmtree(out, ignore_errors=True)
    return ended
