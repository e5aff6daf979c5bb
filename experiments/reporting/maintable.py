"""Tables 2 and 7, the curves of figures 9 and 10, and the value error."""

from functools import partial

import numpy as np

from experiments import paper
from experiments.paper.ledger import ledger
from experiments.reporting import figures, percent, scores, stats
from experiments.reporting.figures import Absent, Figure
from experiments.reporting.panels import Item, curve_panels
from experiments.reporting.percent import Percentages, from_paper
from experiments.reporting.results import Suite
from rlx2_jax.reporting.tables import Cell, Column, Table
from rlx2_jax.sparse.accounting import Networks

METHODS = ("tiny", "ss", "set", "rigl", "rlx2")


def make(suite: Suite) -> list[Item]:
    printed = from_paper("table2_std", "method", {m: m for m in METHODS})
    columns = tuple((m, scores.label(m)) for m in METHODS)
    algos = ("td3", "sac")
    title = "Table 2, right: performance in percent of dense"
    spec = Percentages("table2", title, columns, printed, algos)
    with_std = Percentages(
        "table7", "Table 7: the same with standard deviations", columns, printed, algos, True
    )
    found: list[Item] = [percent.table(suite, spec), _sizes(suite), percent.table(suite, with_std)]
    everything = Percentages("", "", (("dense", "Dense"), *columns), printed, algos)
    found.append(percent.aggregate(suite, everything, "table2-aggregate", "Over tasks and seeds"))
    for group in (("td3",), ("sac",), algos):
        rows, tasks = [], set()
        for name, heading in everything.columns:
            strata = percent.percentages(suite, group, name)
            values = [x for one in strata.values() for x in one]
            if values and np.isfinite(values).all():
                tasks |= strata.keys()
                rows.append((heading, stats.iqm(values), stats.bootstrap(strata)))
        share = f"{len(tasks)} of {len(percent.TASKS) * len(group)} tasks"
        title = f"{' and '.join(a.upper() for a in group)}, {share}"
        if not all(percent.whole(suite, group, name) for name, _ in everything.columns):
            title += " (unfinished)"
        key = f"table2-iqm-{'-'.join(group)}"
        note = f"{title}: interquartile mean with its stratified bootstrap interval"
        draw = partial(figures.intervals, rows, title=title)
        found.append(Figure(key, note, draw) if rows else Absent(title, "no percentages"))
    found += curve_panels(suite)
    bias = "Q(s, a) − subsequent return"
    return found + curve_panels(suite, column="value_bias", ylabel=bias, tag="value error")


def _sizes(suite: Suite) -> Table:
    """Table 2's size and FLOPs columns with this run's network sizes and sparsities."""
    kinds = (("total_parameters", "total_size", "total size"),)
    kinds += (("train_flops", "train_flops", "FLOPs (train)"),)
    kinds += (("inference_flops", "inference_flops", "FLOPs (test)"),)
    columns = [Column("model")]
    columns += [Column(x, "actor sparsity", 2) for x in ("ours", "paper")]
    columns += [Column(x, "critic sparsity", 2) for x in ("ours", "paper")]
    columns += [Column(x, title, 3) for _, _, title in kinds for x in ("ours", "paper")]
    rows: list[tuple[Cell, ...]] = []
    for row in paper.load("table2_models"):
        if row["env"] == "average":
            continue
        unit = percent.unit_of(suite, row["algo"], row["env"])
        lane = next((x for x in unit.lanes if x.name == "rlx2"), None) if unit else None
        ratios = actor = critic = None
        if unit and lane and unit.config.get("obs_dim"):
            actor, critic = percent.sparsities(unit, lane)
            sizes = unit.config["obs_dim"], unit.config["action_dim"], unit.hidden
            given = (lane.settings.get(f"{net}_sparsity") or 0.0 for net in ("actor", "critic"))
            ratios = ledger(unit.algo, Networks(*sizes, *given)).relative
        cells: list[Cell] = [f"{row['algo'].upper()} {row['env']}", actor, row["actor_sparsity"]]
        cells += [critic, row["critic_sparsity"]]
        for ours, printed, _ in kinds:
            cells += [getattr(ratios, ours) if ratios else None, row[printed]]
        rows.append(tuple(cells))
    notes = (
        "Ours: the ledger of this run's network sizes and sparsities, at the paper's intervals "
        "and batch size. SAC's training column as printed does not follow from its formula.",
    )
    title = "Table 2, left: size and FLOPs of RLx2 relative to dense"
    return Table("table2-sizes", title, tuple(columns), tuple(rows), notes)
