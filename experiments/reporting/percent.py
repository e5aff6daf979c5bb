"""The paper's tables of percentages, next to this run's."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from experiments import paper
from experiments.reporting import stats
from experiments.reporting.results import Lane, Suite, Unit
from experiments.reporting.scores import Scale, average, label
from rlx2_jax.reporting.tables import Cell, Column, Table, Value
from rlx2_jax.sparse import accounting

TASKS = ("HalfCheetah", "Hopper", "Walker2d", "Ant")


@dataclass(frozen=True)
class Percentages:
    """One table of the paper: lanes by name in columns, tasks in rows."""

    key: str
    title: str
    columns: tuple[tuple[str, str], ...]  # (lane name, heading)
    printed: Mapping[tuple[str, str, str], Value]  # by algorithm, task (or "average") and lane name
    algos: tuple[str, ...] = ("td3",)
    spread: bool = False


def from_paper(
    name: str, field: str, lanes: Mapping[str, object]
) -> dict[tuple[str, str, str], Value]:
    """The paper's percentages; `lanes` maps lane names to the values of the CSV's `field`."""
    found = {}
    for row in paper.load(name):
        for lane, value in lanes.items():
            if row[field] == value:
                key = str(row.get("algo", "td3")), str(row["env"]), lane
                found[key] = Value(float(row["performance"]), row.get("std"))
    return found


def unit_of(suite: Suite, algo: str, task: str) -> Unit | None:
    """The unit of a task, if the suite has one."""
    return next((u for u in suite.units if (u.algo, u.task) == (algo, task)), None)


def table(suite: Suite, spec: Percentages) -> Table:
    """Tasks in rows; for each lane name this run's percentage and the paper's."""
    scale = Scale(suite)
    style = {"spread": spec.spread}
    columns = [Column("task")]
    for _, heading in spec.columns:
        columns += [Column("ours", heading, **style), Column("paper", heading, **style)]
    names = [name for name, _ in spec.columns]
    ours = {
        (algo, task, name): scale.value(unit_of(suite, algo, task), name)
        for algo in spec.algos
        for task in TASKS
        for name in names
    }

    def line(algos: Sequence[str], task: str) -> tuple[Cell, ...]:
        """The row of a task, or of an average over all tasks of `algos`."""
        cells: list[Cell] = []
        whose = algos[0] if len(algos) == 1 else "average"
        for name in names:
            if task == "average":
                cells.append(average(ours[a, t, name] for a in algos for t in TASKS))
            else:
                cells.append(ours[algos[0], task, name])
            cells.append(spec.printed.get((whose, task, name), "not printed"))
        head = f"{whose.upper()} " if many and len(algos) == 1 else ""
        return (f"{head}{task}", *cells)

    many = len(spec.algos) > 1
    rows = [line((algo,), task) for algo in spec.algos for task in (*TASKS, "average")]
    if many:
        rows.append(line(spec.algos, "average"))
    return Table(spec.key, spec.title, tuple(columns), tuple(rows), tuple(raw_notes(suite)))


def aggregate(suite: Suite, spec: Percentages, key: str, title: str) -> Table:
    """Mean, IQM and its stratified bootstrap interval over tasks and seeds, per lane name."""
    rows: list[tuple[Cell, ...]] = []
    many = len(spec.algos) > 1
    groups = [*((a,) for a in spec.algos), *([spec.algos] if many else [])]
    for algos in groups:
        for name, heading in spec.columns:
            strata = percentages(suite, algos, name)
            printed = spec.printed.get(
                (algos[0] if len(algos) == 1 else "average", "average", name)
            )
            rows.append(
                (
                    f"{'+'.join(a.upper() for a in algos)} {heading}" if many else heading,
                    *pooled(strata, len(TASKS) * len(algos), whole(suite, algos, name)),
                    printed.mean if printed else "not printed",
                )
            )
    names = ("tasks", "runs", "mean over tasks", "std", "IQM", "95 % interval of the IQM")
    notes = (
        "Percent of dense. IQM: mean of the middle half of all runs; its interval by resampling "
        f"seeds within each task, {stats.REPLICATES} times, with the dense mean held fixed. "
        "No interval if a task has a single seed.",
    )
    columns = (Column("lanes"), *(Column(n) for n in names), Column("paper, mean"))
    return Table(key, title, columns, tuple(rows), notes)


def percentages(suite: Suite, algos: Sequence[str], name: str) -> dict[str, list[float]]:
    """{unit: percentages of its seeds}, for all tasks with percentages."""
    scale, found = Scale(suite), {}
    for algo in algos:
        for task in TASKS:
            unit = unit_of(suite, algo, task)
            lanes = unit.named(name) if unit else []
            values = scale.percent(unit, lanes) if unit and lanes else None
            if values:
                found[f"{algo}-{task}"] = values
    return found


def whole(suite: Suite, algos: Sequence[str], name: str) -> bool:
    """Whether all runs of a name, and the dense runs, have completed all steps."""
    units = [unit_of(suite, algo, task) for algo in algos for task in TASKS]
    return all(x.finished for u in units if u for n in (name, "dense") for x in u.named(n))


def pooled(strata: Mapping[str, Sequence[float]], tasks: int, whole: bool) -> list[Cell]:
    """Tasks, runs (marked unless all are complete), mean, spread, IQM and interval."""
    values = [x for one in strata.values() for x in one]
    if not values:
        return [f"0 of {tasks}", "0", None, None, None, None]
    finite = all(math.isfinite(x) for x in values)
    interval = stats.bootstrap(strata) if finite else None
    return [
        f"{len(strata)} of {tasks}",
        f"{len(values)}" + ("" if whole else " †"),
        fmean(fmean(one) for one in strata.values()),
        _or("one run", stats.spread(values)),
        stats.iqm(values) if finite else math.nan,
        f"{interval.low:.1f} to {interval.high:.1f}" if interval else "none",
    ]


def raw_notes(suite: Suite) -> list[str]:
    """Why some units are not in percent."""
    scale = Scale(suite)
    units = [u for u in suite.units if any(lane.evaluations_used for lane in u.lanes)]
    found = [scale.why_raw(unit) for unit in units]
    return [f"{note}: raw returns are shown." for note in dict.fromkeys(found) if note]


def _or(text: str, value: float | None) -> Cell:
    return text if value is None else value


def scores(suite: Suite) -> Table:
    """All statistics of every group of seeds, existing or planned."""
    scale = Scale(suite)
    rows: list[tuple[Cell, ...]] = []
    for unit in suite.units:
        for name, lanes, extra in _groups(unit):
            head = f"{unit.name}: {label(name)}{extra}"
            wanted = sum(n == name for n, _ in unit.planned)
            of = f"{len(lanes)} of {wanted}" if wanted and not extra else f"{len(lanes)}"
            if not lanes:
                rows.append((head, of, *[None] * 7))
                continue
            values = [lane.score for lane in lanes]
            used = sorted({lane.evaluations_used for lane in lanes})
            steps = sorted({int(lane.evaluations["step"].max()) for lane in lanes})
            interval = stats.bootstrap({"": values}) if all(map(math.isfinite, values)) else None
            value = scale.value(unit, name, lanes)
            rows.append(
                (
                    head,
                    of,
                    _range(steps) + ("" if all(x.finished for x in lanes) else " †"),
                    _range(used),
                    fmean(values),
                    _or("one seed", stats.spread(values)),
                    stats.iqm(values),
                    f"{interval.low:.1f} to {interval.high:.1f}" if interval else "none",
                    value if value and "‡" not in value.marks else "no dense",
                )
            )
    columns = (
        Column("unit: lanes"),
        Column("seeds"),
        Column("steps"),
        Column("evaluations used"),
        *(Column(x, "return") for x in ("mean", "std", "IQM", "95 % interval of the IQM")),
        Column("% of dense", spread=True),
    )
    notes = (
        "Score of a seed: mean return of its last 30 evaluations after step 0, or of as many as "
        "there are.",
    )
    title = f"{suite.name}: scores of all lanes"
    return Table(f"{suite.name}-scores", title, columns, tuple(rows), notes, folded=True)


def _groups(unit: Unit) -> list[tuple[str, list, str]]:
    """(name, lanes, distinguishing suffix): lanes of one name, split by sparsity."""
    found = []
    for name in unit.names:
        lanes = unit.named(name)
        levels = dict.fromkeys(sparsities(unit, lane) for lane in lanes)
        for level in levels if len(levels) > 1 else [None]:
            own = [x for x in lanes if level is None or sparsities(unit, x) == level]
            extra = f" {100 * level[0]:.4g}/{100 * level[1]:.4g}" if level else ""
            found.append((name, own, extra))
    return found


def sparsities(unit: Unit, lane: Lane) -> tuple[float, float]:
    """A lane's actor and critic sparsity; overall, if layers differ."""
    obs, action = (int(unit.config.get(k) or 1) for k in ("obs_dim", "action_dim"))
    heads = 2 if unit.algo == "sac" else 1
    nets = {"actor": (obs, *unit.hidden, heads * action), "critic": (obs + action, *unit.hidden, 1)}
    one, two = (
        accounting.overall_sparsity(sizes, lane.settings.get(f"{net}_sparsity") or 0.0)
        for net, sizes in nets.items()
    )
    return one, two


def _range(values: list[int]) -> str:
    one = f"{values[0]:,}"
    return one if len(values) == 1 else f"{one} to {values[-1]:,}"
