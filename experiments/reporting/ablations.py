"""Tables 3 and 8 to 13: ablations of TD3."""

from collections.abc import Callable, Mapping

from experiments import paper
from experiments.reporting import percent, scores
from experiments.reporting.panels import Item, curve_panels
from experiments.reporting.percent import Percentages, from_paper
from experiments.reporting.results import Suite

_SYMBOLS = {"zeta0": "ζ0", "mask_interval": "Δm", "buffer_interval": "Δb", "d0": "D0", "t0": "T0"}


def show(*specs: Percentages, curves: bool = False) -> Callable[[Suite], list[Item]]:
    def make(suite: Suite) -> list[Item]:
        found: list[Item] = []
        for spec in specs:
            found.append(percent.table(suite, spec))
            title = f"{spec.title.split(':')[0]}: over tasks and seeds"
            found.append(percent.aggregate(suite, spec, f"{spec.key}-aggregate", title))
        return found + (curve_panels(suite) if curves else [])

    return make


def _spec(key: str, title: str, name: str, field: str, lanes: Mapping[str, object]) -> Percentages:
    columns = tuple((lane, scores.label(lane.removeprefix("rlx2-"))) for lane in lanes)
    return Percentages(key, title, columns, from_paper(name, field, lanes))


def _sensitivity(key: str, title: str, field: str, values: dict[object, str]) -> Percentages:
    """`values` maps the paper's values to lane names other than `field=value`."""
    name = f"sensitivity_{field}"
    every = list(dict.fromkeys(row[field] for row in paper.load(name)))
    lanes = {values.get(v, f"{field}={v}"): v for v in every}
    columns = tuple((lane, f"{_SYMBOLS[field]} = {_number(v)}") for lane, v in lanes.items())
    return Percentages(key, title, columns, from_paper(name, field, lanes))


def _number(value: float) -> str:
    return "∞" if value == _INF else f"{value:,}"


_INF = float("inf")
TOPOLOGY = _spec(
    "table3-topology",
    "Table 3, left: topology evolution, percent of dense",
    "ablation_topology",
    "method",
    {"rlx2-tiny": "tiny", "rlx2-ss": "ss", "rlx2-set": "set", "rlx2": "rlx2"},
)
NSTEP = _spec(
    "table3-nstep",
    "Table 3, right: multi-step target, percent of dense",
    "ablation_nstep",
    "n_step",
    {f"{n}-step": n for n in range(1, 6)},
)
BUFFER = _spec(
    "table8",
    "Table 8: buffer capacity, percent of dense",
    "ablation_buffer",
    "capacity",
    {"5e4": 50_000, "1e5": 100_000, "2e5": 200_000, "1e6": 1_000_000}
    | {"unlimited": "unlimited", "dynamic": "dynamic"},
)
SENSITIVITY = (
    _sensitivity(
        "table9", "Table 9: initial mask update fraction ζ0", "zeta0", {0: "static", 0.5: "default"}
    ),
    _sensitivity(
        "table10",
        "Table 10: mask update interval Δm",
        "mask_interval",
        {10_000: "default", _INF: "static"},
    ),
    _sensitivity(
        "table11",
        "Table 11: buffer adjustment interval Δb",
        "buffer_interval",
        {10_000: "default", _INF: "no adjustment"},
    ),
    _sensitivity(
        "table12",
        "Table 12: policy distance threshold D0",
        "d0",
        {0.2: "default", _INF: "no adjustment"},
    ),
    _sensitivity(
        "table13", "Table 13: multi-step delay T0", "t0", {300_000: "default", _INF: "one-step"}
    ),
)
