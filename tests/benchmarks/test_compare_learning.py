"""Learning curves compared with SBX's: scores, and errors for missing data."""

import json

import pytest

from benchmarks import compare_learning

pytestmark = pytest.mark.fast


@pytest.fixture
def run(tmp_path):
    """Two lanes with 40 evaluations, the second twice as good; a peer with returns of 7."""
    steps = range(0, 40 * 5000, 5000)
    rows = [f"{lane},dense,{lane},{t},{(lane + 1) * t}" for t in steps for lane in (0, 1)]
    logdir = tmp_path / "run"
    logdir.mkdir()
    text = "\n".join(["lane,method,seed,step,mean_return", *rows]) + "\n"
    (logdir / "evaluations.csv").write_text(text)
    config = {"env": "Hopper-v5", "config": {"algo": "td3"}, "lanes": [{"method": "dense"}] * 2}
    (logdir / "config.json").write_text(json.dumps(config))
    peer = tmp_path / "sbx0.csv"
    peer.write_text("\n".join(["step,mean_return", *(f"{t},7" for t in steps)]) + "\n")
    return logdir, peer


def test_scores_are_means_of_the_last_thirty(run, tmp_path):
    logdir, peer = run
    compare_learning.write(logdir, [peer], tmp_path / "docs")
    text = (tmp_path / "docs" / "learning.md").read_text()
    assert "dense TD3 on Hopper-v5, 195,000 steps" in text
    assert "| rlx2_jax, seed 0 | 122,500 | 195,000 | 195,000 |" in text  # (50,000 + 195,000) / 2
    assert "| rlx2_jax, seed 1 | 245,000 | 390,000 | 390,000 |" in text
    assert "| SBX, sbx0 | 7 | 7 | 7 |" in text
    assert "rlx2_jax: 183,750 ± 86,621 over 2 seeds. SBX: 7, one seed." in text
    assert (tmp_path / "docs" / "learning.png").stat().st_size > 5000


def test_curves_of_different_lengths_are_refused(run, tmp_path):
    logdir, peer = run
    peer.write_text("step,mean_return\n5000,7\n")
    with pytest.raises(ValueError, match="end at steps 5,000, 195,000: let all finish first"):
        compare_learning.write(logdir, [peer], tmp_path / "docs")


def test_a_missing_file_is_named(run, tmp_path):
    with pytest.raises(ValueError, match=r"none\.csv is missing"):
        compare_learning.write(run[0], [tmp_path / "none.csv"], tmp_path / "docs")
