"""The table of trackers: services and files that receive every lane of a run as a separate run.

A tracker is a small class that opens or continues a lane, takes rows and is closed.
`register_tracker` adds a custom one; `--tracker` selects those that a run reports to.
"""

import importlib.util
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rlx2_jax.trackers import trackio, wandb
from rlx2_jax.trackers.base import TrackedLane as TrackedLane
from rlx2_jax.trackers.base import Tracker as Tracker


class Entry(NamedTuple):
    """One entry of the table: a function that opens a lane, and the package it needs."""

    open: Callable[[TrackedLane], Tracker]
    package: str | None = None
    install: str = ""  # argument of pip install; default: the package


TRACKERS: dict[str, Entry] = {
    "wandb": Entry(wandb.WandbLane, "wandb", "rlx2_jax[wandb]"),
    "trackio": Entry(trackio.TrackioLane, "trackio", "rlx2_jax[trackio]"),
}


def register_tracker(
    name: str, open: Callable[[TrackedLane], Tracker], *, package: str | None = None
) -> None:
    """Adds a tracker under a name for `--tracker`.

    Args:
      open: opens or continues a lane.
      package: a required package, checked before a run starts.
    """
    if not name.isidentifier():
        raise ValueError(f"tracker name {name!r}: use letters, digits and underscores")
    if name in TRACKERS and TRACKERS[name].open is not open:
        raise ValueError(f"there is already a tracker {name!r}: choose another name")
    TRACKERS[name] = Entry(open, package)


def check(names: Sequence[str]) -> None:
    """Raises for unknown names and for trackers whose package is missing."""
    for name in names:
        if name not in TRACKERS:
            raise ValueError(f"--tracker={name}: use one or more of {', '.join(TRACKERS)}")
        _, package, install = TRACKERS[name]
        if package is not None and importlib.util.find_spec(package) is None:
            raise ImportError(
                f"--tracker={name} needs the package {package}: pip install '{install or package}'"
            )
