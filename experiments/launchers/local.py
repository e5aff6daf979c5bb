"""Runs all units in this process, in sequence."""

from collections.abc import Sequence

from absl import flags

from experiments import units
from experiments.units import Job, Unfinished


def define_flags(values: flags.FlagValues) -> None:
    """This launcher has no flags."""


def launch(jobs: Sequence[Job], values: flags.FlagValues | None = None) -> list[Unfinished]:
    """Trains every unfinished job; returns those that are still unfinished."""
    return units.attempt_all(jobs)
