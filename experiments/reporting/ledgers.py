"""The ledger's tables (appendix C.3): computed and printed sizes and FLOPs."""

from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np

from experiments import paper
from experiments.paper.ledger import ledger
from experiments.reporting.scores import label
from rlx2_jax.reporting.tables import Cell, Column, Table
from rlx2_jax.sparse.accounting import Networks, Ratios

HIDDEN = (256, 256)
N_STEP = {"td3": 3, "sac": 2}
_RATIOS = (
    ("total_parameters", "total_size", "total size"),
    ("train_flops", "train_flops", "FLOPs (train)"),
    ("inference_flops", "inference_flops", "FLOPs (test)"),
)
_SAC_NOTE = (
    "SAC's training column as printed does not follow from table 5's formula, which is what ours "
    'is: against a dense run with 1-step targets, and under "same n" against one with SAC\'s '
    "2-step targets."
)


def flops_tables() -> list[Table]:
    """All ledger tables, without training."""
    return [_table2(), _table5(), _table6(), _table14()]


def sizes() -> dict[str, tuple[int, int]]:
    """Observation and action sizes of the paper's (-v3) tasks."""
    return {r["env"]: (r["obs_dim"], r["action_dim"]) for r in paper.load("environments")}


def _table2() -> Table:
    columns = [Column("model"), Column("actor", "sparsity", 2), Column("critic", "sparsity", 2)]
    for _, name, title in _RATIOS:
        columns += [Column(x, title, 3) for x in ("ours", "paper", "difference")]
        if name == "train_flops":
            columns.append(Column("ours, same n", title, 3))
    rows: list[tuple[Cell, ...]] = []
    printed = paper.load("table2_models")
    means: dict[str, list[list[float]]] = {}
    for row in printed:
        if row["env"] == "average":
            values = means.get(row["algo"]) or [x for own in means.values() for x in own]
            ours = [fmean(column) for column in zip(*values, strict=True)]
        else:
            ours = _ratios(row)
            means.setdefault(row["algo"], []).append(ours)
        algo = "" if row["algo"] == "average" else f"{row['algo'].upper()} "
        cells: list[Cell] = [f"{algo}{row['env']}", row["actor_sparsity"], row["critic_sparsity"]]
        for own, (_, name, _) in zip(ours, _RATIOS, strict=False):
            cells += [own, row[name], own - row[name]]
            if name == "train_flops":
                cells.append(ours[-1])
        rows.append(tuple(cells))
    title = "Table 2, left: model size and FLOPs relative to the dense model"
    notes = (
        "The paper's sparsities and -v3 sizes, hidden layers of 256 and 256, "
        "Erdős–Rényi layers. " + _SAC_NOTE,
    )
    return Table("flops-table2", title, tuple(columns), tuple(rows), notes)


def _ratios(row: dict[str, Any]) -> list[float]:
    sparsities = row["actor_sparsity"], row["critic_sparsity"]
    networks = Networks(*sizes()[row["env"]], HIDDEN, *sparsities)

    def run(n: int) -> Ratios:
        return ledger(row["algo"], networks, dense_n_step=n).relative

    one_step, same_n = run(1), run(N_STEP[row["algo"]])
    return [*(getattr(one_step, name) for name, _, _ in _RATIOS), same_n.train_flops]


def coefficients(algo: str, quantity: str) -> tuple[float, float]:
    """(a, c) such that the ledger's quantity is a · actor + c · critic, solved from two sizes."""
    heads = {"td3": 1, "sac": 2}[algo]
    left, right = [], []
    for obs, action in ((3, 2), (200, 5)):
        networks = Networks(obs, action, HIDDEN, 0, 0)
        run = ledger(algo, networks, method="dense", n_step=N_STEP[algo], batch_size=256)
        per_link = quantity == "total_parameters"
        nets = []
        for ends in ((obs, heads * action), (obs + action, 1)):
            layers = pairwise([ends[0], *HIDDEN, ends[1]])
            nets.append(sum((i if per_link else 2 * i - 1) * o for i, o in layers))
        left.append(nets)
        right.append(getattr(run, quantity) / (256 if quantity == "train_flops" else 1))
    actor, critic = np.linalg.solve(np.array(left, float), np.array(right))
    return float(actor), float(critic)


def _table5() -> Table:
    names = {
        "total_parameters": "model size, × parameters",
        "train_flops": "FLOPs (train), × B × FLOPs",
        "inference_flops": "FLOPs (test), × FLOPs",
    }
    rows: list[tuple[Cell, ...]] = []
    for row in paper.load("flops_formulas"):
        cells: list[Cell] = [f"{row['algo'].upper()} {names[row['quantity']]}"]
        both = zip(
            coefficients(row["algo"], row["quantity"]),
            (row["actor_coefficient"], row["critic_coefficient"]),
            strict=True,
        )
        for ours, printed in both:
            ours = round(ours, 9) + 0.0  # 0 may come out as -1e-16
            cells += [ours, float(printed), ours - printed]
        rows.append(tuple(cells))
    columns = [Column("quantity")]
    for net in ("of one actor", "of one critic"):
        columns += [Column(x, net, 2) for x in ("ours", "paper", "difference")]
    notes = (
        "Per training iteration with batch size B and 2-step (SAC) or 3-step (TD3) targets. Ours "
        "is solved from the ledger of two network sizes.",
    )
    title = "Table 5: model size and FLOPs as multiples of one actor's and one critic's"
    return Table("flops-table5", title, tuple(columns), tuple(rows), notes)


def _table6() -> Table:
    tasks = ("HalfCheetah", "Hopper", "Walker2d", "Ant")
    average = {r["algo"]: r for r in paper.load("table2_models") if r["env"] == "average"}
    rows: list[tuple[Cell, ...]] = []
    for row in paper.load("relative_flops"):
        algo, method = row["algo"], row["method"]
        sparsities = average[algo]["actor_sparsity"], average[algo]["critic_sparsity"]

        def ratio(task: str, hidden: tuple[int, ...], algo=algo, method=method, s=sparsities):
            networks = Networks(*sizes()[task], hidden, *s)
            run, static = (ledger(algo, networks, method=name) for name in (method, "ss"))
            return run.train_flops / static.train_flops

        wide, printed = ratio("Hopper", (10**6, 10**6)), float(row["train_flops"])
        own = [ratio(task, HIDDEN) for task in tasks]
        rows.append((f"{algo.upper()} {label(method)}", wide, printed, wide - printed, *own))
    columns = [Column("run")]
    columns += [Column(x, "wide layers", 5) for x in ("ours", "paper", "difference")]
    columns += [Column(task, "ours, with the task's sizes", 5) for task in tasks]
    notes = (
        "At the average sparsities. The printed digits follow for an actor and a critic of equal "
        "FLOPs, the limit of wide layers. Tiny has an integer number of units, so it is up to 2 % "
        "off.",
    )
    title = "Table 6: training FLOPs relative to a static sparse run"
    return Table("flops-table6", title, tuple(columns), tuple(rows), notes)


def _table14() -> Table:
    rows: list[tuple[Cell, ...]] = []
    for row in paper.load("humanoid_models"):
        sparsities = row["actor_sparsity"], row["critic_sparsity"]
        run = ledger("td3", Networks(*sizes()["Humanoid"], (row["hidden"],) * 2, *sparsities))
        ours, printed = round(run.online_parameters), row["parameters"]
        rows.append((f"{row['hidden']} units", *sparsities, ours, printed, ours - printed))
    columns = (
        Column("hidden layers"),
        *(Column(x, "sparsity", 2) for x in ("actor", "critic")),
        *(Column(x, "parameters") for x in ("ours", "paper (about)", "difference")),
    )
    title = "Table 14, bottom: parameters of the Humanoid models"
    notes = ("One actor and two critics, no targets, no biases.",)
    return Table("flops-table14", title, columns, tuple(rows), notes)
