"""The contents of each suite's report: the paper's tables and figures, and differences from it."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from experiments.reporting import ablations, ledgers, maintable, percent, pictures
from experiments.reporting.panels import Item, curve_panels
from experiments.reporting.results import Suite
from experiments.suites import base
from rlx2_jax.reporting.tables import Table
from rlx2_jax.training.evaluate import SCORED


@dataclass(frozen=True)
class Exhibit:
    """A suite's title, its place in the paper, and its tables and figures."""

    title: str
    where: str
    make: Callable[[Suite], list[Item]]


@dataclass(frozen=True)
class Section:
    """A suite's part of the report."""

    key: str
    title: str
    lead: tuple[str, ...]
    items: list[Item] = field(default_factory=list)
    stamp: str = ""  # a description of the runs, for figures


def section(suite: Suite) -> Section:
    """All exhibits of a suite and its scores, each with a description of the runs."""
    known = EXHIBITS.get(suite.name)
    items = known.make(suite) if known else curve_panels(suite)
    items = [_stamped(item, suite) for item in items]
    lead = ((known.where,) if known else ()) + (difference(suite),)
    title = f"{suite.name}: {known.title if known else suite.title}"
    return Section(suite.name, title, lead, [*items, percent.scores(suite)], stamp(suite))


def ledger_section() -> Section:
    """The `flops` suite, which needs no run."""
    known = EXHIBITS["flops"]
    return Section("flops", f"flops: {known.title}", (known.where,), list(ledgers.flops_tables()))


def _stamped(item: Item, suite: Suite) -> Item:
    if isinstance(item, Table):
        note = f"Ours: {stamp(suite)}; {seeds_found(suite)} (paper: {base.SEEDS})."
        return replace(item, notes=(note, *item.notes))
    return item


def stamp(suite: Suite) -> str:
    """A short description of the budget."""
    name, share = suite.budget.get("name"), fraction(suite)
    part = "an unknown part" if share is None else f"{100 * share:.4g} %"
    return f"budget {name or 'not named'}, {part} of the paper's steps"


def fraction(suite: Suite) -> float | None:
    """The fraction of the paper's steps: the budget's, or that of the longest unit."""
    share = suite.budget.get("fraction")
    if isinstance(share, int | float):
        return float(share)
    steps = [u.steps for u in suite.units if u.steps and u.kind == "train"]
    return max(steps) / base.STEPS if steps else None


def difference(suite: Suite) -> str:
    """Differences between this run and the paper's: steps, seeds, versions, missing units."""
    parts = []
    steps = sorted({u.steps for u in suite.units if u.steps and u.kind == "train"})
    budget = stamp(suite)
    if steps:
        budget += f" ({_range(steps)})"
    parts.append(budget)
    parts.append(f"{seeds_found(suite)} (paper: {base.SEEDS})")
    used = sorted({x.evaluations_used for u in suite.units for x in u.lanes if x.evaluations_used})
    if used and used[0] < SCORED:
        parts.append(f"a score is the mean of {_range(used)} evaluations (paper: {SCORED})")
    parts += _smaller(suite.budget)
    versions = sorted({m[0] for u in suite.units if (m := re.search(r"-v\d+$", u.env))})
    if versions:
        parts.append(f"{', '.join(versions)} environments (paper: -v3)")
    counts = {s: sum(u.status == s for u in suite.parts) for s in ("unfinished", "missing")}
    parts += [f"{n} of {len(suite.parts)} units {status}" for status, n in counts.items() if n]
    return f"Ours: {'; '.join(parts)}."


def _smaller(budget: dict[str, Any]) -> list[str]:
    """Other changes of a budget to the paper's experiment."""
    found = []
    if budget.get("narrower", 1) != 1:
        found.append(f"hidden layers {budget['narrower']} times narrower")
    for name, text, printed in (
        ("batch_size", "batches of", 256),
        ("episodes", "episodes per evaluation:", 10),
    ):
        if budget.get(name, printed) != printed:
            found.append(f"{text} {budget[name]} (at full budget: {printed})")
    for name in ("env_options", "overrides"):
        options = budget.get(name)
        if isinstance(options, dict):
            found += [f"{name} = {value}" for name, value in options.items()]
    return found


def _range(values: list[int]) -> str:
    low, high = min(values, default=0), max(values, default=0)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def seeds_found(suite: Suite) -> str:
    """The range of seeds per lane name, found and planned."""
    names = [(u, n) for u in suite.units for n in u.names]
    found = [len({x.seed for x in u.named(n)}) for u, n in names]
    planned = [len({s for m, s in u.planned if m == n}) for u, n in names]
    wanted = f" of {_range(planned)} planned" if any(planned) else ""
    return f"seeds found: {_range(found)}{wanted}"


EXHIBITS = {
    "table2": Exhibit(
        "sparse training methods with TD3 and SAC",
        "Tables 2 and 7, figures 9 and 10; the value error is not in the paper.",
        maintable.make,
    ),
    "toy": Exhibit(
        "topology and values, InvertedPendulum",
        "Figure 2; the paper gives no numbers.",
        pictures.toy,
    ),
    "sparsity": Exhibit(
        "performance by sparsity",
        "Figure 5; the paper gives no numbers.",
        pictures.sparsity,
    ),
    "topology": Exhibit("topology evolution", "Table 3, left.", ablations.show(ablations.TOPOLOGY)),
    "nstep": Exhibit("multi-step targets", "Table 3, right.", ablations.show(ablations.NSTEP)),
    "buffer": Exhibit(
        "buffer capacity",
        "Table 8 and figure 6.",
        ablations.show(ablations.BUFFER, curves=True),
    ),
    "sensitivity": Exhibit(
        "hyper-parameters",
        "Tables 9 to 13. Values are in the paper's units for every budget; one lane serves all "
        "columns that mean the same (the default, a static mask, no adjustment).",
        ablations.show(*ablations.SENSITIVITY),
    ),
    "masks": Exhibit(
        "masks found by RigL and RLx2, retrained from the initial weights",
        "Figures 3 and 8; the paper gives no numbers.",
        pictures.masks,
    ),
    "tickets": Exhibit(
        "random, winning and dynamic tickets",
        "Figures 7 and 12; the paper gives no numbers.",
        pictures.tickets,
    ),
    "humanoid": Exhibit("Humanoid, two widths", "Table 14 and figure 11.", pictures.humanoid),
    "buffer_trace": Exhibit(
        "buffer length and policy distance",
        "Figure 4; the paper gives no numbers.",
        pictures.traces,
    ),
    "mask_figures": Exhibit(
        "what masks become",
        "Figures 13 and 14; the paper gives no numbers.",
        pictures.mask_figures,
    ),
    "flops": Exhibit(
        "parameters and FLOPs",
        "Tables 2 (left), 5, 6 and 14 (bottom), from the ledger, without training.",
        lambda suite: list(ledgers.flops_tables()),
    ),
    "mask_init": Exhibit(
        "initial masks: random or by magnitude",
        "Not in the paper: its text has random initial masks, its code the largest weights.",
        curve_panels,
    ),
}
