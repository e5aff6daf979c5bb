"""The results section of the main README: one table and one figure."""

from dataclasses import replace
from functools import partial

from matplotlib.figure import Figure as Canvas

from experiments.reporting import evidence, exhibits, figures, percent, scores
from experiments.reporting.figures import Figure, Group
from experiments.reporting.maintable import METHODS
from experiments.reporting.panels import groups
from experiments.reporting.percent import TASKS, from_paper
from experiments.reporting.results import Results, Suite, Unit
from rlx2_jax.reporting import markup
from rlx2_jax.reporting.tables import MARKS, Value, number

SHOWN = METHODS[::-1]  # rlx2 first
PAGE = "results/README.md"
_TITLE = "TD3: return against environment steps, mean over seeds ± one standard deviation"


def text(results: Results, picture: str) -> str:
    """Markdown of the main table with TD3; `picture` is the path of its figure."""
    suite = results.suites.get("table2")
    if suite is None or "td3" not in evidence.algorithms(suite):
        return f"No finished run of the main table has been collected yet; see [{PAGE}]({PAGE})."
    suite = replace(suite, units=tuple(u for u in suite.units if u.algo == "td3"))
    scale = scores.Scale(suite)
    printed = from_paper("table2_std", "method", {m: m for m in METHODS})
    head = ["task", "Dense, return", *(f"{scores.label(m)}, %" for m in SHOWN)]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    ours: dict[str, list[Value | None]] = {}
    for task in TASKS:
        unit = percent.unit_of(suite, "td3", task)
        dense = scores.returns(unit, "dense")
        ours[task] = [scale.value(unit, m) for m in SHOWN]
        cells = [_cell(x, printed.get(("td3", task, m))) for x, m in zip(ours[task], SHOWN)]
        lines.append([task, dense.text(0, spread=True) if dense else "missing", *cells])
    means, middles = ["mean over tasks", ""], ["IQM (95 % interval)", ""]
    for m, values in zip(SHOWN, zip(*ours.values())):
        means.append(_cell(scores.average(values), printed.get(("td3", "average", m))))
        strata = percent.percentages(suite, ("td3",), m)
        *_, iqm, interval = percent.pooled(strata, len(TASKS), whole=True)
        middles.append(f"{number(iqm, 1)} ({interval})" if isinstance(iqm, float) else "missing")
    lines += [means, middles]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    marks = "".join(f" {mark}: {text}." for mark, text in MARKS.items() if mark in table)
    note = (
        "TD3 in percent of the dense score, the paper's in brackets. "
        f"{markup.markdown(exhibits.difference(suite))} A score is the mean of the last 30 "
        "evaluations, or of all if there are fewer."
        f"{marks} [{PAGE}]({PAGE}) has all results: returns, intervals, ablations, speed, and "
        "limitations."
    )
    return f"{table}\n\n{note}\n\n![{_TITLE}]({picture})"


def _cell(ours: Value | None, paper: Value | None) -> str:
    if ours is None:
        return "missing" + (f" ({paper.mean:.1f})" if paper else "")
    found = ours._replace(note="").text(1, spread=False)
    found += f" ({paper.mean:.1f})" if paper else ""
    return found + (f", {ours.note.strip('()')}" if ours.note else "")


def figure(results: Results, key: str) -> Figure | None:
    """Learning curves of the main table with TD3, one panel per task; None if there are none."""
    suite = results.suites.get("table2")
    units = _units(suite) if suite else []
    if suite is None or not units:
        return None
    return Figure(key, _TITLE, partial(_curves, units))


def _units(suite: Suite) -> list[Unit]:
    found = [percent.unit_of(suite, "td3", task) for task in TASKS]
    return [u for u in found if u and any(lane.evaluations_used for lane in u.lanes)]


def _curves(units: list[Unit]) -> Canvas:
    """Panels in two columns with a shared legend."""
    rows, columns = -(-len(units) // 2), min(len(units), 2)
    canvas = Canvas(figsize=(4.3 * columns, 2.6 * rows + 0.6), layout="constrained")
    panels = canvas.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[len(units) :]:
        axes.set_visible(False)
    styles = figures.styles_of(evidence.ALL)
    handles = {}
    for axes, unit in zip(panels, units):
        own = {group.name: group for group in groups([unit])}
        for name in evidence.ALL:
            lanes = own.get(name, Group(name, scores.label(name), [])).lanes
            group = Group(name, scores.label(name), lanes)
            logs = [lane.evaluations for lane in lanes]
            figures.draw_line(axes, group, styles[name], logs, "mean_return")
        axes.set(title=unit.env, xlabel="environment steps", ylabel="return")
        axes.grid(alpha=0.3)
        for handle, label in zip(*axes.get_legend_handles_labels()):
            handles.setdefault(label.partition(" (")[0], handle)
    names = [scores.label(m) for m in evidence.ALL if scores.label(m) in handles]
    lines = [handles[name] for name in names]
    canvas.legend(lines, names, loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    return canvas
