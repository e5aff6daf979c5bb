"""A chunk of lanes that are trained together, and its progress."""

import dataclasses
from typing import Any

from rlx2_jax.training import summary
from rlx2_jax.training.run import Run, label


@dataclasses.dataclass
class Chunk:
    """Lanes that are trained together, and their progress so far."""

    run: Run
    index: int
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # evaluation rows
    last: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # newest report
    frozen: list[int] = dataclasses.field(default_factory=list)
    seconds: float = 0.0  # of training
    judged: float | None = 0.0  # seconds of evaluation; None: unknown in part
    evaluated: int = -1  # time of the last evaluation
    reported: int = 0  # time of the last row of metrics

    def __post_init__(self) -> None:
        begin = self.index * self.run.lanes_at_once
        self.first = self.run.first + begin
        self.lanes = list(self.run.lanes[begin : begin + self.run.lanes_at_once])
        self.labels = [label(lane, self.first + i) for i, lane in enumerate(self.lanes)]

    def progress(self) -> dict[str, Any]:
        """The fields that a checkpoint stores."""
        names = ("history", "last", "frozen", "seconds", "judged", "evaluated", "reported")
        return {name: getattr(self, name) for name in names}

    def results(self) -> list[summary.LaneResult]:
        return [
            summary.LaneResult(
                self.first + i,
                lane,
                [row for row in self.history if row["lane"] == self.first + i],
                self.last[i],
                self.seconds,
            )
            for i, lane in enumerate(self.lanes)
        ]
