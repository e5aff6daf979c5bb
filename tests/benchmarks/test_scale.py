"""The page on scale: contains exactly the measurements."""

import json

import pytest
from paths import DOCS

from benchmarks import scale

pytestmark = pytest.mark.fast

FILES = [DOCS / "measured" / f"scale-{kind}.json" for kind in ("lanes", "memory")]
if not all(path.exists() for path in FILES):
    pytest.skip("not measured yet: see benchmarks/scale.py", allow_module_level=True)
LANES, MEMORY = (json.loads(path.read_text()) for path in FILES)


def test_the_page_matches_the_measurements():
    assert (DOCS / "scale.md").read_text() == scale.page(LANES, MEMORY)
    assert "Derived, not measured" in scale.page(LANES, MEMORY)


def test_lanes_that_fit():
    assert scale.fits(16, 1.0e9) == 11  # 0.75 * 16 - 1
    assert scale.fits(80, 23.0e9) == 2
    assert scale.fits(16, 12.0e9) == 0


def test_a_lane_has_at_least_its_replay():
    """Hopper: 11 + 1 numbers for the rows of observations and rewards, 3 + 3 for actions."""
    assert [row["task"] for row in MEMORY["rows"]] == list(scale.TASKS)
    for row in MEMORY["rows"]:
        obs, act = scale.TASKS[row["task"]]
        least = 10**6 * 4 * (obs + act + 1)
        assert least <= row["replay_bytes"] <= row["state_bytes"] <= scale.bytes_per_lane(row)
        assert row["replay_bytes"] < 1.5 * (least + 10**6 * 4 * act)


def test_one_program_for_any_number_of_lanes():
    rows = {row["lanes"]: row for row in LANES["rows"]}
    assert tuple(rows) == scale.LANES
    each = [row["bytes"] / count for count, row in rows.items()]
    assert max(each) < 1.5 * min(each)
