"""Playing published policies: repeatable scores, agreeing runtimes, rejected folders."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import imageio.v3 as images
import numpy as np
import pytest
from absl import flags
from paths import ROOT
from policies import PENDULUM, finished_run, needs_compiler, observations, policy_of

from experiments import publish
from rlx2_jax import files
from rlx2_jax.cli import evaluate
from rlx2_jax.config import Lane
from rlx2_jax.export import PolicyFileError, episodes, folder, npz, onnx

pytestmark = pytest.mark.fast


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    base = tmp_path_factory.mktemp("published")
    finished_run(base / "run", [(Lane(seed=3), 12.5)])
    (made,) = publish.publish_all([base / "run"], base / "out", count=5, say=lambda text: None)
    return made


@pytest.fixture
def policy(original, tmp_path) -> Path:
    """A copy to damage."""
    copy = tmp_path / "pole"
    copy.mkdir()
    for path in original.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def rewrite(policy: Path, **changes) -> None:
    """Changes policy.json as someone would who knows its digests."""
    about = files.read_json(policy / "policy.json") | changes
    for name in about["files"]:
        data = (policy / name).read_bytes()
        about["files"][name] = {"bytes": len(data), "sha256": files.digest(data)}
    files.write_json(policy / "policy.json", about)


def command(policy: Path | str, *args: str) -> int:
    values = flags.FlagValues()
    evaluate.define_flags(values)
    values(["play", f"--policy={policy}", *args])
    return evaluate.command(values)


@needs_compiler
def test_all_runtimes_act_alike(original):
    published = folder.read(original)
    obs = observations(published.policy, 500)
    wanted = published.policy.act(obs)
    assert wanted.std() > 0.1
    for name in folder.RUNTIMES:
        assert np.abs(folder.runtime(published, name)(obs) - wanted).max() <= 1e-5


@pytest.mark.parametrize("runtime", ["npz", "onnx", pytest.param("c", marks=needs_compiler)])
def test_the_recorded_score_repeats(original, runtime, capsys):
    assert command(original, "--episodes=5", f"--runtime={runtime}") == 0
    text = capsys.readouterr().out
    assert "InvertedPendulum-v5: TD3, rlx2, seed 3" in text and f"policy.{runtime}," in text
    assert "5 episodes (seeds 0 to 4)" in text
    assert "agrees: the difference is +0.00" in text
    assert "final score of its training: 12.5 (mean return of the last 5 evaluations" in text


def test_another_score_on_record_does_not_agree(policy, capsys):
    recorded = files.read_json(policy / "policy.json")["evaluation"]
    rewrite(policy, evaluation=recorded | {"mean": recorded["mean"] + 100})
    assert command(policy, "--episodes=3") == 1
    assert "does NOT agree: the difference is -" in capsys.readouterr().out


def test_a_record_without_its_files_is_refused(policy, capsys):
    about = files.read_json(policy / "policy.json")
    files.write_json(policy / "policy.json", about | {"files": {"policy.npz": 5}})
    assert command(policy) == 2
    assert "policy.json does not list policy.npz" in capsys.readouterr().err
    npz_only = {"policy.npz": about["files"]["policy.npz"]}
    files.write_json(policy / "policy.json", about | {"files": npz_only})
    assert command(policy, "--runtime=c") == 2
    assert "policy.json does not list policy.c" in capsys.readouterr().err


def test_agreement_by_hand():
    one = {"mean": 10.0, "sd": 3.0, "episodes": 4}
    assert evaluate.agreement({**one, "mean": 16.3}, one)[0]  # 3 * 3 * sqrt(1/4 + 1/4) = 6.36
    assert not evaluate.agreement({**one, "mean": 16.4}, one)[0]
    sure = {"mean": 1000.0, "sd": 0.0, "episodes": 100}
    assert evaluate.agreement(sure, sure)[0]
    assert not evaluate.agreement({**sure, "mean": 999.0}, sure)[0]
    assert evaluate.agreement({"mean": 995.0, "sd": 50.0, "episodes": 100}, sure)[0]


def test_episodes_do_not_depend_on_each_other(original):
    published = folder.read(original)
    act, made = folder.runtime(published, "npz"), published.make_envs
    counts: list[int] = []
    many = episodes.play(made, act, range(10, 44), counts.append)
    alone = episodes.play(made, act, [43])
    assert many.returns[-1] == alone.returns[0] and many.lengths[-1] == alone.lengths[0]
    assert counts[-1] == 34 and counts == sorted(set(counts))
    assert len(np.unique(many.returns)) > 1 and many.lengths.max() <= 40


def test_every_damaged_file_is_refused(original, policy):
    rng = np.random.default_rng(0)
    for name in ("policy.npz", "policy.c", "policy.onnx", "policy.json"):
        whole = (original / name).read_bytes()
        for place in rng.integers(len(whole), size=10):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << int(rng.integers(8))
            for data in (bytes(flipped), whole[:place]):
                (policy / name).write_bytes(data)
                with pytest.raises(PolicyFileError, match="policy"):
                    folder.runtime(folder.read(policy), name.partition(".")[2].replace("json", "c"))
        (policy / name).unlink()
        with pytest.raises(PolicyFileError, match=f"{name}|policy.json"):
            folder.runtime(folder.read(policy), name.partition(".")[2].replace("json", "c"))
        (policy / name).write_bytes(whole)


def test_files_of_another_policy_are_not_run(policy, tmp_path):
    """Even with valid digests, the C file is never compiled, because it could contain any code."""
    other = policy_of(PENDULUM._replace(density=0.5))
    onnx.save(other.pruned(), policy / "policy.onnx")
    source = policy / "policy.c"
    source.write_text(source.read_text() + '#include "stdlib.h"\n')
    rewrite(policy)
    published = folder.read(policy)
    with pytest.raises(PolicyFileError, match="actions differ by"):
        folder.runtime(published, "onnx")
    with pytest.raises(PolicyFileError, match=r"policy\.c is not the C file .* not compiled"):
        folder.runtime(published, "c")
    (policy / "policy.onnx").write_bytes(b"no model")
    rewrite(policy)
    with pytest.raises(PolicyFileError, match="cannot be run"):
        folder.runtime(folder.read(policy), "onnx")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 3}, "format is 3, this version reads 1 and 2"),
        ({"env": 5}, "env is 5, not str"),
        ({"final_score": "high"}, "final_score is 'high', not float"),
        ({"final_score": float("nan")}, "final_score is nan"),
        ({"evaluation": {}}, "evaluation.episodes is None, not a number"),
        ({"env_backend": "brax"}, "env_backend is 'brax', not one of"),
        ({"live_links": 5}, "they belong to different policies"),
        ({"env": "Nonsense-v5"}, "Gymnasium has no environment 'Nonsense-v5'"),
        ({"env": "Pendulum-v1"}, "Pendulum-v1 has 3 observations and 1 actions, the policy 4 and"),
        ({"env_options": {"nonsense": 1}}, "cannot be created: TypeError"),
        ({"env": "evil_tasks:Task-v0"}, "the policy names 'evil_tasks:Task-v0'"),
        ({"env_options": {"xml_file": "/a.xml"}}, "xml_file='/a.xml', which may open a file"),
        ({"env_options": {"num_envs": 9}}, "env_options has 'num_envs'"),
    ],
)
def test_what_a_record_may_not_say(policy, changes, message, capsys, monkeypatch):
    (policy.parent / "evil_tasks.py").write_text("import pathlib\npathlib.Path('ran').touch()\n")
    monkeypatch.chdir(policy.parent)
    monkeypatch.syspath_prepend(str(policy.parent))
    rewrite(policy, **changes)
    assert command(policy, "--episodes=1") == 2
    assert message in capsys.readouterr().err
    assert not Path("ran").exists() and "evil_tasks" not in sys.modules


def test_wrong_flags_and_folders(original, tmp_path, capsys):
    for args, message in (
        (("",), "--policy is needed"),
        ((tmp_path,), "there is no policy in"),
        ((original.parent,), "policy.json is missing; it has invertedpendulum"),
        ((original, "--render=episode.bmp"), "episode.bmp: use a name that ends in .gif"),
        ((original, f"--seed={2**31 - 1}"), "must be below 2**31"),
        ((original, "--episodes=0"), "--episodes=0 plays nothing"),
        ((original, "--max_episode_steps=5"), "a published policy is played on its recorded task"),
    ):
        assert command(*args) == 2
        assert message in capsys.readouterr().err


def test_a_time_limit_for_a_task_without_one(original, tmp_path, capsys):
    file = tmp_path / "policy.npz"
    shutil.copy(original / "policy.npz", file)
    task = "--env=InvertedPendulum-v5"
    assert command(file, task, "--episodes=2", "--max_episode_steps=3") == 0
    assert "3.0 steps on average" in capsys.readouterr().out


def test_a_good_file_of_another_policy_is_refused(policy):
    npz.save(policy_of(PENDULUM._replace(density=0.5)), policy / "policy.npz")
    with pytest.raises(PolicyFileError, match=r"policy\.npz is damaged"):
        folder.read(policy)


def _run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "experiments.play", *args],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **env},
    )


@pytest.mark.long
def test_a_picture_of_an_episode(original, tmp_path):
    """In a subprocess, because a failing OpenGL may crash the process."""
    out = tmp_path / "episode.gif"
    done = _run(f"--policy={original}", "--episodes=0", f"--render={out}")
    if done.returncode and "this machine cannot draw" in done.stderr:
        pytest.skip(f"no OpenGL here: {done.stderr.strip()[:200]}")
    assert done.returncode == 0, done.stderr
    assert "seed 0: return" in done.stdout
    video = images.imread(out)
    assert video.shape[1:] == (240, 240, 3) and 1 < len(video) <= 41
    assert video.std() > 1 and (video[0] != video[-1]).any()
    assert out.stat().st_size < 500_000


@pytest.mark.long
def test_an_opengl_that_does_not_work_is_named(original, tmp_path):
    picture = f"--render={tmp_path / 'a.png'}"
    done = _run(f"--policy={original}", "--episodes=0", picture, MUJOCO_GL="nonsense")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "this machine cannot draw" in done.stderr and "(now nonsense)" in done.stderr
