"""All units in this process, one after another."""

from collections.abc import Sequence

from absl import flags

from experiments import units
from experiments.units import Job, Unfinished


def define_flags(values: flags.FlagValues) -> None:
    """There are none."""


def launch(jobs: Sequence[Job], values: flags.FlagValues | None = None) -> list[Unfinished]:
    """Trains every job that is not finished; returns those that did not finish."""
    return units.attempt_all(jobs)
