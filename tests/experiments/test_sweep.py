"""Sweeps: resumable units, isolation of failures, behaviour cloning of experts."""

import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments import cloning, collect, publish, suites, sweep, units
from rlx2_jax import config, envs, files
from rlx2_jax.cli import evaluate
from rlx2_jax.config import Lane
from rlx2_jax.export import folder
from rlx2_jax.training import claim, demonstrations, execute, guards, launch, weights
from rlx2_jax.training.device_loop import DeviceLoop
from rlx2_jax.training.run import RunError
from rlx2_jax.training.settings import SettingError

BUDGET = dataclasses.replace(suites.BUDGETS["smoke"], seeds=1)
# With one update in a loop's body: less to compile, in five units.
TOY = dataclasses.replace(BUDGET, overrides={"policy_delay": 1, "target_interval": 1})


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """The toy suite, whole: dense experts first, then RigL+Q* that follows them."""
    logdir = tmp_path_factory.mktemp("sweep")
    assert sweep.sweep([suites.CATALOGUE["toy"]], TOY, logdir) == 0
    return logdir


def test_a_suite_writes_its_units_and_its_plan(toy):
    expected = json.loads((toy / "toy" / "suite.json").read_text())
    names = ("dense-0", "ss", "rigl", "rlx2", "rigl+qstar")
    assert [u["name"] for u in expected["units"]] == [f"inverted-pendulum-{x}" for x in names]
    for unit in expected["units"]:
        folder = toy / "toy" / unit["name"]
        assert units.finished(folder)
        assert len(json.loads((folder / "summary.json").read_text())["lanes"]) == len(unit["lanes"])
        assert len(list((folder / "final").iterdir())) == len(unit["lanes"])


def test_a_finished_unit_is_not_run_again(toy, monkeypatch, capsys):
    monkeypatch.setattr(units, "run_unit", lambda *_: pytest.fail("ran again"))
    assert sweep.sweep([suites.CATALOGUE["toy"]], TOY, toy) == 0
    assert capsys.readouterr().err.count("finished before") == 5


def test_damaged_results_of_finished_units_are_restored(toy, tmp_path, capsys):
    shutil.copytree(toy, tmp_path / "copy")
    folder = tmp_path / "copy" / "toy" / "inverted-pendulum-ss"
    for name in ("curves.png", "status.json"):
        (folder / name).write_bytes(b"")
    (folder / "final" / "lane-0.npz").unlink()
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    for name in ("initial/lane-0.npz", "metrics.csv"):
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / name).write_bytes(data)
    with (folder / "evaluations.csv").open("a") as file:
        file.write("9,rlx2,0,1\n")
    assert sweep.sweep([suites.CATALOGUE["toy"]], TOY, tmp_path / "copy") == 0
    told = capsys.readouterr().err
    names = (
        "config.json",
        "metrics.csv",
        "evaluations.csv",
        "initial/lane-0.npz",
        "final/lane-0.npz",
    )
    assert f"but {', '.join([*names, 'curves.png', 'status.json'])} is missing or damaged" in told
    assert told.count("finished before") == 4
    for name in names:
        assert (folder / name).read_bytes() == (toy / "toy" / folder.name / name).read_bytes()
    assert not claim.damaged(folder)
    shutil.rmtree(folder / "checkpoints")  # to save space: nothing to compare with
    assert not claim.damaged(folder)


def test_a_unit_with_a_damaged_log_is_not_collected(toy, tmp_path, capsys):
    shutil.copytree(toy, tmp_path / "copy")
    path = tmp_path / "copy" / "toy" / "inverted-pendulum-ss" / "metrics.csv"
    path.write_bytes(path.read_bytes()[:-10])
    assert collect.collect(tmp_path / "copy", tmp_path / "out") == 1
    assert "metrics.csv is missing or was changed: run the sweep again" in capsys.readouterr().err
    collected = {x.name for x in (tmp_path / "out" / "toy").iterdir()}
    assert path.parent.name not in collected and len(collected) == 5  # suite.json and four units


def test_the_best_sparse_lane_of_a_sweep_is_published_and_played(toy, tmp_path):
    made = publish.publish_all([toy], tmp_path, count=3, say=lambda text: None)
    assert [path.name for path in made] == ["invertedpendulum"]
    about = folder.read(made[0]).about
    units = [f"toy/inverted-pendulum-{method}" for method in ("rigl", "rlx2", "ss")]
    scores = [files.read_json(toy / u / "summary.json")["lanes"][0]["final_score"] for u in units]
    assert about["unit"] == units[int(np.argmax(scores))]
    assert about["final_score"] == max(scores)
    last = (toy / about["unit"] / "evaluations.csv").read_text().splitlines()[-1]
    assert about["weights"].startswith(last.split(",")[-1])
    subject = evaluate.of_published(folder.read(made[0]))
    assert evaluate.play(subject, range(3), say=lambda text: None)


def test_another_budget_in_the_same_directory_is_refused(toy):
    with pytest.raises(RunError, match="choose another --logdir"):
        sweep.sweep([suites.CATALOGUE["toy"]], dataclasses.replace(TOY, seeds=2), toy)


@pytest.mark.fast
@pytest.mark.parametrize("fraction", [0.0, -1.0, 1e308, float("inf"), float("nan")])
def test_a_fraction_that_is_none_is_refused(fraction):
    with pytest.raises(ValueError, match=r"--fraction=.* above 0 and at most 100"):
        sweep.budget_of("smoke", fraction=fraction)


@pytest.mark.fast
@pytest.mark.parametrize("text", ["", "{}", "[]", '{"suite": "toy"'])
def test_a_damaged_suite_is_refused(tmp_path, text):
    (tmp_path / "suite.json").write_text(text)
    with pytest.raises(RunError, match=r"suite.json .* delete it if .* same flags"):
        sweep.claim(tmp_path, {"suite": "toy"})
    assert (tmp_path / "suite.json").read_text() == text


def test_a_failed_unit_is_reported_and_the_rest_continues(tmp_path, monkeypatch, capsys):
    tried = []

    def run_unit(unit, directory, *_):
        tried.append(unit.name)
        if unit.name == "hopper-rl":
            raise ValueError("no such thing")
        directory.mkdir(parents=True)
        files.write_json(directory / "summary.json", {})

    monkeypatch.setattr(units, "run_unit", run_unit)
    chosen = suites.find(["tickets", "masks"])
    assert sweep.sweep(chosen, BUDGET, tmp_path) == 3
    assert tried == ["hopper-rl", "hopper-search", "hopper-retrain"]
    said = capsys.readouterr().err
    assert "not finished: tickets/hopper-rl (ValueError: no such thing)" in said
    assert "skipped: it needs hopper-rl" in said


def test_shards_run_disjoint_units(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(units, "run_unit", lambda unit, *_: ran.append(unit.name))
    for shard in ("0/2", "1/2"):
        part = sweep.parse_shard(shard)
        sweep.sweep([suites.CATALOGUE["table2"]], suites.BUDGETS["paper"], tmp_path, shard=part)
    assert sorted(ran) == sorted(
        u.name for u in suites.CATALOGUE["table2"].units(suites.BUDGETS["paper"])
    )
    for bad in ("2/2", "x", "1/0", "-1/3"):
        with pytest.raises(ValueError, match="use i/n"):
            sweep.parse_shard(bad)


def test_lists_and_estimates():
    text = sweep.list_units(suites.find(["nstep", "flops"]), suites.BUDGETS["paper"], estimate=True)
    assert "td3-hopper-5-step" in text and " 8 lanes" in text and "3,000,000 steps" in text
    assert "is table2/td3-hopper-rlx2" in text
    assert "hours on two CPU cores" in text and "nothing to train" in text


def test_units_are_selected_by_patterns_and_shared_between_suites(tmp_path, monkeypatch):
    ran = []

    def run_unit(unit, directory, *_):
        ran.append(f"{directory.relative_to(tmp_path)}")
        directory.mkdir(parents=True)
        files.write_json(directory / "summary.json", {})

    monkeypatch.setattr(units, "run_unit", run_unit)
    chosen = suites.find(["nstep", "table2"])
    only = ["td3-hopper-[34]-step", "td3-hopper-rlx2"]
    assert sweep.sweep(chosen, BUDGET, tmp_path, only=only) == 0
    assert ran == ["table2/td3-hopper-rlx2", "nstep/td3-hopper-4-step"]


def command(*args: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "experiments.sweep", *args],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_ledger_is_printed_at_once(tmp_path):
    process = command("--suite=flops", f"--logdir={tmp_path / 'none'}")
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and "FLOPs (train): paper" in text
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--suite=tabel2"], "unknown suite tabel2"),
        (["--suite=toy", "--shard=3/2"], "--shard=3/2"),
        (["--suite=toy", "--units=hopper-*"], "no unit matches; see --list"),
        (["--suite=nstep,toy", "--n=2", "--preset=reference"], "suite nstep varies n itself"),
        ([], "unknown suite (none given)"),
    ],
)
def test_wrong_flags(args, message):
    process = command(*args)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2 and message in said and "Traceback" not in said


# --- behaviour cloning ---


def turn(gain: float):
    """An actor for InvertedPendulum that pushes against the pole's angle (or with it)."""
    first = np.zeros((4, 8), np.float32)
    first[1, 0], first[1, 1], first[3, 0], first[3, 1] = 3.0, -3.0, 0.6, -0.6
    last = np.zeros((8, 1), np.float32)
    last[0], last[1] = gain, -gain
    actor = {
        "Dense_0": {"kernel": first, "bias": np.zeros(8, np.float32)},
        "Dense_1": {"kernel": last, "bias": np.zeros(1, np.float32)},
    }
    return actor


@pytest.fixture(scope="module")
def cloned(tmp_path_factory):
    """Dense and sparse lanes that imitate an expert which balances the pole by hand."""
    folder = tmp_path_factory.mktemp("clones")
    actor = turn(1.0)
    mask = {k: {n: np.ones(x.shape, bool) for n, x in v.items()} for k, v in actor.items()}
    weights.save(folder / "expert.npz", {"actor": weights.Weights(actor, mask)})
    return folder, clone(folder / "unit")


def clone(directory: Path, resume: bool = False):
    """Six thousand updates of three lanes."""
    settings = launch.Settings(
        steps=60_000,
        hidden=(8,),
        batch_size=64,
        eval_interval=30_000,
        episodes=3,
        env_options={"max_episode_steps": 200},
    )
    common = {"expert": "../expert.npz", "learning_rate": 3e-3, "actor_sparsity": 0.5}
    lanes = [
        Lane(method=m, name=m, mask_interval=100, buffer_interval=100, **common)
        for m in ("dense", "ss", "rlx2")
    ]
    run = launch.make_run(*cloning.imitating(settings, lanes, 400))
    return execute.execute(run, directory, resume=resume, say=print, progress=False)


def test_the_expert_solves_the_task_and_is_recorded(cloned):
    lane = Lane(expert=str(cloned[0] / "expert.npz"))
    env = envs.make_host("InvertedPendulum-v5", 1, max_episode_steps=200)

    def make(seed, count):
        cfg = config.make("bc", 4, 1, hidden=(8,), capacity=count, n_max=1)
        return demonstrations.of_lanes(cfg, [dataclasses.replace(lane, seed=seed)], env)[0]

    data = make(0, 450)
    assert data.obs.shape == (450, 1, 4) and data.action.shape == (450, 1, 1)
    assert np.abs(data.obs[..., 1]).max() < 0.2  # it never falls: episodes of 200 steps
    assert np.flatnonzero(data.truncated).tolist() == [199, 399]
    again = make(0, 250)
    np.testing.assert_array_equal(again.obs, data.obs[:250])
    assert np.any(make(1, 250).obs != again.obs)
    with pytest.raises(SettingError, match="give one with --expert"):
        launch.make_run(launch.Settings(algo="bc"), [Lane()])


def test_clones_imitate_the_expert(cloned):
    folder, found = cloned
    assert found["algo"] == "bc" and found["lanes"][0]["critic_sparsity"] is None
    assert found["lanes"][0]["last_return"] == pytest.approx(200)  # dense: as good as the expert
    text = (folder / "unit" / "evaluations.csv").read_text().splitlines()
    assert len(text) == 1 + 3 * 3  # at 0, 3000 and 6000 updates
    static, dynamic = (weights.load(folder / "unit" / "final" / f"lane-{i}.npz") for i in (1, 2))
    assert np.any(
        static["actor"].mask["Dense_0"]["kernel"] != dynamic["actor"].mask["Dense_0"]["kernel"]
    )


def test_cloning_resumes_bit_for_bit(cloned, monkeypatch):
    folder, _ = cloned
    whole, part = folder / "unit", folder / "stopped"
    advance = DeviceLoop.advance

    def stopping(loop, until, stop):
        advance(loop, until, stop)
        stop.signal = signal.SIGTERM if loop.time == 4000 else None

    with monkeypatch.context() as patch:
        patch.setattr(DeviceLoop, "advance", stopping)
        with pytest.raises(guards.Stopped, match="at step 4,000"):
            clone(part)
    clone(part, resume=True)
    assert (part / "evaluations.csv").read_text() == (whole / "evaluations.csv").read_text()


@pytest.mark.slow
def test_a_killed_suite_ends_as_one_that_was_not(tmp_path):
    """SIGKILL at random moments, then the same command again."""
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}

    def flags_for(name: str) -> list[str]:
        return ["--suite=toy,tickets", "--seeds=1", f"--logdir={tmp_path / name}"]

    whole = command(*flags_for("whole"), **cache)
    _, said = whole.communicate(timeout=1800)
    assert whole.returncode == 0, said
    chance, kills = random.Random(3), 0
    while True:
        process = command(*flags_for("killed"), **cache)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=chance.uniform(15, 40))
        if process.returncode is not None:
            assert process.returncode == 0
            break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += 1
        assert kills < 60
    assert kills >= 2
    files = sorted(x.relative_to(tmp_path / "whole") for x in (tmp_path / "whole").rglob("*.csv"))
    assert len(files) >= 7
    for file in files:
        texts = [(tmp_path / name / file).read_text() for name in ("whole", "killed")]
        assert texts[0] == texts[1], file
    for file in (tmp_path / "whole").rglob("final/*.npz"):
        other = tmp_path / "killed" / file.relative_to(tmp_path / "whole")
        one, two = np.load(file), np.load(other)
        for key in one.files:
            np.testing.assert_array_equal(one[key], two[key])


NAMES = [n for n in suites.CATALOGUE if n not in ("toy", "flops")]


@pytest.mark.parametrize("name", NAMES)
def test_one_unit_of_every_suite(name, tmp_path):
    """The first unit, as short as can be; `toy` above and the slow tier run whole suites."""
    budget = dataclasses.replace(BUDGET, fraction=2e-5, evaluations=1, episodes=1)
    unit = suites.CATALOGUE[name].units(budget)[0]
    units.run_unit(unit, tmp_path / unit.name, budget, "masked")
    rows = (tmp_path / unit.name / "evaluations.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * len(unit.lanes) and units.finished(tmp_path / unit.name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_suite_runs_in_smoke(name, tmp_path):
    suite = suites.CATALOGUE[name]
    assert sweep.sweep([suite], suites.BUDGETS["smoke"], tmp_path) == 0
    for unit in suite.units(suites.BUDGETS["smoke"]):
        rows = Path(tmp_path / name / unit.name / "evaluations.csv").read_text().splitlines()
        assert len(rows) == 1 + len(unit.lanes) * (6 if unit.kind == "clone" else 5)
