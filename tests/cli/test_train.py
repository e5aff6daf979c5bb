"""The launcher's flags: resulting configurations and rejected values."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest
from absl import flags

from rlx2_jax.cli import main, setting_flags, train
from rlx2_jax.config import METHODS, Config, Lane
from rlx2_jax.training import lane_product, launch, weights
from rlx2_jax.training.settings import SettingError

pytestmark = pytest.mark.fast


@pytest.fixture
def parse():
    """Flag values as a command line would give them."""

    def values(*args: str):
        given = flags.FlagValues()
        train.define_flags(given)
        given(["train", *args])
        return train.flag_values(given)

    return values


def test_lanes_are_the_product_of_lists_and_seeds(parse):
    values = parse("--env=Hopper-v5", "--method=dense,rlx2", "--seeds=3", "--n=1,5", "--t0=7")
    lanes = train.swept_lanes(values)
    assert len(lanes) == 12
    assert [(x.method, x.n, x.seed) for x in lanes[:4]] == [
        ("dense", 1, 0),
        ("dense", 1, 1),
        ("dense", 1, 2),
        ("dense", 5, 0),
    ]
    run = train.make_run(values)
    assert run.config.n_max == 5 and run.config.obs_dim == 11
    assert run.config.steps == 3_000_000 and run.config.warmup == 25_000
    assert {x.t0 for x in run.lanes} == {7}


def test_paper_sparsities(parse):
    values = parse("--env=Walker2d-v5", "--algo=sac", "--paper_sparsity")
    (lane,) = train.swept_lanes(values)
    assert (lane.actor_sparsity, lane.critic_sparsity) == (0.9, 0.9)
    with pytest.raises(ValueError, match="no sparsities for Swimmer-v5"):
        train.swept_lanes(parse("--env=Swimmer-v5", "--paper_sparsity"))
    with pytest.raises(SettingError, match="contradict"):
        train.swept_lanes(parse("--env=Hopper-v5", "--paper_sparsity", "--actor_sparsity=0.5"))


def test_intervals_of_one_program_are_the_gcd(parse):
    run = train.make_run(parse("--env=Hopper-v5", "--mask_interval=400,1000"))
    assert run.config.mask_interval == 200
    assert [x.mask_interval for x in run.lanes] == [400, 1000]


def test_lanes_that_never_evolve_do_not_make_the_branch_interval_smaller(parse):
    run = train.make_run(parse("--env=Hopper-v5", f"--mask_interval=400,{2**31 - 1}"))
    assert run.config.mask_interval == 400
    assert [x.mask_interval for x in run.lanes] == [400, 2**31 - 1]


def test_short_runs_keep_the_buffer_bounds(parse):
    run = train.make_run(parse("--env=Hopper-v5", "--steps=300000"))
    (lane,) = run.lanes
    assert run.config.capacity == 300_000  # memory: no more is ever held
    assert (lane.b_min, lane.b_max) == (100_000, 1_000_000)
    small = train.make_run(parse("--env=Hopper-v5", "--capacity=50000"))
    assert (small.lanes[0].b_min, small.lanes[0].b_max) == (5_000, 50_000)
    sac = parse("--env=Hopper-v5", "--algo=sac", "--preset=reference", "--capacity=50000")
    assert train.make_run(sac).lanes[0].b_max == 50_000
    with pytest.raises(ValueError, match="b_max=1000: use at most capacity=500"):
        train.make_run(parse("--env=Hopper-v5", "--capacity=500", "--b_max=1000"))


def test_every_setting_has_a_flag(parse):
    values = parse("--trim_full=false", "--t_end_counts=steps", "--t_end=7", "--target_noise=0.3")
    settings = lane_product.choices(values)
    assert settings == {"trim_full": False, "t_end_counts": "steps"}
    assert lane_product.lane_axes(values) == {
        "method": ["rlx2"],
        "t_end": [7],
        "target_noise": [0.3],
    }
    # What decides shapes, names files or is derived from other settings has none.
    derived = {"tiny", "execution", "name", "weights", "masks", "expert", "seed"}
    derived.add("topology")
    assert {f.name for f in dataclasses.fields(Lane)} - derived <= set(values)
    derived = {"obs_dim", "action_dim", "updates_per_step", "n_max", "dtype", "links", "topology"}
    derived |= {"action_low", "action_high"}
    assert {f.name for f in dataclasses.fields(Config)} - derived <= set(values)


def test_other_commands_can_have_the_flags_of_lanes():
    own = flags.FlagValues()
    setting_flags.define_lane_flags(own)
    setting_flags.define_choice_flags(own)
    own(["sweep", "--zeta0=0.1,0.3", "--trim=until"])
    values = own.flag_values_dict()
    points = lane_product.lane_points(lane_product.lane_axes(values), 1)
    assert points == [{"method": "rlx2", "zeta0": 0.1}, {"method": "rlx2", "zeta0": 0.3}]
    assert lane_product.choices(values) == {"trim": "until"}


def test_settings_without_effect_are_reported_at_the_start_and_by_the_dry_run(parse, capsys):
    values = parse("--env=Hopper-v5", "--steps=300000", "--method=dense,rlx2", "--seeds=3")
    text = launch.describe(train.make_run(values))
    assert text.count("t0=300000 is never reached") == 1
    assert "3 lanes" not in text and "lane 3, 4, 5 (rlx2): t0" in text
    train.set_up(values, Path("runs/none"))
    errors = capsys.readouterr().err
    assert errors.startswith("warning: lane 3, 4, 5 (rlx2): t0=300000 is never reached")
    train.set_up(parse("--demo"), Path("runs/none"))
    assert not capsys.readouterr().err


def test_presets(parse):
    run = train.make_run(parse("--env=Hopper-v5", "--algo=sac", "--preset=reference"))
    assert run.lanes[0].n == 3 and run.lanes[0].b_max == 3_000_000
    assert run.config.mask_init == "magnitude"
    dense = train.make_run(
        parse("--env=Hopper-v5", "--algo=sac", "--preset=reference", "--method=dense")
    )
    assert dense.lanes[0].n == 1
    paper = train.make_run(parse("--env=Hopper-v5", "--preset=paper"))
    assert paper.config.distance == "l2" and "policy distance" in launch.describe(paper)


def test_the_demonstration_fills_in_missing_settings(parse):
    values = parse("--demo", "--seeds=1")
    assert values["env"] == "InvertedPendulum-v5" and values["seeds"] == 1
    assert len(train.make_run(values).lanes) == 3


def test_dry_run_prints_lanes_memory_and_disk(parse):
    text = launch.describe(train.make_run(parse("--env=Hopper-v5", "--method=dense,rlx2")))
    for part in ("0:dense/s0", "1:rlx2/s0", "GB per lane", "of checkpoints", "MFLOP per update"):
        assert part in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--env=Hoper-v5"], "Hopper"),
        (["--method=rlx3"], r"--method=rlx3: 'rlx3': use one of \('dense', "),
        (["--method="], "--method=: the list is empty: use one of"),
        (["--method=rlx2, rlx2"], "rlx2 is given twice"),
        (["--zeta0=0.5,0.50"], "0.5 is given twice"),
        (["--actor_sparsity=1.5"], r"--actor_sparsity=1.5: '1.5': use a value in \[0, 1\)"),
        (["--learning_rate=nan"], "--learning_rate=nan: .* finite"),
        (["--d0=1e400"], "--d0=1e400: .* finite"),
        (["--zeta0=abc"], "--zeta0=abc"),
        (["--n="], "--n=: the list is empty: use an integer"),
        (["--hidden="], "--hidden=: the list is empty"),
        (["--hidden=abc"], "--hidden=abc: 'abc': use an integer"),
        (["--hidden=1000000,1000000"], "--hidden=1000000,1000000: a lane needs about .* GB"),
        (["--batch_size=1000000000"], "--batch_size=1000000000: a lane needs about"),
        (["--batch_size=1000000000000"], "--batch_size=1000000000000: use .* at most 2147483647"),
        (["--episodes=60000"], "--episodes=60000: a lane needs about"),
        (["--capacity=2000000000"], "--capacity=2000000000: a lane needs about"),
        (["--capacity=0"], "--capacity=0: use an integer of at least 1"),
        (["--mask_interval=0"], "--mask_interval=0: '0': use an integer of at least 1"),
        (["--buffer_interval=0"], "--buffer_interval=0: '0': use an integer of at least 1"),
        (["--t0=99999999999"], "--t0=99999999999: .* at most 2147483647"),
        (["--first_seed=2147483648"], "--first_seed=2147483648: use .* at most 2147483647"),
        (["--first_seed=2147483647", "--seeds=2"], "use a --first_seed of at most 2147483646"),
        (["--seeds=1000000000000"], "--seeds=1000000000000: use .* at most 1024"),
        (
            ["--seeds=1024", "--n=1,2"],
            r"2,048 lanes from --n \(2\), --seeds=1024: .* at most 1,024",
        ),
        (["--utd=nan"], "--utd=nan: .* finite"),
        (["--utd=inf"], "--utd=inf: .* finite"),
        (["--utd=1e30"], "--utd=1e.30 x --num_envs=1 is 1e.30 updates per time step"),
        (["--trim_full=maybe"], "--trim_full=maybe: use true or false"),
        (["--mask_init=best"], "--mask_init=best: use one of"),
        (["--env=Hopper-v5", "--warmup=9", "--steps=9"], "warmup"),
        (["--env=Hopper-v5", "--utd=0.5"], "--utd=0.5"),
        (["--env=CartPole-v1"], "continuous"),
    ],
)
def test_mistakes_are_found_before_anything_runs(parse, args, message):
    with pytest.raises((ValueError, flags.Error), match=message):
        train.make_run(parse(*args))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_run_alone(parse, method):
    """The memory estimate of a run uses the rules of its lanes."""
    text = launch.describe(train.make_run(parse("--env=Hopper-v5", f"--method={method}")))
    assert "memory: " in text


def test_the_directory_is_checked_before_the_start(parse, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "file").write_text("")
    values = parse("--env=Hopper-v5", "--capacity=1000")
    for logdir, message in (
        (tmp_path, "already holds a run"),
        (tmp_path / "file" / "run", "not a writable directory"),
        (tmp_path / ("x" * 5000), "File name too long"),
    ):
        with pytest.raises(SettingError, match=message):
            train.set_up(values, logdir)
    with pytest.raises(SettingError, match="--logdir= is empty"):
        train.default_logdir(parse("--logdir="))
    with pytest.raises(SettingError, match=r"--warmup=25000 gives fewer steps than .* n=50000"):
        train.set_up(parse("--n=50000"), tmp_path / "new")
    with pytest.raises(SettingError, match=r"or --keep \(now 2147483647\)"):
        train.set_up(parse("--env=Hopper-v5", "--keep=2147483647"), tmp_path / "new")


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "does not exist"), (b"", "is not"), ("critic", "has no"), ("small", "do not fit")],
)
@pytest.mark.parametrize("algo", ["bc", "td3"])
def test_an_expert_is_checked_before_the_start(parse, tmp_path, algo, text, message):
    path = tmp_path / "expert.npz"
    layers = {"Dense_0": {"kernel": np.zeros((2, 2), np.float32), "bias": np.zeros(2, np.float32)}}
    network = weights.Weights(layers, jax.tree.map(lambda x: x == 0, layers))
    name = "actor" if algo == "bc" else "critic"
    if text == "small":
        both = weights.Weights(*({"q1": tree, "q2": tree} for tree in network[:2]))
        weights.save(path, {name: network if algo == "bc" else both})
    elif text == "critic":
        weights.save(path, {"other": network})
    elif text is not None:
        path.write_bytes(text)
    values = parse(f"--algo={algo}", f"--expert={path}", "--method=rigl")
    with pytest.raises(ValueError, match=message):
        train.set_up(values, None)


def test_devices_are_counted_by_the_dry_run(capsys):
    assert main.main(["train", "--dry_run", "--devices=1000"]) == 2
    assert "--devices=1000: this process has" in capsys.readouterr().err
    assert main.main(["train", "--dry_run", "--host_timeout=nan"]) == 2
    assert "--host_timeout=nan" in capsys.readouterr().err
