"""The paper's tables as data: complete, and consistent except for known errors in the paper."""

import math
from statistics import mean
from typing import Any

import pytest

from experiments import paper

pytestmark = pytest.mark.fast

ROWS = {
    "ablation_buffer": 5 * 6,
    "ablation_nstep": 5 * 5,
    "ablation_topology": 5 * 4,
    "environments": 5,
    "flops_formulas": 2 * 3,
    "humanoid": 2 * 6,
    "humanoid_models": 2,
    "hyperparameters": 16 + 4 + 4,
    "related_work": 8,
    "relative_flops": 2 * 5,
    "sensitivity_buffer_interval": 5 * 6,
    "sensitivity_d0": 5 * 6,
    "sensitivity_mask_interval": 5 * 6,
    "sensitivity_t0": 5 * 7,
    "sensitivity_zeta0": 5 * 6,
    "table2": 11 * 5,
    "table2_models": 11,
    "table2_std": 11 * 5,
    "ticket_sparsities": 4,
}
# Half a unit of the last printed digit, once for the average and once for the averaged values
# (sparsities are exact, so once).
ROUNDING = {
    "performance": 0.1,
    "std": 0.1,
    "actor_sparsity": 0.005,
    "critic_sparsity": 0.005,
    "total_size": 0.001,
    "train_flops": 0.001,
    "inference_flops": 0.001,
}
# Printed averages that are not the mean of their rows: (table, column, key) -> (printed, mean).
SLIPS = {
    ("table2", "performance", ("average", "rlx2")): (101.8, 102.45),
    ("table2_std", "performance", ("average", "rlx2")): (101.8, 102.45),
    ("sensitivity_d0", "performance", (0.05,)): (93.1, 93.425),
    ("sensitivity_t0", "performance", (400000,)): (100.1, 100.75),
}
AVERAGED = [name for name in ROWS if any(r.get("env") == "average" for r in paper.load(name))]


def performance(name: str, **key: Any) -> dict[str, float]:
    """{env: performance} of the rows that match."""
    rows = [r for r in paper.load(name) if all(r[k] == v for k, v in key.items())]
    return {row["env"]: row["performance"] for row in rows}


def test_every_table_is_there() -> None:
    assert paper.names() == sorted(ROWS)
    assert len(AVERAGED) == 11


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_complete_and_distinct(name: str) -> None:
    rows = paper.load(name)
    assert len(rows) == ROWS[name]
    assert all(
        isinstance(cell, str | int | float) and cell != "" for r in rows for cell in r.values()
    )
    assert all(row.keys() == rows[0].keys() for row in rows)
    keys = [tuple(v for k, v in r.items() if k not in ROUNDING) for r in rows]
    assert len(set(keys)) == len(rows)


def test_numbers_are_parsed() -> None:
    assert paper.load("table2")[0] == {
        "algo": "td3",
        "env": "HalfCheetah",
        "method": "tiny",
        "performance": 86.3,
    }
    hyper = {(r["algo"], r["hyperparameter"]): r["value"] for r in paper.load("hyperparameters")}
    assert hyper["shared", "learning_rate"] == 3e-4
    assert hyper["shared", "batch_size"] == 256 and isinstance(hyper["td3", "n_step"], int)
    assert hyper["shared", "optimizer"] == "Adam"
    assert paper.load("sensitivity_d0")[5]["d0"] == math.inf


def test_unknown_table() -> None:
    with pytest.raises(ValueError, match=r"no table 'table3'.*table2"):
        paper.load("table3")


@pytest.mark.parametrize("name", AVERAGED)
def test_printed_averages(name: str) -> None:
    rows = paper.load(name)
    keys = [k for k in rows[0] if k not in ROUNDING and k != "env"]
    columns = [k for k in rows[0] if k in ROUNDING]

    def averaged(row: dict[str, Any], other: dict[str, Any]) -> bool:
        if row.get("algo") != "average":
            return other["env"] != "average" and all(row[k] == other[k] for k in keys)
        same = all(row[k] == other[k] for k in keys if k != "algo")
        return same and other["env"] == "average" and other["algo"] != "average"

    slips = {}
    for row in (r for r in rows if r["env"] == "average"):
        parts = [other for other in rows if averaged(row, other)]
        assert len(parts) == (2 if row.get("algo") == "average" else 4)
        for column in columns:
            value = mean(part[column] for part in parts)
            if abs(row[column] - value) > ROUNDING[column] + 1e-9:
                slips[name, column, tuple(row[k] for k in keys)] = (row[column], value)
    assert slips.keys() == {key for key in SLIPS if key[0] == name}
    for key, pair in slips.items():
        assert pair == pytest.approx(SLIPS[key])


def test_standard_deviations_repeat_table_2() -> None:
    assert [{k: v for k, v in r.items() if k != "std"} for r in paper.load("table2_std")] == (
        paper.load("table2")
    )


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("ablation_topology", {"method": "rlx2"}),
        ("ablation_nstep", {"n_step": 3}),
        ("ablation_buffer", {"capacity": "dynamic"}),
        ("sensitivity_zeta0", {"zeta0": 0.5}),
        ("sensitivity_mask_interval", {"mask_interval": 10000}),
        ("sensitivity_buffer_interval", {"buffer_interval": 10000}),
        ("sensitivity_d0", {"d0": 0.2}),
        ("sensitivity_t0", {"t0": 300000}),
    ],
)
def test_default_setting_is_the_main_result(name: str, key: dict[str, Any]) -> None:
    assert performance(name, **key) == performance("table2", algo="td3", method="rlx2")


def test_extreme_settings_are_the_ablations() -> None:
    static = performance("ablation_topology", method="ss")
    assert performance("sensitivity_zeta0", zeta0=0) == static
    assert performance("sensitivity_mask_interval", mask_interval=math.inf) == static
    fixed = performance("ablation_buffer", capacity=1000000)
    assert performance("sensitivity_buffer_interval", buffer_interval=math.inf) == fixed
    assert performance("sensitivity_d0", d0=math.inf) == fixed
    one_step = performance("ablation_nstep", n_step=1)
    assert performance("sensitivity_t0", t0=math.inf) == one_step
