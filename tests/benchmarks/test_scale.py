"""The page on scale: contains exactly the measurements."""

import json

import jax
import pytest
from paths import DOCS

from benchmarks import scale

pytestmark = pytest.mark.fast

FILES = {kind: DOCS / "measured" / f"scale-{kind}.json" for kind in ("lanes", "memory")}
FOUND = {kind: json.loads(path.read_text()) for kind, path in FILES.items() if path.exists()}
LANES = {
    "rows": [
        {"lanes": n, "compile_seconds": 2.0, "bytes": n * 1_250_000, "us_per_step": 40.0 * n}
        for n in scale.LANES
    ],
    "machine": {"cores": 2, "processor": "some", "jax": "0.10", "load_before": 0.1},
}


def test_the_page_matches_the_measurements():
    text = scale.page(FOUND.get("lanes"), FOUND.get("memory"))
    assert (DOCS / "scale.md").read_text() == text
    assert "Derived, not measured" in text
    assert ("scale.png" in text) == (DOCS / "scale.png").exists()


def test_the_section_on_lanes(tmp_path):
    text = scale.page(LANES, None)
    assert "| 256 | 2.0 | 320.0 | 1.25 | 10,240 | 40 |" in text
    assert "2 cores of some, jax 0.10, load 0.1 when it began" in text
    assert "Derived" not in text
    scale.plot(LANES["rows"], tmp_path / "scale.png")
    assert (tmp_path / "scale.png").read_bytes()[:4] == b"\x89PNG"


def test_lanes_that_fit():
    assert scale.fits(16, 1.0e9) == 11  # 0.75 * 16 - 1
    assert scale.fits(80, 23.0e9) == 2
    assert scale.fits(16, 12.0e9) == 0


def test_a_lane_has_at_least_its_replay():
    """Hopper: 11 + 1 numbers for the rows of observations and rewards, 3 + 3 for actions."""
    rows = FOUND["memory"]["rows"]
    assert [row["task"] for row in rows] == list(scale.TASKS)
    for row in rows:
        obs, act = scale.TASKS[row["task"]]
        least = 10**6 * 4 * (obs + act + 1)
        assert least <= row["replay_bytes"] <= row["state_bytes"] <= scale.bytes_per_lane(row)
        assert row["replay_bytes"] < 1.5 * (least + 10**6 * 4 * act)


@pytest.mark.skipif("lanes" not in FOUND, reason="benchmarks.scale --measure=lanes was not run")
def test_memory_is_proportional_to_lanes():
    rows = {row["lanes"]: row for row in FOUND["lanes"]["rows"]}
    assert tuple(rows) == scale.LANES
    each = [row["bytes"] / count for count, row in rows.items()]
    assert max(each) < 1.5 * min(each)


def test_a_measurement_of_two_lanes(monkeypatch):
    monkeypatch.setattr(scale, "STEPS", 4)
    row = scale.lanes_row(2)
    assert row["lanes"] == 2 and row["us_per_step"] > 0 < row["compile_seconds"]
    state = 2 * 10_000 * 4 * 4  # at least: observation, reward, action, and its mean in 16 bits
    assert state // 2 < row["bytes"] < 100 * state


def test_shapes_of_lanes_are_not_arrays():
    cfg, (lane,) = scale.small(1)
    state, hyper, after = scale.abstract_lanes(cfg, lane, 3)
    leaves = jax.tree.leaves((state, hyper, after))
    assert all(isinstance(x, jax.ShapeDtypeStruct) and x.shape[0] == 3 for x in leaves)
