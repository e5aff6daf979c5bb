"""A report on run directories, finished or not: scores, sparsities, ledger and learning curves.

Reads `config.json`, `summary.json` and the CSV logs as untrusted input: missing or damaged files
become warnings in the report. Nothing in a run directory is imported or executed.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlx2_jax import files
from rlx2_jax.algorithms import NETWORK_USE
from rlx2_jax.reporting import csvlog, markup, status, tables
from rlx2_jax.reporting.document import document, image
from rlx2_jax.reporting.markup import printable, tag
from rlx2_jax.reporting.tables import Cell, Column, Table, Value
from rlx2_jax.training import logging, summary
from rlx2_jax.training.claim import SUMMARY
from rlx2_jax.training.lane_ledger import lane_ledger
from rlx2_jax.training.run import Run, label, read_run
from rlx2_jax.training.summary import LaneResult

TITLE = "Training report"
_LAST = ("actor_evolutions", "critic_evolutions", "n", "trims", "buffer_length", "alive")
_WRONG = (KeyError, TypeError, ValueError, AttributeError)


class RunReport(NamedTuple):
    """One run directory."""

    name: str
    run: Run
    step: int  # of the last evaluation
    lanes: list[dict[str, Any]]  # rows as in `summary.json`; None for unknown values
    facts: list[str]
    curves: bytes  # PNG
    warnings: list[str]
    status: status.Status

    @property
    def title(self) -> str:
        return printable(f"{self.name}: {self.run.env}, {self.run.config.algo.upper()}")

    @property
    def finished(self) -> bool:
        return self.step >= self.run.config.steps


def read(directory: Path) -> RunReport:
    """Reads everything that is reported about a run directory.

    Raises:
      RunError: the directory has no run.
    """
    warnings: list[str] = []
    # Safe: the environment is never created, so nothing is imported.
    run = read_run(directory, warnings.append, allow_imports=True)
    results = _results(run, directory, warnings)
    lanes, facts = [_row(run, result) for result in results], []
    if (directory / SUMMARY).exists():
        try:
            saved = files.read_json(directory / SUMMARY)
            pairs = zip(lanes, saved["lanes"], strict=True)
            lanes = [row | {k: new[k] for k in row if _is_number(new.get(k))} for row, new in pairs]
            facts = _facts(saved)
        except (files.Damaged, *_WRONG) as error:
            problem = f"{SUMMARY} is not used: {files.first_line(error)}"
            warnings.append(f"{problem}; the scores are computed from {logging.EVALUATIONS}")
    step = max((int(r.history[-1]["step"]) for r in results if r.history), default=0)
    name = directory.resolve().name
    curves, now = summary.plot(run, results), status.read(directory, name)
    return RunReport(name, run, step, lanes, facts, curves, warnings, now)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _results(run: Run, directory: Path, warnings: list[str]) -> list[LaneResult]:
    """The lanes' histories and last metrics, from the logs."""
    names = csvlog.names(directory / logging.METRICS)
    sparsities = [x for x in names if x.startswith(("actor_sparsity/", "critic_sparsity/"))]
    critic = NETWORK_USE[run.config.algo].has_critic
    last = [x for x in _LAST if critic or not x.startswith("critic_")]
    logs = []
    for file, columns in (
        (logging.EVALUATIONS, ("lane", "step", "mean_return")),
        (logging.METRICS, ("lane", "step", *last, *sparsities)),
    ):
        log = csvlog.read(directory / file, columns)
        warnings += log.problems
        logs.append([dict(zip(log.columns, row)) for row in zip(*log.columns.values())])
    results = []
    for i, lane in enumerate(run.lanes):
        history, metrics = ([row for row in rows if row["lane"] == i] for rows in logs)
        results.append(LaneResult(i, lane, history, metrics[-1] if metrics else {}, 0.0))
    return results


def _row(run: Run, result: LaneResult) -> dict[str, Any]:
    """A lane's row as in `summary.json`; None for values that the logs lack."""
    row: dict[str, Any] = summary.scores(result)
    for net in ("actor", "critic"):
        row[f"{net}_sparsity"] = summary.sparsity(result.last, net, run.config)
    for name in _LAST:
        value = result.last.get(name, np.nan)
        row[name] = int(value) if np.isfinite(value) else None
    row["alive"] = row["alive"] != 0
    row["ledger"] = dataclasses.asdict(lane_ledger(run.config, result.lane))
    return row


def _facts(saved: dict[str, Any]) -> list[str]:
    """The duration of a finished run, its machine and versions."""
    seconds, versions = saved.get("training_seconds"), saved.get("versions") or {}
    facts = []
    if isinstance(seconds, int | float):
        facts.append(f"training took {seconds / 60:,.1f} minutes, evaluation excluded")
    if saved.get("processor"):
        facts.append(f"on {printable(saved['processor'])}")
    facts += [f"{printable(k)} {printable(v)}" for k, v in versions.items()]
    if saved.get("git_commit"):
        facts.append(f"commit {printable(saved['git_commit'])[:12]}")
    return facts


def _share(part: float | None) -> Cell:
    return None if part is None else 100.0 * part


def _lane_table(report: RunReport) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for i, (lane, row) in enumerate(zip(report.run.lanes, report.lanes)):
        rows.append(
            (
                printable(label(lane, i)),
                row["final_score"],
                row["evaluations_used"],
                row["best_return"],
                row["last_return"],
                _share(row["actor_sparsity"]),
                _share(row["critic_sparsity"]),
                row["actor_evolutions"],
                row["critic_evolutions"],
                row["n"],
                row["trims"],
                row["buffer_length"],
                "" if row["alive"] else "frozen: a gradient was not finite",
            )
        )
    columns = (
        Column("lane"),
        *(Column(x, "return") for x in ("score", "evaluations", "best", "last")),
        *(Column(x, "sparsity, %") for x in ("actor", "critic")),
        *(Column(x, "mask updates") for x in ("actor", "critic")),
        Column("n", "targets"),
        *(Column(x, "buffer") for x in ("trims", "length")),
        Column("problem"),
    )
    notes = ("The score is the mean of the last 30 evaluations, or of all if there are fewer.",)
    return Table(f"{report.name}-lanes", "Lanes", columns, tuple(rows), notes)


def _method_table(reports: Sequence[RunReport]) -> Table:
    """Scores by run and method, over seeds."""
    rows: list[tuple[Cell, ...]] = []
    for report in reports:
        scores: dict[str, list[float]] = {}
        for lane, row in zip(report.run.lanes, report.lanes):
            scores.setdefault(lane.name or lane.method, []).append(row["final_score"])
        for method, of_seeds in scores.items():
            std = float(np.std(of_seeds, ddof=1)) if len(of_seeds) > 1 else None
            value = Value(float(np.mean(of_seeds)), std, len(of_seeds))
            name, env = printable(report.name), printable(report.run.env)
            progress = f"{report.step:,} of {report.run.config.steps:,}"
            method = printable(method)
            cells = (name, env, report.run.config.algo, method, len(of_seeds), progress, value)
            rows.append(cells)
    columns = (
        *map(Column, ("run", "task", "algorithm", "method", "seeds", "steps")),
        Column("score", spread=True),
    )
    notes = ("Mean over seeds ± sample standard deviation.",)
    return Table("overview", "Scores", columns, tuple(rows), notes)


def _ledger_table(report: RunReport) -> Table:
    """Parameters and FLOPs of each kind of lane."""
    rows: dict[tuple[Cell, ...], None] = {}
    for lane, row in zip(report.run.lanes, report.lanes):
        ledger = row["ledger"]
        relative = ledger["relative"]
        cells = (
            f"{ledger['total_parameters']:,.0f}",
            relative["total_parameters"],
            f"{ledger['train_flops'] / 1e6:,.2f}",
            relative["train_flops"],
            f"{ledger['inference_flops'] / 1e6:,.3f}",
            relative["inference_flops"],
        )
        rows[(printable(lane.name or lane.method), *cells)] = None
    columns = [Column("method")]
    for group, unit in (
        ("parameters", "number"),
        ("training, per update", "MFLOP"),
        ("inference, per action", "MFLOP"),
    ):
        columns += [Column(unit, group), Column("relative to dense", group, digits=3)]
    return Table(f"{report.name}-ledger", "Parameters and FLOPs", tuple(columns), tuple(rows))


def _lead(report: RunReport) -> str:
    steps = report.run.config.steps
    state = "finished" if report.finished else f"unfinished, evaluated up to step {report.step:,}"
    parts = [f"{len(report.run.lanes)} lanes of {steps:,} steps, {state}", *report.facts]
    return "; ".join(parts) + "."


def write(reports: Sequence[RunReport], out: Path) -> tuple[Path, Path]:
    """Writes `report.md`, its curves and the self-contained `index.html`; returns both paths."""
    out.mkdir(parents=True, exist_ok=True)
    first = [status.table([r.status for r in reports]), _method_table(reports)]
    text = markup.markdown
    lines, sections = [f"# {TITLE}", *map(tables.markdown, first)], []
    for i, report in enumerate(reports):
        found = [_lane_table(report), _ledger_table(report)]
        warnings = [printable(w, 1000) for w in report.warnings]
        picture = f"curves-{i}.png"
        files.write_bytes(out / picture, report.curves)
        caption = "Return against environment steps: mean and range over seeds"
        lines += [f"## {text(report.title)}", text(_lead(report))]
        lines += ["\n".join(f"- {text(w)}" for w in warnings)] if warnings else []
        lines += [f"![{caption}]({picture})", *(tables.markdown(x) for x in found)]
        parts = [tag("h2", report.title), tag("p", _lead(report), class_="lead")]
        if warnings:
            parts.append(tag("div", tag("ul", *(tag("li", w) for w in warnings)), class_="warn"))
        shown = tag("figure", image(caption, report.curves), tag("figcaption", caption))
        sections.append(tag("section", *parts, shown, *(tables.html(x) for x in found)))
    markdown, page = out / "report.md", out / "index.html"
    header = tag("header", tag("h1", TITLE), *map(tables.html, first))
    files.write_bytes(markdown, ("\n\n".join(x.rstrip() for x in lines) + "\n").encode())
    files.write_bytes(page, document(TITLE, header, tag("main", *sections)).encode())
    return markdown, page
