"""Tables of collected results: returns, RLx2 against each baseline, speed, missing units."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median
from typing import Any

from experiments.reporting import percent, scores, stats
from experiments.reporting.maintable import METHODS
from experiments.reporting.percent import TASKS, Percentages, from_paper
from experiments.reporting.results import Results, Suite
from experiments.reporting.stats import Interval
from rlx2_jax import files
from rlx2_jax.reporting.tables import Cell, Column, Table

ALL = ("dense", *METHODS[::-1])  # rlx2 after dense
_SECONDS = ("training_seconds", "evaluation_seconds")


def algorithms(suite: Suite) -> list[str]:
    """The algorithms with any result."""
    found = {u.algo for u in suite.units for lane in u.lanes if lane.evaluations_used}
    return [algo for algo in ("td3", "sac") if algo in found]


def returns(suite: Suite, algo: str) -> Table:
    """Raw returns of every method on every task."""
    rows: list[tuple[Cell, ...]] = []
    for task in TASKS:
        unit = percent.unit_of(suite, algo, task)
        seeds = [len({x.seed for x in unit.named(m)}) if unit else 0 for m in ALL]
        cells = [scores.returns(unit, m) for m in ALL]
        low, high = min(seeds), max(seeds)
        rows.append((task, str(low) if low == high else f"{low} to {high}", *cells))
    columns = [Column("task"), Column("seeds")]
    columns += [Column(scores.label(m), "return", 0, spread=True) for m in ALL]
    title = f"{algo.upper()}: mean return over seeds ± one standard deviation"
    notes = (
        "The score of a seed is the mean of its last 30 evaluations of 10 episodes each. The paper "
        "prints percentages only.",
    )
    return Table(f"{algo}-returns", title, tuple(columns), tuple(rows), notes)


def percentages(suite: Suite, algo: str) -> tuple[Table, Table]:
    """Table 7's percentages of one algorithm, and their means, IQMs and intervals."""
    printed = from_paper("table2_std", "method", {m: m for m in METHODS})
    columns = tuple((m, scores.label(m)) for m in METHODS[::-1])
    name = algo.upper()
    spec = Percentages(
        f"{algo}-percent", f"{name}: percent of dense", columns, printed, (algo,), spread=True
    )
    every = Percentages("", "", (("dense", "Dense"), *columns), printed, (algo,))
    key, title = f"{algo}-aggregate", f"{name}: percent of dense, over tasks and seeds"
    return percent.table(suite, spec), percent.aggregate(suite, every, key, title)


def versus(suite: Suite, algo: str) -> Table:
    """RLx2 minus each of the others, in percent of dense."""
    printed = from_paper("table2_std", "method", {m: m for m in METHODS})
    ours = percent.percentages(suite, (algo,), "rlx2")
    rows: list[tuple[Cell, ...]] = []
    for method in [m for m in ALL if m != "rlx2"]:
        theirs = percent.percentages(suite, (algo,), method)
        found = stats.difference(ours, theirs)
        paper = {m: printed.get((algo, "average", m)) for m in ("rlx2", method)}
        dense = 100.0 if method == "dense" else None
        values = [x.mean if x else dense for x in paper.values()]
        apart = None if None in values else values[0] - values[1]  # pyright: ignore
        head = f"RLx2 − {scores.label(method)}"
        if found is None:
            rows.append((head, "0", None, None, None, None, apart))
            continue
        both = str(len(ours.keys() & theirs.keys()))
        intervals = [_interval(x) for x in (found.mean_interval, found.iqm_interval)]
        rows.append((head, both, found.mean, intervals[0], found.iqm, intervals[1], apart))
    columns = (
        Column(""),
        Column("tasks"),
        Column("mean", "difference"),
        Column("95 % interval of the mean"),
        Column("IQM", "difference"),
        Column("95 % interval of the IQM"),
        Column("paper, mean"),
    )
    notes = (
        "Percentage points of dense, over the tasks that both have. Intervals by resampling the "
        f"seeds of both within each task, {stats.REPLICATES} times, with the dense mean held "
        "fixed. An interval that contains 0 is inconclusive.",
    )
    title = f"{algo.upper()}: difference between RLx2 and each baseline"
    return Table(f"{algo}-versus", title, columns, tuple(rows), notes)


def _interval(found: Interval | None) -> str:
    return f"{found.low:.1f} to {found.high:.1f}" if found else "none"


@dataclass(frozen=True)
class Timing:
    """Finished units of one kind of lane on one task."""

    group: str
    name: str
    units: list[dict[str, Any]]  # their summaries

    @property
    def lanes(self) -> list[int]:
        return [len(unit["lanes"]) for unit in self.units]

    @property
    def per_lane(self) -> float:
        """Steps per second of one lane; the median over lanes."""
        return median(x["steps_per_second"] for unit in self.units for x in unit["lanes"])

    @property
    def together(self) -> float:
        """Steps per second of all lanes of a unit; the mean over units."""
        return fmean(sum(x["steps_per_second"] for x in unit["lanes"]) for unit in self.units)

    @cached_property
    def hours(self) -> list[float | None]:
        """Hours of training and of evaluation, as means over units."""
        found: list[list[Any]] = [[unit.get(name) for unit in self.units] for name in _SECONDS]
        return [None if None in x else fmean(x) / 3600 for x in found]


def timings(results: Results) -> Iterator[Timing]:
    """The timings of all finished training units, each in the suite that has its directory."""
    for suite in results.suites.values():
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for unit in suite.units:
            for part in unit.parts or (unit,):
                if part.status != "finished" or part.kind != "train" or not part.lanes:
                    continue
                if part.directory.parent.name == suite.name:
                    summary = files.parse_json(part.directory / "summary.json")
                    if all("steps_per_second" in x for x in summary.get("lanes") or [{}]):
                        found.setdefault((unit.name, part.lanes[0].name), []).append(summary)
        for (group, name), own in found.items():
            yield Timing(f"{suite.name}/{group}", name, own)


def speed(found: Sequence[Timing]) -> Table:
    """Steps per second of each kind of lane, and hours per unit."""
    rows: list[tuple[Cell, ...]] = []
    dense = {timing.group: timing.together for timing in found if timing.name == "dense"}
    for timing in found:
        lanes = sorted(set(timing.lanes))
        count = str(lanes[0]) if len(lanes) == 1 else f"{lanes[0]} to {lanes[-1]}"
        base = dense.get(timing.group)
        rows.append(
            (
                timing.group,
                scores.label(timing.name),
                str(len(timing.units)),
                count,
                timing.per_lane,
                timing.together,
                timing.together / base if base else "no dense",
                *("not noted" if x is None else x for x in timing.hours),
            )
        )
    columns = (
        Column("suite and task"),
        Column("lanes"),
        Column("units"),
        Column("lanes per unit"),
        Column("per lane", "steps/s", 0),
        Column("all lanes of a unit", "steps/s", 0),
        Column("times dense", "steps/s", 2),
        Column("training", "hours per unit", 2),
        Column("evaluation", "hours per unit", 2),
    )
    notes = (
        "Wall-clock time of training without evaluation, on machines with other load: a lower "
        "bound on speed. All lanes of a unit advance "
        "together, so compare units of different sizes by the steps/s of all their lanes. "
        "docs/performance.md has comparisons within one run.",
    )
    return Table("speed", "Speed, and hours of a unit", columns, tuple(rows), notes)


def overview(results: Results) -> Table:
    """The planned and collected units of each suite."""
    rows: list[tuple[Cell, ...]] = []
    for suite in results.suites.values():
        parts = suite.parts
        steps = sorted({u.steps for u in parts if u.steps and u.kind == "train"})
        share = suite.budget.get("fraction")
        rows.append(
            (
                suite.name,
                suite.title,
                " to ".join(f"{x:,}" for x in dict.fromkeys((steps[0], steps[-1])))
                if steps
                else None,
                f"{100 * share:.3g} %" if isinstance(share, int | float) else "not stated",
                len(parts),
                sum(u.status == "finished" for u in parts),
            )
        )
    columns = (
        Column("suite"),
        Column("description"),
        Column("steps"),
        Column("of the paper's steps"),
        *(Column(x, "units") for x in ("planned", "finished")),
    )
    return Table("collected", "Units planned and finished", columns, tuple(rows))


def missing(results: Results) -> list[str]:
    """One line per suite with missing units."""
    found = []
    for suite in results.suites.values():
        names = [u.name for u in suite.parts if u.status != "finished"]
        if names:
            found.append(f"{suite.name}: {', '.join(names)}")
    return found
