"""The performance page: contains exactly the measurements."""

import json

import pytest

from benchmarks import performance

pytestmark = pytest.mark.fast

MACHINE = {"cores": 2, "jax": "0", "load_before": 0.1}
ROW = {
    "links": 5000,
    "masked_us": 4000.0,
    "compact_us": 500.0,
    "ratio": 8.0,
    "cpu_ratio": 9.0,
}


def test_results_are_shown_and_missing_ones_listed(tmp_path):
    measured = {
        "capacity": {"ms_at_1e4": 2.0, "ms_at_1e6": 2.1, "ratio": 1.05, "machine": MACHINE},
        "updates": {
            "measured": "x", "td3_1_lanes": 300.0, "td3_1_lanes_over_sbx": 1.5, "sbx_td3": 200.0,
            "machine": MACHINE,
        },
        "steps": {
            "measured": "y", "td3_compact_1_lanes": 900.0, "td3_compact_1_lanes_over_sbx": 7.5,
            "sbx_td3": 120.0, "td3_compact_8_lanes_over_1": 1.7, "td3_compact_loop_overhead": 0.1,
            "machine": MACHINE | {"processor": "P"},
        },
        "compact": {"td3_1_lane": ROW | {"masked_over_sbx": 1.55}, "machine": MACHINE},
        "sweep": {**dict.fromkeys(("sparsity_0.5", "width_128"), ROW), "machine": MACHINE},
        "kernels": {
            "gmac_per_cpu_second": {"limit": 40.0, "limit with loads": 20.0, "critic": 10.0},
            "machine": MACHINE,
        },
    }  # fmt: skip
    for name, value in measured.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    missing = performance.write(tmp_path, tmp_path / "docs")
    assert missing == ["pipeline", "growth", "inference"]
    text = (tmp_path / "docs" / "performance.md").read_text()
    assert "| td3 1 lane | 300 | 1.50x |" in text and "ratio 1.05" in text
    assert "td3 compact 10 %. Speed of eight lanes over one: td3 compact 1.70x." in text
    assert "Measured on 2 cores of P, jax 0, load 0.10 when it began." in text
    assert "in the same turns: td3 1 lane 1.55x." in text and "| width 128 | 5,000 |" in text
    assert "| td3 1 lane | 5,000 | 4,000 | 500 | 8.0x | 9.0x |" in text
    assert "| critic | 10.0 | 25 % | 50 % |" in text
    assert "Not measured: pipeline, growth, inference." in text
    assert (tmp_path / "docs" / "performance-sweep.png").stat().st_size > 5000


def test_no_measurements(tmp_path):
    with pytest.raises(ValueError, match="run the benchmarks first"):
        performance.write(tmp_path / "none", tmp_path)
