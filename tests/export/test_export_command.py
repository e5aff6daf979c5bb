"""From a run directory to policy files: `experiments.export`."""

import dataclasses

import jax
import numpy as np
import pytest
from absl import flags
from policies import Case, policy_of
from policies import actor as random_actor
from programs import jit

from rlx2_jax import config, files, networks
from rlx2_jax.cli import export as command
from rlx2_jax.export import actor, bundle, compare, compiled, from_actor, npz, onnx, stablehlo
from rlx2_jax.kernels import layout
from rlx2_jax.networks import compact, masked, optimize
from rlx2_jax.training.checkpoint import Checkpoints
from rlx2_jax.training.run import Run, RunError, make_loop

LANES = 4  # in two groups


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run directory with one checkpoint at its start, and the actors that it holds."""
    cfg = config.make(
        "td3", 4, 1, hidden=(16, 16), batch_size=16, oldest_k=32, steps=100, warmup=40, capacity=100
    )
    lanes = [config.resolve(cfg, config.Lane(seed=i)) for i in range(LANES)]
    run = Run("InvertedPendulum-v5", cfg, tuple(lanes), chunk=LANES)
    directory = tmp_path_factory.mktemp("run")
    files.write_json(directory / "config.json", run.to_json())
    loop = make_loop(run, run.lanes, directory)
    store = Checkpoints(directory / "checkpoints")
    store.save(0, 0, loop.snapshots(), [], {"lanes": loop.lanes})
    actors = [
        jax.tree.map(
            lambda x, i=i: np.asarray(x[i]), (state.agent.actor.params, state.agent.actor.masks)
        )
        for state in loop.states()
        for i in range(LANES // 2)
    ]
    loop.close()
    return run, directory, actors


def test_the_actor_of_each_lane(saved):
    _, directory, actors = saved
    before = sorted(p.stat().st_mtime_ns for p in directory.rglob("*"))
    for lane, (params, masks) in enumerate(actors):
        found = actor.actor_of(actor.read_run(directory), directory, lane)
        jax.tree.map(np.testing.assert_array_equal, found.params, params)
        jax.tree.map(np.testing.assert_array_equal, found.masks, masks)
        assert found.step == 0
    assert sorted(p.stat().st_mtime_ns for p in directory.rglob("*")) == before  # only read


def test_the_compact_form_gives_the_same_actor():
    params, masks = random_actor(Case((3, 5, 2), 0.5))
    spec = layout.spec_of(masks)
    pack = lambda params, masks: compact.pack(optimize.init(params, masks), spec)  # noqa: E731
    found = actor.masked(jit(pack)(params, masks))
    jax.tree.map(np.testing.assert_array_equal, found[0], params)
    jax.tree.map(np.testing.assert_array_equal, found[1], masks)


def test_runs_that_cannot_be_read(saved, tmp_path):
    run, directory, _ = saved
    with pytest.raises(RunError, match=r"no run in .*config\.json is missing"):
        actor.read_run(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RunError, match=r"config\.json cannot be read"):
        actor.read_run(tmp_path)
    with pytest.raises(RunError, match="lanes 0 to 3"):
        actor.actor_of(run, directory, 4)
    with pytest.raises(RunError, match=r"lane 1 has no checkpoint"):
        actor.actor_of(run, tmp_path, 1)
    more = dataclasses.replace(run, lanes=(*run.lanes, run.lanes[0]))
    with pytest.raises(RunError, match=r"lane 4 has no checkpoint"):
        actor.actor_of(more, directory, 4)
    other = dataclasses.replace(run, lanes=run.lanes[::-1])
    with pytest.raises(RunError, match="holds seed 0 where lane 0 should be"):
        actor.actor_of(other, directory, 0)
    (tmp_path / "checkpoints" / "states" / "7").mkdir(parents=True)
    with pytest.raises(RunError, match=r"no checkpoint in .* can be read"):
        actor.actor_of(run, tmp_path, 0)


def test_all_files_of_a_lane(saved, tmp_path):
    _, directory, actors = saved
    said = []
    found = command.export_lane(
        directory, 0, out=tmp_path, name="pole", int8=True, episodes=2, say=said.append
    )
    names = ("pole.c", "pole.npz", "pole.onnx", "pole.stablehlo", "pole_int8.c", "pole_runtime.py")
    assert sorted(found["files"]) == sorted(names)
    assert {p.name for p in tmp_path.iterdir()} == {*names, "manifest.json"}
    for name in names[:5]:
        entry = found["files"][name]
        assert entry["bytes"] == (tmp_path / name).stat().st_size
        if compiled.compiler():
            assert entry["largest_error"] <= 1e-5
    obs = bundle.observations(4)
    wanted = np.asarray(networks.policy(masked.bind(actors[0][0]), jax.numpy.asarray(obs)))
    policy = npz.load(tmp_path / "pole.npz")
    np.testing.assert_array_equal(policy.low, [-3])
    for act in (policy.act, stablehlo.load(tmp_path / "pole.stablehlo")):
        assert np.abs(act(obs) - wanted).max() <= 1e-5
    assert np.abs(onnx.run(tmp_path / "pole.onnx", obs) - wanted).max() <= 1e-5
    text = "\n".join(said)
    for part in ("lane 0 (rlx2, seed 0) at step 0", "dense float32", "2 paired episodes", "95%"):
        assert part in text
    assert found["int8"]["episodes"] == 2


def parsed(*args: str) -> flags.FlagValues:
    values = flags.FlagValues()
    command.define_flags(values)
    values(["export", *args])
    return values


def test_the_command(saved, tmp_path, capsys):
    args = [f"--logdir={saved[1]}", "--lane=3", "--format=npz", f"--out={tmp_path}"]
    assert command.command(parsed(*args)) == 0
    assert "lane 3 (rlx2, seed 3)" in capsys.readouterr().out
    assert 0 < npz.load(tmp_path / "policy.npz").links < 4 * 16 + 16 * 16 + 16


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "--logdir is needed"),
        (("--logdir=nowhere",), "nowhere: config.json is missing"),
        (("--lane=9",), "lane 9: the run has lanes 0 to 3"),
        (("--lane=-1",), "lane -1: the run has lanes 0 to 3"),
        (("--format=c,exe",), "--format=c,exe: use one or more of c,npz,onnx,stablehlo"),
        (("--format=",), "use one or more of"),
        (("--int8", "--format=npz"), "add c to --format"),
        (("--name=a-b", "--format=c"), "C identifier"),
        (("--name=../evil", "--format=npz"), "C identifier"),
        (("--name=/tmp/evil", "--format=stablehlo"), "C identifier"),
        (("--name=", "--format=npz"), "C identifier"),
        ((f"--name={'a' * 300}", "--format=npz"), "up to 63 letters"),
        (("--int8", "--episodes=1", "--format=c"), "use at least 2"),
    ],
)
def test_what_the_command_refuses(saved, args, message, capsys, tmp_path):
    if args and not args[0].startswith("--logdir"):
        args = (f"--logdir={saved[1]}", *args, f"--out={tmp_path}")
    assert command.command(parsed(*args)) == 2
    assert message in capsys.readouterr().err


def test_a_missing_package_is_found_before_anything_is_read(monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    assert command.command(parsed("--logdir=nowhere")) == 2
    assert "pip install 'rlx2_jax[export]'" in capsys.readouterr().err


def test_a_file_that_differs_is_refused(saved, tmp_path):
    params, masks = saved[2][0]
    policy = from_actor(params, masks, "td3")
    made = bundle.Bundle(policy, "policy", tmp_path)
    with pytest.raises(bundle.CheckFailed, match="do not use it"):
        made.write("npz", policy.act(made.obs) + 1e-4)


@pytest.mark.fast
def test_paired_differences_by_hand():
    found = compare.difference(np.array([10.0, 20, 30, 40]), np.array([11.0, 19, 33, 41]))
    assert (found.first, found.other, found.mean) == (25, 26, 1)
    assert found.half_width == pytest.approx(3.1824 * np.std([1, -1, 3, 1], ddof=1) / 2, rel=1e-4)
    assert found.relative == pytest.approx(0.04) and found.small  # more than 3%, within chance
    assert not compare.difference(np.array([1.0, 2, 3]), np.array([2.0, 3, 4])).small
    assert compare.difference(np.array([100.0, 200]), np.array([101.0, 201])).small


def test_episodes_on_the_host_begin_alike(saved):
    run, _, actors = saved
    params, masks = actors[1]
    policy = from_actor(params, masks, "td3")
    seen: list[np.ndarray] = []

    def act(obs: np.ndarray) -> np.ndarray:
        seen.append(obs)
        return policy.act(obs)

    first = compare.host_returns(run, act, 3, 4)
    starts = len(seen)
    np.testing.assert_array_equal(compare.host_returns(run, act, 3, 4), first)
    np.testing.assert_array_equal(seen[0], seen[starts])
    assert len(np.unique(seen[0], axis=0)) == 4


@pytest.mark.parametrize(("env", "value"), [("Truncation", 5.0), ("BothEnds", 3.0)])
def test_returns_on_host_and_device_count_one_episode(env, value):
    cfg = config.make("td3", 1, 1, steps=100, warmup=10, capacity=100)
    run = Run(f"rlx2_jax/{env}-v0", cfg, ())
    policy = policy_of(Case((1, 4, 1), 0.9))
    on_device = dataclasses.replace(run, backend="brax")
    host = compare.host_returns(run, policy.act, 0, 3)
    np.testing.assert_array_equal(host, np.full(3, value))
    np.testing.assert_array_equal(compare.device_episodes(on_device, policy, 0, 3).returns, host)
