"""Whole runs: files, exact resume, faults. Small networks on real tasks."""

import dataclasses
import json

import gymnasium
import jax
import numpy as np
import pytest
from saved_runs import snapshots
from small_runs import rows, small_run, stop_after

from rlx2_jax import config
from rlx2_jax.training import execute as execution
from rlx2_jax.training import guards, preflight, weights
from rlx2_jax.training.lane_group import LaneFailure
from rlx2_jax.training.run import (
    RunError,
    chunk_size,
    largest_lane,
    process_bytes,
    read_run,
    room_for_lanes,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    summary = execution.execute(small_run(), directory, progress=False)
    return directory, summary


def test_a_run_leaves_all_its_files(whole):
    directory, summary = whole
    names = {p.name for p in directory.iterdir()}
    assert {"config.json", "evaluations.csv", "metrics.csv", "summary.json", "curves.png"} <= names
    evaluations = rows(directory / "evaluations.csv")
    assert [int(r["step"]) for r in evaluations] == [s for s in range(0, 241, 60) for _ in range(4)]
    metrics = rows(directory / "metrics.csv")
    assert len(metrics) == 4 * 4 and metrics[-4]["n"] == "3" and metrics[-1]["n"] == "1"
    for row in summary["lanes"][:2]:  # really RLx2
        assert row["critic_evolutions"] >= 10 and row["actor_evolutions"] >= 5
        assert row["trims"] >= 3 and row["evaluations_used"] == 4
        assert row["actor_sparsity"] == pytest.approx(0.9, abs=0.01)
    assert summary["lanes"][2]["critic_evolutions"] == 0
    assert summary["training_seconds"] > 0 and summary["evaluation_seconds"] > 0
    (machine,) = summary["machines"]
    assert machine["step"] == 0 and machine["processor"] == summary["processor"]
    assert json.loads((directory / "summary.json").read_text())["env"] == "InvertedPendulum-v5"
    run = dataclasses.replace(small_run(), chunk=4)
    assert read_run(directory) == run
    for i in range(4):
        first, last = (weights.load(directory / x / f"lane-{i}.npz") for x in ("initial", "final"))
        assert np.all(first["actor"].weights["Dense_1"]["kernel"] != 0)  # off the mask as well
        for name in ("actor", "critic"):
            links = [sum(m.sum() for m in jax.tree.leaves(x[name].mask)) for x in (first, last)]
            assert links[0] == links[1]


def test_evaluations_have_a_digest_of_the_weights(whole):
    directory, _ = whole
    found = rows(directory / "evaluations.csv")
    assert len({row["weights"] for row in found if row["step"] != "0"}) == 4 * 4
    for i, row in enumerate(found[-4:]):
        networks = weights.load(directory / "final" / f"lane-{i}.npz")
        assert row["weights"] == weights.digest(networks)[:16]
        networks["critic"].mask["q1"]["Dense_0"]["kernel"][0, 0] ^= True
        assert row["weights"] != weights.digest(networks)[:16]


def test_resume_is_exact(whole, tmp_path, monkeypatch):
    directory, _ = whole
    with monkeypatch.context() as patch:
        stop_after(patch, 137)
        with pytest.raises(guards.Stopped, match="rlx2 resume "):
            execution.execute(small_run(), tmp_path, progress=False)
    said = []
    execution.execute(small_run(), tmp_path, resume=True, say=said.append, progress=False)
    assert any("resumed at step" in line for line in said)
    for name in ("evaluations.csv", "metrics.csv"):
        assert (tmp_path / name).read_text() == (directory / name).read_text()
    for a, b in zip(*([s.state for s in snapshots(d)] for d in (tmp_path, directory))):
        jax.tree.map(
            np.testing.assert_array_equal, a._replace(replay=None), b._replace(replay=None)
        )
        valid = np.asarray(a.replay.written[0] - 1 - np.arange(int(a.replay.length.min())))
        ring = a.replay.data.shape[1] - 1
        np.testing.assert_array_equal(
            a.replay.data[:, valid % ring], b.replay.data[:, valid % ring]
        )


def test_a_damaged_checkpoint_falls_back(whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 170)
        with pytest.raises(guards.Stopped):
            execution.execute(small_run(), tmp_path, progress=False)
    states = tmp_path / "checkpoints" / "states"
    newest = max(states.iterdir(), key=lambda p: int(p.name))
    for path in newest.rglob("*"):
        if path.is_file() and path.stat().st_size > 0:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    said = []
    execution.execute(small_run(), tmp_path, resume=True, say=said.append, progress=False)
    assert any("is damaged" in line for line in said)
    assert (tmp_path / "evaluations.csv").read_text() == (whole[0] / "evaluations.csv").read_text()


def test_a_second_process_is_refused(tmp_path):
    with guards.locked(tmp_path), pytest.raises(RunError, match="another process"):
        execution.execute(small_run(), tmp_path, progress=False)


def test_an_existing_run_is_not_overwritten(whole):
    with pytest.raises(RunError, match="rlx2 resume"):
        execution.execute(small_run(), whole[0], progress=False)


@pytest.mark.fast
def test_one_compact_lane_makes_the_process_larger():
    masked, compact = config.Lane(execution="masked"), config.Lane(execution="compact")
    assert process_bytes([masked, compact]) == process_bytes([compact]) > process_bytes([masked])


@pytest.mark.fast
def test_every_check_of_memory_leaves_the_same_room():
    """A lane that fits into a chunk is not refused as too large."""
    run = small_run()
    room = room_for_lanes(run, 10**10)
    assert room == int(0.95e10) - process_bytes(run.lanes)
    assert room_for_lanes(run, 10) == 0
    assert chunk_size(run, 10**10) == min(len(run.lanes), room // largest_lane(run))
    preflight.check_size(run.config, run.episodes, room)


def test_what_does_not_fit_is_refused_with_advice(tmp_path):
    with pytest.raises(RunError, match="--capacity"):
        chunk_size(small_run(), 1000)
    assert chunk_size(small_run(chunk=2), 10**10) == 2
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(RunError, match="--logdir"):
        execution.execute(small_run(), blocked / "run", progress=False)


def test_killed_after_the_last_checkpoint(whole, tmp_path, monkeypatch):
    """All steps are done and saved, but the final files are not written yet."""
    directory, _ = whole

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(execution._Execution, "_write_final", killed)
        with pytest.raises(KeyboardInterrupt):
            execution.execute(small_run(), tmp_path, progress=False)
    assert not (tmp_path / "summary.json").exists()
    execution.execute(small_run(), tmp_path, resume=True, progress=False)
    found, expected = (
        json.loads((folder / "summary.json").read_text())["lanes"]
        for folder in (tmp_path, directory)
    )
    for row in (*found, *expected):
        del row["steps_per_second"]
    assert found == expected
    for name in ("evaluations.csv", "metrics.csv"):
        assert (tmp_path / name).read_text() == (directory / name).read_text()


class Fragile(gymnasium.Env):
    """Raises once at its 400th step. Has InvertedPendulum's shapes, so that programs are shared."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action):
        Fragile.steps += 1
        if Fragile.steps == 400:
            raise RuntimeError("the cable came off")
        return np.zeros(4, np.float32), 1.0, self.np_random.random() < 0.1, False, {}


def test_an_environment_that_raises_is_named_and_everything_saved(tmp_path):
    gymnasium.register("Fragile-v0", lambda **_: Fragile(), max_episode_steps=1000)
    run = small_run("Fragile-v0")
    with pytest.raises(LaneFailure, match=r"lane .*seed .*step \d+: .*cable came off") as caught:
        execution.execute(run, tmp_path, progress=False)
    assert "rlx2 resume" in str(caught.value)
    said = []
    summary = execution.execute(run, tmp_path, resume=True, say=said.append, progress=False)
    assert any("new episodes" in line for line in said)
    assert len(summary["lanes"]) == 4
