"""Figures with one panel each, so that a page can stack them on a narrow screen.

Colours are Okabe and Ito's colour-blind-safe palette; lines also differ in dashes and markers.
Legends are below the axes, where they hide nothing.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import EngFormatter, MaxNLocator

from experiments.reporting.results import Lane
from experiments.reporting.stats import Interval
from rlx2_jax.reporting import markup

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 1)), "-", "--")
MARKERS = "sDv^PXo*"
METHODS = {"dense": 6, "rlx2": 1, "rigl": 0, "set": 2, "ss": 3, "tiny": 4, "rigl+q*": 5}
# Lanes that stand in for a method, and tickets the same in every panel.
METHODS |= {"rigl mask": 0, "rlx2 mask": 1}
METHODS |= {"random ticket": 0, "dynamic ticket": 1, "winning ticket": 2}
WIDTH, HEIGHT, DPI = 4.3, 3.1, 160
KINDS = ("png", "svg")
# No date or version, so that files are reproducible.
_METADATA: dict[str, Any] = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}
_SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "text.parse_math": False,  # titles and labels contain names from logs
    "svg.hashsalt": "rlx2_jax",  # reproducible files
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclass(frozen=True)
class Figure:
    """A figure: `draw` draws it, `key` names its files."""

    key: str  # a `markup.slug`
    title: str
    draw: Callable[[], Canvas]

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", markup.slug(self.key))


@dataclass(frozen=True)
class Absent:
    """A placeholder that explains why a figure is missing."""

    title: str
    reason: str


class Style(NamedTuple):
    colour: str
    dashes: Any
    marker: str


class Group(NamedTuple):
    """Lanes drawn as one line."""

    name: str
    label: str
    lanes: Sequence[Lane]


def save(figure: Figure, folder: Path, stamp: str = "", kinds: Sequence[str] = KINDS) -> list[Path]:
    """Writes `<key>.<kind>` for each kind, with `stamp` in a corner."""
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)  # in a name
        canvas = figure.draw()
        canvas.text(0.99, 0.99, stamp, ha="right", va="top", fontsize=6, color="0.4")
        paths = [folder / f"{figure.key}.{kind}" for kind in kinds]
        for path in paths:
            canvas.savefig(path, dpi=DPI, metadata=_METADATA[path.suffix])
    return paths


def curves(
    groups: Sequence[Group],
    *,
    title: str,
    ylabel: str = "return",
    xlabel: str = "environment steps",
    column: str = "mean_return",
) -> Canvas:
    """Mean over seeds ± one standard deviation, against steps."""
    canvas, (axes,) = new_canvas(title, [_label(g) for g in groups])
    styles = styles_of(g.name for g in groups)
    for group in groups:
        draw_line(axes, group, styles[group.name], [x.evaluations for x in group.lanes], column)
    if column == "value_bias":
        axes.axhline(0, color="0.4", lw=0.8)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    add_legend(canvas, axes)
    return canvas


def traces(groups: Sequence[Group], *, title: str, threshold: float | None) -> Canvas:
    """Buffer length above, policy distance below, against steps."""
    canvas, (top, bottom) = new_canvas(title, [_label(g) for g in groups], rows=2)
    styles = styles_of(g.name for g in groups)
    panels = ((top, "buffer_length", "transitions"), (bottom, "policy_distance", "policy distance"))
    for axes, column, ylabel in panels:
        for group in groups:
            draw_line(axes, group, styles[group.name], [x.metrics for x in group.lanes], column)
        axes.set_ylabel(ylabel)
    top.yaxis.set_major_formatter(EngFormatter(sep=""))
    top.set_ylim(bottom=0)
    top.tick_params(labelbottom=False)
    if threshold is not None:
        bottom.axhline(threshold, color="0.4", lw=0.8)
        bottom.annotate(
            f"D₀ = {threshold:g}",
            (1, threshold),
            xycoords=("axes fraction", "data"),
            xytext=(-2, 2),
            textcoords="offset points",
            ha="right",
            fontsize=8,
        )
    bottom.set_xlabel("environment steps")
    add_legend(canvas, top)
    return canvas


class Point(NamedTuple):
    x: float
    mean: float
    std: float | None


def lines(
    series: dict[str, list[Point]], *, title: str, xlabel: str, ylabel: str, level: float | None
) -> Canvas:
    """One line of means with error bars per name; `level` is a horizontal reference."""
    canvas, (axes,) = new_canvas(title, list(series))
    styles = styles_of(series)
    for name, points in series.items():
        colour, dash, marker = styles[name]
        axes.errorbar(
            [p.x for p in points],
            [p.mean for p in points],
            yerr=[p.std or 0.0 for p in points],
            color=colour,
            ls=dash,
            lw=1.5,
            marker=marker,
            ms=4,
            capsize=2,
            label=name,
        )
    if level is not None:
        axes.axhline(level, color="0.4", lw=0.8)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    add_legend(canvas, axes)
    return canvas


def intervals(rows: Sequence[tuple[str, float, Interval | None]], *, title: str) -> Canvas:
    """A mark for each row, and a bar for its interval if it has one."""
    height = 1 + 0.3 * len(rows)
    canvas = Canvas(figsize=(WIDTH, height))
    axes = canvas.add_axes((0.2, 0.5 / height, 0.76, 1 - 0.95 / height))
    styles = styles_of(name for name, _, _ in rows)
    for i, (name, value, interval) in enumerate(rows):
        colour = styles[name].colour
        if interval is not None:
            axes.plot(interval, (i, i), color=colour, lw=7, alpha=0.35, solid_capstyle="butt")
        axes.plot([value], [i], "o", color=colour, ms=5)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.axvline(100, color="0.4", lw=0.8)
    axes.set(title=title, xlabel="IQM, % of dense, and its 95 % interval")
    axes.grid(axis="x", alpha=0.3)
    return canvas


def new_canvas(title: str, labels: Sequence[str], rows: int = 1) -> tuple[Canvas, list[Axes]]:
    """Axes with a title above and room for a legend below."""
    below = 0.55 + 0.2 * -(-len(labels) // _columns(labels))
    height = below + 0.45 + (HEIGHT - 1.1) * (1 if rows == 1 else 1.45)
    canvas = Canvas(figsize=(WIDTH, height))
    panels = canvas.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    canvas.subplots_adjust(0.15, below / height, 0.97, 1 - 0.42 / height, hspace=0.12)
    panels[0].set_title(title)
    for axes in panels:
        axes.grid(alpha=0.3)
    return canvas, list(panels)


def add_legend(canvas: Canvas, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        ncols = _columns(labels)
        canvas.legend(handles, labels, loc="lower center", ncols=ncols, frameon=False, fontsize=8)


def _columns(labels: Sequence[str]) -> int:
    return 3 if max(map(len, labels), default=0) <= 15 else 2


def _label(group: Group) -> str:
    seeds = sum(lane.evaluations["step"].size > 0 for lane in group.lanes)
    return f"{group.label} ({seeds})"


def draw_line(axes: Axes, group: Group, style: Style, logs: list[dict], column: str) -> None:
    """The mean and spread where all seeds have data, and thin lines for the remaining seeds."""
    colour, dash, marker = style
    logs = [log for log in logs if log["step"].size]
    if not logs:
        return
    steps = logs[0]["step"]
    for log in logs[1:]:
        steps = np.intersect1d(steps, log["step"])
    own = np.array([log[column][np.isin(log["step"], steps)] for log in logs])
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if not any(np.isfinite(log[column]).any() for log in logs):
        axes.plot([], [], color=colour, ls=dash, label=f"{group.label} (none)")
        return
    if steps.size:
        mean = own.mean(axis=0)
        every = max(1, steps.size // 8)
        long = steps.size >= 200  # noise hides dashes
        axes.plot(
            steps,
            mean,
            color=colour,
            ls="-" if long else dash,
            lw=1 if long else 1.4,
            marker=marker,
            ms=3.5,
            markevery=(every // 2, every),
            label=_label(group),
        )
        if len(logs) > 1:
            std = own.std(axis=0, ddof=1)
            axes.fill_between(steps, mean - std, mean + std, color=colour, alpha=0.12, lw=0)
    for log in logs:
        alone = log["step"] >= (steps[-1] if steps.size else -1)
        if alone.sum() > 1 or not steps.size:
            axes.plot(log["step"][alone], log[column][alone], color=colour, lw=0.6)


def styles_of(names: Iterable[str]) -> dict[str, Style]:
    """Colour, dashes and marker: fixed for methods, the remaining ones for other names."""
    names = list(names)
    used = {METHODS[n.lower()] for n in names if n.lower() in METHODS}
    free = [i for i in range(len(COLOURS)) if i not in used] or [*range(len(COLOURS))]
    others = [n for n in names if n.lower() not in METHODS]
    place = {n: free[k % len(free)] for k, n in enumerate(others)}
    chosen = {n: place.get(n, METHODS.get(n.lower(), 0)) for n in names}
    return {n: Style(COLOURS[i], DASHES[i], MARKERS[i]) for n, i in chosen.items()}
