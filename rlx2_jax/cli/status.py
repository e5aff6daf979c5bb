"""Shows the progress of runs and sweeps as a table.

rlx2 status runs/hopper
rlx2 status runs/short

A directory may be a run, a suite, or the --logdir of sweeps. The columns are the state (waiting,
running, finished, failed, interrupted), step and total, speed, time left, newest score and error. A
run without a heartbeat for a minute counts as interrupted.
"""

import sys
from pathlib import Path

from absl import flags

from rlx2_jax.reporting import status, tables

POSITIONAL = "logdir"


def define_flags(values: flags.FlagValues) -> None:
    """The flags of `rlx2 status`."""
    text = "Run directories, suites or directories of sweeps."
    flags.DEFINE_list("logdir", [], text, flag_values=values)
    text = "Only units in these states."
    flags.DEFINE_multi_enum("state", None, status.STATES, text, flag_values=values)


def command(values: flags.FlagValues) -> int:
    """Runs with parsed flags; returns the exit code."""
    try:
        if not values.logdir:
            raise status.NoRuns("--logdir is needed: rlx2 status DIR")
        units = [unit for name in values.logdir for unit in status.find(Path(name))]
    except (status.NoRuns, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    shown = [unit for unit in units if not values.state or unit.state in values.state]
    if shown:
        print(tables.text(status.table(shown)))
    print(status.summary(units))
    return 0
