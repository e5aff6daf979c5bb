"""What a tracker is: opens or continues a lane, takes its rows, and is closed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol


class TrackedLane(NamedTuple):
    """One lane, as a tracker opens it.

    Attributes:
      id: unique; the same when the run is resumed.
      name: for people.
      group: lanes of one run or sweep share it.
      job: the unit of a sweep, or the run directory's name.
      project: where the tracker keeps it.
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
    """A lane in a tracker. Any method may raise: the run goes on, and rows are sent again later.

    Attributes:
      last: step of the newest row that the tracker has of the lane, -1 if it has none. Older rows
        are never sent again.
    """

    last: int

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """One row; steps ascend. Rows are final: a resumed run never takes one back."""
        ...

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Ends the session. `summary` is the lane's entry of `summary.json`, None if the run is not
        finished."""
        ...
