"""The paper's figures, and Humanoid's table."""

import re
from functools import partial
from pathlib import Path

import numpy as np

from experiments import paper
from experiments.paper.ledger import ledger
from experiments.reporting import figures, maskimages, percent, scores
from experiments.reporting.figures import Absent, Figure, Group, Point
from experiments.reporting.panels import Item, groups, panel
from experiments.reporting.results import Lane, Suite, Unit
from experiments.reporting.scores import Scale, label
from rlx2_jax import archive
from rlx2_jax.reporting.tables import Cell, Column, Table, Value
from rlx2_jax.sparse.accounting import Networks

_MASK = re.compile(r"(actor|critic)/mask/(.+)/kernel")


def toy(suite: Suite) -> list[Item]:
    """Figure 2: all lanes of both units in one panel."""
    units = list(suite.units)
    if not units:
        return [Absent("InvertedPendulum", "no unit")]
    title = f"{units[0].algo.upper()} {units[0].env}"
    return [panel(suite, "all", title, units)]


def sparsity(suite: Suite) -> list[Item]:
    """Figure 5: performance against sparsity, one line per method."""
    found: list[Item] = []
    rows: list[tuple[Cell, ...]] = []
    names = list(dict.fromkeys(n for u in suite.units for n in u.names if n != "dense"))
    scale = Scale(suite)
    for unit in suite.units:
        lines, cells = _levels(unit, names, scale)
        rows += cells
        title = f"{unit.algo.upper()} {unit.env}"
        if not any(lines.values()):
            found.append(Absent(title, f"{unit.name} is {unit.status}"))
            continue
        raw = scale.dense(unit) is None
        draw = partial(
            figures.lines,
            {name: points for name, points in lines.items() if points},
            title=title + ("" if unit.status == "finished" else " (unfinished)"),
            xlabel="absent links of all networks, %",
            ylabel="return" if raw else "% of dense",
            level=None if raw else 100.0,
        )
        caption = f"{title}: mean over seeds ± one standard deviation; the line is dense"
        found.append(Figure(f"sparsity-{unit.name}", caption, draw))
    columns = [Column("unit"), *(Column(x, "sparsity, %") for x in ("actor", "critic", "all"))]
    columns += [Column(label(n), "% of dense", spread=True) for n in names]
    title = "Figure 5: performance by sparsity, percent of dense"
    notes = tuple(percent.raw_notes(suite))
    return [*found, Table("figure5", title, tuple(columns), tuple(rows), notes)]


def _levels(
    unit: Unit, names: list[str], scale: Scale
) -> tuple[dict[str, list[Point]], list[tuple[Cell, ...]]]:
    """A unit's lines by label, and its table rows by sparsity."""
    wanted = [lane for lane in unit.lanes if lane.name != "dense"]
    levels = sorted({percent.sparsities(unit, lane) for lane in wanted})
    lines: dict[str, list[Point]] = {label(n): [] for n in names}
    rows: list[tuple[Cell, ...]] = []
    for level in levels:
        total = _total_sparsity(unit, level)
        cells: list[Cell] = []
        for name in names:
            own = [x for x in unit.named(name) if percent.sparsities(unit, x) == level]
            value = _level_value(unit, name, own, scale, len(levels))
            cells.append(value)
            if value is not None and total is not None:
                lines[label(name)].append(Point(100 * total, value.mean, value.std))
        share = None if total is None else 100 * total
        rows.append((unit.name, 100 * level[0], 100 * level[1], share, *cells))
    return lines, rows


def _level_value(unit: Unit, name: str, own: list[Lane], scale: Scale, levels: int) -> Value | None:
    """A value whose mark for missing seeds counts the seeds of this sparsity only."""
    value = scale.value(unit, name, own) if own else None
    if value is None:
        return None
    few = len(own) * levels < scores.planned(unit, name)
    return value._replace(marks=value.marks.replace("§", "") + "§" * few)


def _total_sparsity(unit: Unit, level: tuple[float, float]) -> float | None:
    config = unit.config
    if not (config.get("obs_dim") and config.get("action_dim")):
        return None
    sizes = config["obs_dim"], config["action_dim"], unit.hidden
    run = ledger(unit.algo, Networks(*sizes, *level), method="ss")
    return 1 - run.relative.total_parameters


def masks(suite: Suite) -> list[Item]:
    """Figures 3 and 8: the retrained lanes; the searches follow."""
    ours = sorted(suite.units, key=lambda u: not u.name.endswith("-retrain"))
    return [
        panel(suite, unit.name, f"{unit.env}, {unit.name.rpartition('-')[2]}", [unit])
        for unit in ours
    ]


def tickets(suite: Suite) -> list[Item]:
    """Figures 7 and 12: one panel per task for reinforcement learning and for cloning."""
    found: list[Item] = []
    for task in dict.fromkeys(u.name.rpartition("-")[0] for u in suite.units):
        units = [u for u in suite.units if u.name.rpartition("-")[0] == task]
        for kind, name in (("train", "RL"), ("clone", "BC")):
            own = [u for u in units if u.kind == kind]
            if own:
                title = f"{name}: {own[0].env}"
                found.append(panel(suite, f"{task}-{name.lower()}", title, own))
    return found


def humanoid(suite: Suite) -> list[Item]:
    """Table 14 and figure 11."""
    printed = {(r["hidden"], r["method"]): r for r in paper.load("humanoid")}
    widths = list(dict.fromkeys(width for width, _ in printed))
    units = {
        u.name: u for u in suite.units
    }  # with a small budget, layers are narrower than the name says
    columns, rows = [Column("method")], []
    for width in widths:
        columns += [Column(x, f"{width} hidden units", spread=True) for x in ("ours", "paper")]
    for method in dict.fromkeys(method for _, method in printed):
        cells: list[Cell] = [label(method)]
        for width in widths:
            row = printed[width, method]
            cells.append(scores.returns(units.get(f"humanoid-{width}"), method))
            cells.append(Value(row["mean_return"], row["std"]))
        rows.append(tuple(cells))
    title = "Table 14, top: returns in Humanoid, with standard deviations"
    notes = ("The paper prints the same numbers for Tiny at both widths.",)
    panels = [
        panel(suite, u.name, f"{u.env}, {'x'.join(map(str, u.hidden))}", [u]) for u in suite.units
    ]
    return [Table("table14", title, tuple(columns), tuple(rows), notes), *panels]


def traces(suite: Suite) -> list[Item]:
    """Figure 4."""
    found: list[Item] = []
    for unit in suite.units:
        title = f"{unit.algo.upper()} {unit.env}"
        own: list[Group] = groups([unit])
        if not any(lane.metrics["step"].size for g in own for lane in g.lanes):
            found.append(Absent(title, f"{unit.name} is {unit.status}"))
            continue
        limits = {lane.settings.get("d0") for lane in unit.lanes if lane.name == "dynamic"}
        limit = limits.pop() if len(limits) == 1 else None
        note = "" if unit.status == "finished" else " (unfinished)"
        draw = partial(figures.traces, own, title=title + note, threshold=limit)
        caption = f"{title}{note}: buffer length and policy distance, mean over seeds (number)"
        found.append(Figure(f"{suite.name}-{unit.name}", caption, draw))
    return found


def mask_figures(suite: Suite) -> list[Item]:
    """Figures 13 and 14: of each unit's first lane."""
    found: list[Item] = []
    for unit in suite.units:
        first, last = (
            _masks(unit.directory / when / "lane-0.npz") for when in ("initial", "final")
        )
        layers = list(dict.fromkeys([*first, *last]))
        if not layers:
            found.append(Absent(f"masks of {unit.name}", f"{unit.name} is {unit.status}"))
            continue
        first_layers = {_network(layer): layer for layer in reversed(layers)}
        for layer in reversed(first_layers.values()):
            found.append(_mask_item(unit, layer, "connections", first, last))
        for layer in layers:
            found.append(_mask_item(unit, layer, "mask", first, last))
    return found


def _mask_item(
    unit: Unit, layer: str, kind: str, first: dict[str, np.ndarray], last: dict[str, np.ndarray]
) -> Figure:
    seed = unit.lanes[0].seed if unit.lanes else 0
    net = _network(layer)
    own = layer.removeprefix(f"{net}/")
    number = own.removeprefix("Dense_")  # of an MLP
    title = f"layer {int(number) + 1}" if number.isdigit() else own
    name = f"{net.replace('/', ' ')}, {title}"
    pair = first.get(layer), last.get(layer)
    key = f"mask_figures-{unit.name}-{kind}-{layer.replace('/', '-')}"
    head = f"{unit.env}, seed {seed}: {name}"
    if kind == "mask":
        text = f"{head}: links in black"
        return Figure(key, text, partial(maskimages.mask_images, *pair, title=head))
    text = f"{head}: links from each input dimension"
    return Figure(key, text, partial(maskimages.connections, *pair, title=head))


def _network(layer: str) -> str:
    """The network of a layer: "actor", "critic/q1", ..."""
    parts = layer.split("/")
    return "/".join(parts[: 1 if parts[0] == "actor" else 2])


def _masks(path: Path) -> dict[str, np.ndarray]:
    """{"actor/Dense_0": mask [in, out], ...}; {} if the file is missing or damaged."""
    try:
        arrays = archive.read(path)
    except ValueError:
        return {}
    return {
        f"{m[1]}/{m[2]}": np.asarray(array, bool)
        for key, array in arrays.items()
        if (m := _MASK.fullmatch(key)) and array.ndim == 2
    }
