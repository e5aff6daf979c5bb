"""Scores of lanes, in percent of the dense lanes of the same task if there are any."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from experiments.reporting import stats
from experiments.reporting.results import Lane, Suite, Unit
from rlx2_jax.reporting.tables import Value

LABELS = {
    "dense": "Dense",
    "tiny": "Tiny",
    "ss": "SS",
    "set": "SET",
    "rigl": "RigL",
    "rlx2": "RLx2",
    "rigl+q*": "RigL+Q*",
}


def label(name: str) -> str:
    """A lane's name in the paper's spelling."""
    return LABELS.get(name, name)


@dataclass(frozen=True)
class Scale:
    """The mean dense score of each set of comparable units: same task, algorithm, kind, width."""

    suite: Suite

    @cached_property
    def _dense(self) -> dict[tuple, list[Lane]]:
        found: dict[tuple, list[Lane]] = {}
        for unit in self.suite.units:
            found.setdefault(_key(unit), []).extend(unit.named("dense"))
        return found

    def dense(self, unit: Unit) -> float | None:
        """The score that is 100 %; None without a finite, positive dense score."""
        lanes = self._dense.get(_key(unit), [])
        if not lanes:
            return None
        mean = fmean(lane.score for lane in lanes)
        return mean if math.isfinite(mean) and mean > 0 else None

    def why_raw(self, unit: Unit) -> str | None:
        """Why a unit's scores are not in percent, or None."""
        lanes = self._dense.get(_key(unit), [])
        if not lanes:
            return f"{unit.name}: the dense lane is missing"
        if self.dense(unit) is None:
            mean = fmean(lane.score for lane in lanes)
            return f"{unit.name}: the dense score is {mean:.1f}, so percentages would be misleading"
        return None

    def percent(self, unit: Unit, lanes: Sequence[Lane]) -> list[float] | None:
        """Each lane's score in percent of dense, or None."""
        dense = self.dense(unit)
        return None if dense is None else [100 * lane.score / dense for lane in lanes]

    def value(
        self, unit: Unit | None, name: str, lanes: Sequence[Lane] | None = None
    ) -> Value | None:
        """Mean over the seeds of a name, in percent (or raw and marked); None if missing."""
        if unit is None:
            return None
        lanes = unit.named(name) if lanes is None else lanes
        if not lanes:
            return None
        percent = self.percent(unit, lanes)
        # Mark the value if either the score or the dense score is incomplete.
        used = [*lanes, *(self._dense[_key(unit)] if percent is not None else [])]
        marks = "†" * (not all(lane.finished for lane in used))
        few = len(lanes) < planned(unit, name)
        few |= percent is not None and len(unit.named("dense")) < planned(unit, "dense")
        marks += "§" * few
        return raw(lanes, marks + "‡") if percent is None else _value(percent, marks)


def raw(lanes: Sequence[Lane], marks: str = "") -> Value:
    """Mean return over seeds."""
    return _value([lane.score for lane in lanes], marks)


def returns(unit: Unit | None, name: str) -> Value | None:
    """Mean return over the seeds of a name, for tables of returns."""
    lanes = unit.named(name) if unit else []
    if unit is None or not lanes:
        return None
    marks = "†" * (not all(lane.finished for lane in lanes))
    return raw(lanes, marks + "§" * (len(lanes) < planned(unit, name)))


def planned(unit: Unit, name: str) -> int:
    """The planned number of seeds of a name."""
    return sum(n == name for n, _ in unit.planned)


def average(values: Iterable[Value | None]) -> Value | None:
    """The mean over tasks in percent; notes the number of tasks if some are missing."""
    given = list(values)
    usable = [v for v in given if v is not None and "‡" not in v.marks]
    if not usable:
        return None
    marks = "".join(m for m in "†§" if any(m in v.marks for v in usable))
    note = f"({len(usable)} of {len(given)} tasks)" if len(usable) < len(given) else ""
    stds = [v.std for v in usable if v.std is not None]
    return Value(
        fmean(v.mean for v in usable),
        fmean(stds) if len(stds) == len(usable) else None,
        min(v.seeds for v in usable),
        marks,
        note,
    )


def _value(numbers: list[float], marks: str) -> Value:
    return Value(fmean(numbers), stats.spread(numbers), len(numbers), marks)


def _key(unit: Unit) -> tuple:
    return unit.task, unit.algo, unit.kind, unit.hidden
