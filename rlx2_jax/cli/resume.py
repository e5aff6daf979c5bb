"""Continues a run that was stopped or killed, exactly from its last checkpoint.

rlx2 resume runs/hopper

All settings come from the run directory, except that a time limit can be added to an environment
without one. Exit codes are those of `rlx2 train`.
"""

from absl import flags

from rlx2_jax.cli import tracker_flags, train

POSITIONAL = "logdir"


def define_flags(values: flags.FlagValues) -> None:
    """The flags of `rlx2 resume`."""
    flags.DEFINE_string("logdir", None, "Directory of the run.", flag_values=values)
    text = "Print the run's settings and the resources they need, and stop."
    flags.DEFINE_bool("dry_run", False, text, flag_values=values)
    train.define_time_limit(values, "A time limit, if the environment has none.")
    tracker_flags.define(values)
    train.define_resume_flags(values)
    train.define_machine_flags(values)


def command(values: flags.FlagValues) -> int:
    """Runs with parsed flags; returns the exit code."""
    return train.resume(values)
