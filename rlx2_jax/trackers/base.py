"""The tracker interface: opens or continues a lane, takes its rows, and is closed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol


class TrackedLane(NamedTuple):
    """The description of a lane for a tracker.

    Attributes:
      id: unique, and stable when the run is resumed.
      name: for display.
      group: shared by the lanes of one run or sweep.
      job: the unit of a sweep, or the run directory's name.
      project: the tracker's project.
      config: settings of the lane and of its run, as plain data.
      directory: the run directory.
    """

    id: str
    name: str
    group: str
    job: str
    project: str
    config: dict[str, Any]
    directory: Path


class Tracker(Protocol):
    """A lane in a tracker. Methods may raise: the run continues, and rows are sent again later.

    Attributes:
      last: step of the newest row that the tracker has of the lane, or -1. Older rows are not sent
        again.
    """

    last: int

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """Logs one row; steps ascend. Rows are final: a resumed run never retracts one."""
        ...

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Ends the session. `summary`: the lane's entry of `summary.json`, None for an unfinished
        run."""
        ...
