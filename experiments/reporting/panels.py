"""Panels of curves: one per unit, or several units in one."""

from functools import partial

from experiments.reporting import figures, scores
from experiments.reporting.figures import Absent, Figure, Group
from experiments.reporting.results import Lane, Suite, Unit
from rlx2_jax.reporting.tables import Table

Item = Table | Figure | Absent


def curve_panels(
    suite: Suite,
    units: list[Unit] | None = None,
    *,
    column: str = "mean_return",
    ylabel: str = "return",
    tag: str = "curves",
) -> list[Item]:
    """One panel for each unit."""
    found: list[Item] = []
    for unit in suite.units if units is None else units:
        title = f"{unit.algo.upper()} {unit.env}" + ("" if tag == "curves" else f", {tag}")
        found.append(panel(suite, unit.name, title, [unit], column, ylabel, tag))
    return found


def panel(
    suite: Suite,
    name: str,
    title: str,
    units: list[Unit],
    column: str = "mean_return",
    ylabel: str = "return",
    tag: str = "curves",
) -> Item:
    lines = groups(units)
    status = [f"{u.name} is {u.status}" for u in units if u.status != "finished"]
    if not any(x.evaluations["step"].size for g in lines for x in g.lanes):
        return Absent(title, "; ".join(status) or "no evaluations")
    note = " (unfinished)" if status else ""
    xlabel = "gradient updates" if units[0].kind == "clone" else "environment steps"
    draw = partial(
        figures.curves, lines, title=title + note, ylabel=ylabel, xlabel=xlabel, column=column
    )
    caption = f"{title}{note}: mean over seeds (number in brackets) ± one standard deviation"
    return Figure(f"{suite.name}-{name}-{tag.replace(' ', '-')}", caption, draw)


def groups(units: list[Unit]) -> list[Group]:
    lanes: dict[str, list[Lane]] = {}
    for unit in units:
        for lane in unit.lanes:
            lanes.setdefault(lane.name, []).append(lane)
    return [Group(name, scores.label(name), own) for name, own in lanes.items()]
