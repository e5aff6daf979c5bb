"""The parts of the campaign: their runs and faults."""

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Callable

from . import damage, disk, errors, flags, kills
from .campaign import Campaign
from .cases import CASES
from .report import Outcome, carry_out

# Every part uses two or more different kinds of runs.
DAMAGED = ("td3-masked", "td3-chunks", "sac-compact", "brax-td3", "sweep-toy")
FAILING = ("td3-chunks", "sac-compact", "brax-td3")


def _names(options: argparse.Namespace, default: tuple[str, ...]) -> list[str]:
    return options.cases.split(",") if options.cases else list(default)


def run_kills(attack: Campaign, options: argparse.Namespace) -> list[Outcome]:
    """`options.kills` kills over all cases."""
    references = attack.references(_names(options, tuple(CASES)))
    trials = kills.plan(references, options.kills, options.seed)
    trials = [t for t in trials if options.only in f"kills {t.name}"]
    return carry_out(trials, lambda t: kills.run(t, attack.pool, attack.scratch), attack.jobs)


def run_damage(attack: Campaign, options: argparse.Namespace) -> list[Outcome]:
    """`options.damage` damaged files of finished, stopped and killed runs."""
    references = attack.references(_names(options, DAMAGED))
    sources = [damage.finished(r) for r in references]
    with attack.pool.server() as server:
        for reference in references:
            if reference.case.module == "experiments.train":
                for how in ("term", "kill"):
                    sources.append(damage.interrupted(reference, server, attack.scratch, how))
    trials = damage.plan(sources, options.damage, options.seed)
    trials = [t for t in trials if options.only in t.name]
    return carry_out(trials, lambda t: damage.run(t, attack.pool, attack.scratch), attack.jobs)


def run_errors(attack: Campaign, options: argparse.Namespace) -> list[Outcome]:
    """`options.errors` single failures, and full disks."""
    references = attack.references(_names(options, FAILING))
    share = -(-options.errors // len(references))
    trials = [t for r in references for t in errors.once(r, share, options.seed)]
    if options.errors >= 50:
        trials += [t for r in references for t in errors.full(r, options.seed)]
    trials = _numbered([t for t in trials if options.only in t.name])
    return carry_out(trials, lambda t: errors.run(t, attack.pool, attack.scratch), attack.jobs)


def run_every(attack: Campaign, options: argparse.Namespace) -> list[Outcome]:
    """Each write of one run fails with each error."""
    references = attack.references(_names(options, ("td3-masked",)))
    trials = [t for r in references for t in errors.every(r)]
    trials = _numbered([t for t in trials if options.only in t.name])
    return carry_out(trials, lambda t: errors.run(t, attack.pool, attack.scratch), attack.jobs)


def run_disk(attack: Campaign, options: argparse.Namespace) -> list[Outcome]:
    """Disks of several sizes that fill up."""
    found = []
    for reference in attack.references(_names(options, FAILING[:1])):
        with attack.pool.server() as server:
            for left, freed in itertools.product(disk.LEFT, (False, True)):
                try:
                    found.append(disk.run(reference, server, attack.scratch, left, freed=freed))
                except PermissionError as error:
                    print(f"skipped: {error}", file=sys.stderr)
                    return found
    return found


def run_flags(attack: Campaign, options: argparse.Namespace) -> list[Outcome]:
    """`options.flags` combinations of extreme flags."""
    trials = [t for t in flags.plan(options.flags, options.seed) if options.only in t.name]
    return carry_out(trials, lambda t: flags.run(t, attack.pool, attack.scratch), attack.jobs)


def _numbered(trials: list[errors.Trial]) -> list[errors.Trial]:
    return [dataclasses.replace(t, number=i) for i, t in enumerate(trials)]


PARTS: dict[str, Callable[[Campaign, argparse.Namespace], list[Outcome]]] = {
    "kills": run_kills,
    "damage": run_damage,
    "errors": run_errors,
    "every": run_every,
    "disk": run_disk,
    "flags": run_flags,
}
