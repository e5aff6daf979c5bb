"""A directory of sweeps as plain data.

    <logdir>/<suite>/suite.json      the plan
    <logdir>/<suite>/<unit>/         a run directory: config.json, evaluations.csv, ...

Damaged or absent units never raise: they give a warning and count as missing or unfinished. All
text is `printable`.
"""

import json
import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rlx2_jax.presets import task_name
from rlx2_jax.reporting import csvlog
from rlx2_jax.reporting.markup import printable
from rlx2_jax.training.evaluate import final_score
from rlx2_jax.training.run import FORMAT  # shared with suite.json

EVALUATIONS = ("lane", "step", "mean_return", "value_bias", "value_spread")
METRICS = ("lane", "step", "buffer_length", "policy_distance")
WRONG = (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, RecursionError)
WITH_METRICS = ("buffer_trace",)  # suites whose report needs metrics.csv
_SHARED = re.compile(r"\.\./(\w+)/(\w[\w.+=-]*)")  # a unit in another suite's directory


class ReportError(Exception):
    """There is nothing to report; the message gives the reason and a remedy."""


@dataclass(frozen=True)
class Lane:
    """One training run of a unit."""

    index: int
    name: str
    method: str
    seed: int
    settings: dict[str, Any]
    evaluations: dict[str, np.ndarray]  # columns, ascending in step
    metrics: dict[str, np.ndarray]
    finished: bool

    @cached_property
    def score(self) -> float:
        """Mean return of the last evaluations after step 0; nan if there are none."""
        return self._scored[0]

    @property
    def evaluations_used(self) -> int:
        return self._scored[1]

    @cached_property
    def _scored(self) -> tuple[float, int]:
        return final_score(self.evaluations["mean_return"][self.evaluations["step"] > 0])


@dataclass(frozen=True)
class Unit:
    """One run directory of a suite, which may be missing."""

    name: str
    kind: str  # train, or clone
    env: str
    algo: str
    hidden: tuple[int, ...]
    steps: int | None  # of each lane, as run
    status: str  # finished, unfinished, missing
    planned: tuple[tuple[str, int], ...]  # (lane name, seed)
    directory: Path
    config: dict[str, Any] = field(default_factory=dict)  # the run's Config
    lanes: tuple[Lane, ...] = ()
    provenance: dict[str, str] = field(default_factory=dict)  # format, commit, versions
    parts: tuple["Unit", ...] = ()  # the units of a group

    @property
    def task(self) -> str:
        """The environment without its version."""
        return task_name(self.env)

    def named(self, name: str) -> list[Lane]:
        """The lanes of a name with at least one evaluation after step 0."""
        return [lane for lane in self.lanes if lane.name == name and lane.evaluations_used]

    @property
    def names(self) -> list[str]:
        """Names of lanes, planned and found, in order."""
        return list(dict.fromkeys([n for n, _ in self.planned] + [x.name for x in self.lanes]))


@dataclass(frozen=True)
class Suite:
    """One sweep."""

    name: str
    title: str
    budget: dict[str, Any]
    units: tuple[Unit, ...]

    @property
    def parts(self) -> list[Unit]:
        """All run directories, with groups expanded."""
        return [part for unit in self.units for part in unit.parts or (unit,)]


@dataclass(frozen=True)
class Results:
    suites: dict[str, Suite]
    warnings: list[str]


def load(logdir: Path, known: dict[str, str], only: list[str] | None = None) -> Results:
    """All suites in `logdir`, in the order of `known` ({name: title}); `only` selects some."""
    if not logdir.is_dir():
        raise ReportError(f"{logdir} is not a directory: give --logdir the directory of the sweeps")
    for name in ("suite.json", "config.json"):
        if (logdir / name).exists():
            one = "one suite" if name == "suite.json" else "one run"
            raise ReportError(f"{logdir} is the directory of {one}: give --logdir its parent")
    warnings: list[str] = []
    folders = {path.name: path for path in sorted(logdir.iterdir()) if path.is_dir()}
    present = [n for n, path in folders.items() if n in known or (path / "suite.json").exists()]
    present.sort(key=lambda n: (n not in known, [*known].index(n) if n in known else n))
    suites = {}
    for name in present:
        if only is None or name in only:
            if name not in known:
                warnings.append(
                    f"{name} is not one of the paper's suites: only its scores are shown"
                )
            suites[name] = _suite(folders[name], known.get(name, name), warnings)
    return Results(suites, warnings)


def _suite(folder: Path, title: str, warnings: list[str]) -> Suite:
    name = printable(folder.name)
    plan = _json(folder / "suite.json", name, warnings)
    if plan is None:
        plan = {}
    elif plan.get("format") != FORMAT:
        warnings.append(
            f"{name}: suite.json has format {plan.get('format')}, this version reads {FORMAT}: "
            f"its plan is not used"
        )
        plan = {}
    planned = {str(u.get("name")): u for u in _dicts(plan.get("units"))}
    for strange in [x for x in planned if Path(x).name != x or "\0" in x]:
        warnings.append(
            f"{name}: suite.json names a unit {strange!r}, which is not a directory name"
        )
        del planned[strange]
    found = [p.name for p in sorted(folder.iterdir()) if (p / "config.json").exists()]
    for extra in [unit for unit in found if unit not in planned]:
        if planned:
            warnings.append(f"{name}/{extra} is not in the suite's plan")
        planned[extra] = {}
    read = METRICS if name in WITH_METRICS else ()
    units = []
    for unit, own in planned.items():
        try:
            units.append(_unit(folder, unit, own, read, warnings))
        except WRONG as error:
            warnings.append(f"{name}/{unit} is not a run directory ({error!r}): not read")
            units.append(
                Unit(printable(unit), "train", "", "", (), None, "missing", (), folder / unit)
            )
    budget = _printable(plan.get("budget"))
    budget = budget if isinstance(budget, dict) else {}
    groups = [printable(own.get("group") or "") for own in planned.values()]
    return Suite(name, printable(plan.get("title") or title), budget, _grouped(units, groups))


def _grouped(units: list[Unit], groups: list[str]) -> tuple[Unit, ...]:
    """Units, with the units of a group joined."""
    members: dict[str, list[Unit]] = {}
    for unit, group in zip(units, groups):
        members.setdefault(group or unit.name, []).append(unit)
    return tuple(_joined(name, own) if any(groups) else own[0] for name, own in members.items())


def _joined(name: str, parts: list[Unit]) -> Unit:
    """All lanes of the units of a group."""
    states = {unit.status for unit in parts}
    first = next((unit for unit in parts if unit.config), parts[0])
    return replace(
        first,
        name=name,
        steps=max((unit.steps for unit in parts if unit.steps), default=None),
        status=states.pop() if len(states) == 1 else "unfinished",
        planned=tuple(lane for unit in parts for lane in unit.planned),
        lanes=tuple(lane for unit in parts for lane in unit.lanes),
        parts=tuple(parts),
    )


def _unit(
    suite: Path, name: str, plan: dict[str, Any], metrics: tuple[str, ...], warnings: list[str]
) -> Unit:
    folder = suite / name
    if home := _SHARED.fullmatch(str(plan.get("directory"))):
        folder = suite.parent / home[1] / home[2]
    where = f"{suite.name}/{name}"
    lanes_planned = tuple(
        (printable(x.get("name") or x.get("method")), int(x.get("seed", 0)))
        for x in _dicts(plan.get("lanes"))
    )

    def unit(status: str, source: dict[str, Any], **fields: Any) -> Unit:
        config = source.get("config") or source
        return Unit(
            name=printable(name),
            kind=printable(plan.get("kind") or source.get("kind") or _kind(config)),
            env=printable(source.get("env") or plan.get("env") or ""),
            algo=printable(config.get("algo") or plan.get("algo") or ""),
            hidden=tuple(config.get("hidden") or plan.get("hidden") or ()),
            status=status,
            planned=lanes_planned,
            directory=folder,
            config=config,
            **fields,
        )

    if not (folder / "config.json").exists():
        return unit("missing", plan, steps=None)
    source = _json(folder / "config.json", where, warnings)
    if source is None:
        return unit("missing", plan, steps=None)
    number = source.get("format", FORMAT)
    if number != FORMAT:
        warnings.append(
            f"{where}: config.json has format {number}, this version reads {FORMAT}: not read; "
            f"report on it with the version that wrote it"
        )
        return unit("missing", plan, steps=None, provenance={"format": str(number)})
    summary = None
    if (folder / "summary.json").exists():
        summary = _json(folder / "summary.json", where, warnings)
    steps = (source.get("config") or {}).get("steps") or source.get("steps") or plan.get("steps")
    steps = int(steps) if steps else None
    specs = _dicts(source.get("lanes"))
    evaluated = _by_lane(folder / "evaluations.csv", EVALUATIONS, len(specs), where, warnings)
    measured = [{} for _ in specs]
    if metrics:
        measured = _by_lane(folder / "metrics.csv", metrics, len(specs), where, warnings)
    shared = folder.parent != suite and len(lanes_planned) == len(specs)
    lanes = []
    for i, spec in enumerate(specs):
        reached = evaluated[i]["step"].max(initial=0)
        lanes.append(
            Lane(
                index=i,
                # Another suite may have given the lane another name.
                name=lanes_planned[i][0]
                if shared
                else printable(spec.get("name") or spec.get("method")),
                method=printable(spec.get("method")),
                seed=int(spec.get("seed", 0)),
                settings=spec,
                evaluations=evaluated[i],
                metrics=measured[i],
                finished=summary is not None or (steps is not None and reached >= steps),
            )
        )
        if evaluated[i]["step"].size and not np.isfinite(lanes[-1].score):
            label = f"{lanes[-1].name}, seed {lanes[-1].seed}"
            if lanes[-1].evaluations_used:
                warnings.append(f"{where}: the score of lane {i} ({label}) is not finite")
    for row in _dicts((summary or {}).get("lanes")):
        if row.get("alive") is False:
            warnings.append(f"{where}: lane {row.get('lane')} froze, a gradient was not finite")
    return unit(
        "unfinished" if summary is None else "finished",
        source,
        steps=steps,
        lanes=tuple(lanes),
        provenance=_provenance(number, summary),
    )


def _kind(config: dict[str, Any]) -> str:
    return "clone" if config.get("algo") == "bc" else "train"


def _by_lane(
    path: Path, columns: tuple[str, ...], lanes: int, where: str, warnings: list[str]
) -> list[dict[str, np.ndarray]]:
    """A log's columns for each lane, ascending in step; of repeated steps, the later row counts."""
    log = csvlog.read(path, columns)
    problems = list(log.problems)
    number = log.columns["lane"]
    strange = ~np.isin(number, np.arange(lanes))
    if strange.any():
        problems.append(f"{path.name}: {strange.sum()} row(s) of lanes that config.json lacks")
    found = []
    for i in range(lanes):
        rows = np.flatnonzero(number == i)
        # np.unique keeps the first of equal steps; reversed, that is the last one written.
        _, first = np.unique(log.columns["step"][rows[::-1]], return_index=True)
        kept = rows[::-1][first]
        if kept.size < rows.size:
            problems.append(f"{path.name}: lane {i} has steps twice, the later rows count")
        found.append({name: log.columns[name][kept] for name in columns if name != "lane"})
    warnings.extend(f"{where}: {problem}" for problem in problems)
    return found


def _provenance(number: Any, summary: dict[str, Any] | None) -> dict[str, str]:
    found = {"format": str(number)}
    if summary is not None:
        versions = summary.get("versions")
        versions = versions if isinstance(versions, dict) else {}
        found |= {printable(k): printable(v) for k, v in versions.items()}
        if "git_commit" in summary:
            found["git commit"] = printable(summary["git_commit"])[:12]
    return found


def _json(path: Path, where: str, warnings: list[str]) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        warnings.append(f"{where}: {path.name} is missing")
        return None
    except (ValueError, RecursionError) as error:
        warnings.append(f"{where}: {path.name} is not valid JSON ({error}): not read")
        return None
    if not isinstance(value, dict):
        warnings.append(f"{where}: {path.name} is not a JSON object: not read")
        return None
    return value


def _printable(value: Any) -> Any:
    """A JSON value with printable strings."""
    if isinstance(value, dict):
        return {printable(k): _printable(v) for k, v in value.items()}
    return printable(value) if isinstance(value, str | list) else value


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [x for x in value if isinstance(x, dict)] if isinstance(value, list) else []
