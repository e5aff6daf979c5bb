"""The flags --tracker and --tracker_project of all training commands."""

from typing import Any

from absl import flags

from rlx2_jax import trackers
from rlx2_jax.training.tracking import PROJECT, Track

flags.disclaim_key_flags()  # the flags belong to the command that defines them
NAMES = ("tracker", "tracker_project")


def define(values: flags.FlagValues) -> None:
    """Defines both flags."""
    text = (
        f"Report every lane to one or more of {', '.join(trackers.TRACKERS)} (docs/trackers.md). A "
        f"resumed run keeps its trackers; --tracker= removes them."
    )
    flags.DEFINE_list("tracker", None, text, flag_values=values)
    text = f"The tracker's project; default: {PROJECT}."
    flags.DEFINE_string("tracker_project", None, text, flag_values=values)


def track_of(names: list[str] | None, project: str | None, **more: Any) -> Track | None:
    """The requested trackers, or None if --tracker was not given.

    Raises:
      ValueError, ImportError: a tracker is unknown, or its package is missing.
    """
    if names is None:
        if project is not None:
            raise ValueError(f"--tracker_project={project} needs --tracker: give one")
        return None
    trackers.check(names)
    return Track(tuple(dict.fromkeys(names)), project or PROJECT, **more)
