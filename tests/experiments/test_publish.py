"""Publishing: choice of the lane, contents of its folder, reproducible bytes."""

import dataclasses
import json

import numpy as np
import pytest
from absl import flags
from policies import PENDULUM, actor, finished_run

from experiments import publish
from rlx2_jax import files
from rlx2_jax.config import Lane
from rlx2_jax.export import compiled, folder, npz
from rlx2_jax.training import weights

pytestmark = pytest.mark.fast


def chosen(logdir, **kw):
    said = []
    found = publish.best(publish.candidates(logdir, said.append, **kw))
    return {name: (x.unit, x.lane) for name, x in found.items()}, said


def test_the_highest_final_score_wins_then_the_lowest_seed(tmp_path):
    dense, tiny = (Lane(method="dense"), 900.0), (Lane(method="tiny"), 800.0)
    finished_run(tmp_path / "a" / "first", [dense, tiny, (Lane(method="ss", seed=3), 70.0)])
    finished_run(tmp_path / "a" / "second", [(Lane(seed=2), 70.0), (Lane(method="set"), 69.0)])
    finished_run(tmp_path / "b" / "third", [(Lane(), 5.0)], "Hopper-v5")
    assert chosen(tmp_path)[0] == {"hopper": ("b/third", 0), "invertedpendulum": ("a/second", 0)}
    assert chosen(tmp_path / "a")[0] == {"invertedpendulum": ("second", 0)}
    assert chosen(tmp_path / "a" / "first")[0] == {"invertedpendulum": ("first", 2)}


def test_lanes_that_do_not_count(tmp_path):
    given = [
        (Lane(seed=0, masks="masks.npz"), 9.0),
        (Lane(seed=1, weights="weights.npz"), 9.0),
        (Lane(seed=2, expert="expert.npz"), 9.0),
        (Lane(seed=3), float("nan")),
        (Lane(seed=4), 1.0),
    ]
    finished_run(tmp_path / "run", given)
    assert chosen(tmp_path)[0] == {"invertedpendulum": ("run", 4)}
    summary = files.read_json(tmp_path / "run" / "summary.json")
    summary["lanes"][4]["alive"] = False
    files.write_json(tmp_path / "run" / "summary.json", summary)
    assert chosen(tmp_path)[0] == {}


def test_units_that_are_no_finished_runs_are_left_out_with_a_warning(tmp_path):
    finished_run(tmp_path / "good", [(Lane(), 1.0)])
    finished_run(tmp_path / "changed", [(Lane(), 9.0)])
    finished_run(tmp_path / "unfinished", [(Lane(), 9.0)])
    finished_run(tmp_path / "imports", [(Lane(), 9.0)], "tasks:Task-v0")
    finished_run(tmp_path / "clone", [(Lane(), 9.0)])
    finished_run(tmp_path / "brax", [(Lane(), 9.0)], backend="brax")
    summary = json.loads((tmp_path / "changed/summary.json").read_text())
    summary["lanes"][0]["final_score"] = 1e6
    (tmp_path / "changed/summary.json").write_text(json.dumps(summary))
    (tmp_path / "unfinished/summary.json").unlink()
    config = files.read_json(tmp_path / "clone/config.json")
    own = {**config["config"], "algo": "bc"}
    files.write_json(tmp_path / "clone/config.json", {**config, "config": own})
    found, said = chosen(tmp_path)
    assert found == {"invertedpendulum": ("good", 0)}
    assert len(said) == 2
    assert "changed is left out" in said[0] and "digest does not match" in said[0]
    assert "imports is left out" in said[1] and "--allow_imports" in said[1]
    assert chosen(tmp_path, allow_imports=True)[0]["task"] == ("imports", 0)


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ("Hopper-v5", "hopper"),
        ("my.tasks:Robot-Arm-v0", "robot-arm"),
        ("rlx2_jax/Truncation-v0", "rlx2-jax-truncation"),
        ("../../etc-v1", "etc"),
        ("..", "task"),
    ],
)
def test_folders_are_named_after_tasks(env, name):
    assert publish.slug(env) == name


def test_a_folder_holds_the_policy_its_masks_and_its_score(tmp_path):
    finished_run(tmp_path / "run", [(Lane(method="dense"), 9.0), (Lane(seed=7), 3.5)])
    (made,) = publish.publish_all([tmp_path / "run"], tmp_path / "out", count=3, say=lambda t: None)
    names = {"policy.npz", "policy.c", "policy.onnx", "policy.json"}
    assert {p.name for p in made.iterdir()} == names
    assert all(p.stat().st_size < 30_000 for p in made.iterdir())
    params, masks = actor(PENDULUM, seed=1)
    policy = npz.load(made / "policy.npz")
    for i, layer in enumerate(policy.layers):
        live = dataclasses.replace(layer, values=np.ones_like(layer.values)).dense() > 0
        np.testing.assert_array_equal(live.T, masks[f"Dense_{i}"]["kernel"])
        np.testing.assert_array_equal(layer.dense().T, params[f"Dense_{i}"]["kernel"])
    about = folder.read(made).about
    links = sum(int(m["kernel"].sum()) for m in masks.values())
    assert about["live_links"] == links and about["dense_links"] == 4 * 16 + 16 * 16 + 16
    assert about["actor_sparsity"] == 1 - links / about["dense_links"]
    expected = {"env": "InvertedPendulum-v5", "task": "InvertedPendulum", "algo": "td3"}
    expected |= {"method": "rlx2", "seed": 7, "lane": 1, "unit": "run", "final_score": 3.5}
    expected |= {"commit": "abc", "env_options": {"max_episode_steps": 40}}
    assert {k: about[k] for k in expected} == expected
    assert about["weights"] == weights.digest(weights.load(tmp_path / "run/final/lane-1.npz"))
    assert "last 5 evaluations (at most 30)" in about["final_score_is"]
    assert about["evaluation"]["episodes"] == 3 and about["evaluation"]["first_seed"] == 0
    for name, entry in about["files"].items():
        data = (made / name).read_bytes()
        assert entry == {"bytes": len(data), "sha256": files.digest(data)}
    assert str(tmp_path) not in (made / "policy.json").read_text()


def test_the_same_run_gives_the_same_bytes(tmp_path):
    finished_run(tmp_path / "run", [(Lane(seed=7), 3.5)])
    for out in ("a", "b", "a"):
        publish.publish_all([tmp_path / "run"], tmp_path / out, count=2, say=lambda text: None)
    for path in (tmp_path / "a" / "invertedpendulum").iterdir():
        assert path.read_bytes() == (tmp_path / "b/invertedpendulum" / path.name).read_bytes()


def command(*args: str) -> int:
    values = flags.FlagValues()
    publish.define_flags(values)
    values(["publish", *args])
    return publish.command(values)


def test_the_command(tmp_path, capsys):
    run, out = tmp_path / "run", f"--out={tmp_path / 'out'}"
    finished_run(run, [(Lane(), 2.0)])
    assert command(f"--logdir={run}", out, "--episodes=2") == 0
    text = capsys.readouterr().out
    assert "run, lane 0 (rlx2, seed 0), final score 2.0" in text and "policy.onnx" in text
    assert command() == 2 and "--logdir is needed" in capsys.readouterr().err
    assert command(f"--logdir={tmp_path / 'no'}") == 2
    assert "is not a directory" in capsys.readouterr().err
    (run / "final" / "lane-0.npz").write_bytes(b"PK")
    assert command(f"--logdir={run}", out) == 2
    assert "is not a file of network weights" in capsys.readouterr().err
    finished_run(tmp_path / "dense", [(Lane(method="dense"), 2.0)])
    assert command(f"--logdir={tmp_path / 'dense'}", out) == 2
    assert "no finished run with a sparse lane" in capsys.readouterr().err


def test_a_machine_without_a_compiler_still_publishes(tmp_path, monkeypatch):
    finished_run(tmp_path / "run", [(Lane(), 2.0)])
    monkeypatch.setattr(compiled, "compiler", lambda: None)
    (made,) = publish.publish_all([tmp_path / "run"], tmp_path / "out", count=2, say=lambda t: None)
    assert "policy_act" in (made / "policy.c").read_text()
