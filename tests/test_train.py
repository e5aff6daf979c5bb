"""The launcher's flags: what they make, and what they refuse."""

import pytest
from absl import flags

from experiments import runs, train
from experiments.runs import SettingError

pytestmark = pytest.mark.fast


@pytest.fixture
def parse():
    """Flag values as a command line would give them."""
    saved = flags.FLAGS.flag_values_dict()

    def values(*args: str):
        flags.FLAGS.unparse_flags()
        for name in flags.FLAGS:
            flags.FLAGS[name].unparse()
        flags.FLAGS(["train", *args])
        return train.flag_values()

    yield values
    for name, value in saved.items():
        flags.FLAGS[name].value = value


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
    with pytest.raises(SettingError, match="no sparsities for Swimmer-v5"):
        train.swept_lanes(parse("--env=Swimmer-v5", "--paper_sparsity"))
    with pytest.raises(SettingError, match="contradict"):
        train.swept_lanes(parse("--env=Hopper-v5", "--paper_sparsity", "--actor_sparsity=0.5"))


def test_intervals_of_one_program_are_the_gcd(parse):
    run = train.make_run(parse("--env=Hopper-v5", "--mask_interval=400,1000"))
    assert run.config.mask_interval == 200
    assert [x.mask_interval for x in run.lanes] == [400, 1000]


def test_presets(parse):
    run = train.make_run(parse("--env=Hopper-v5", "--algo=sac", "--preset=reference"))
    assert run.lanes[0].n == 3 and run.lanes[0].b_max == 3_000_000
    assert run.config.mask_init == "magnitude"
    dense = train.make_run(
        parse("--env=Hopper-v5", "--algo=sac", "--preset=reference", "--method=dense")
    )
    assert dense.lanes[0].n == 1
    paper = train.make_run(parse("--env=Hopper-v5", "--preset=paper"))
    assert paper.config.distance == "l2" and "policy distance" in runs.describe(paper)


def test_the_demonstration_fills_what_was_not_given(parse):
    values = parse("--demo", "--seeds=1")
    assert values["env"] == "InvertedPendulum-v5" and values["seeds"] == 1
    assert len(train.make_run(values).lanes) == 3


def test_dry_run_tells_lanes_memory_and_disk(parse):
    text = runs.describe(train.make_run(parse("--env=Hopper-v5", "--method=dense,rlx2")))
    for part in ("0:dense/s0", "1:rlx2/s0", "GB per lane", "of checkpoints", "MFLOP per update"):
        assert part in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--env=Hoper-v5"], "Hopper"),
        (["--env=Hopper-v5", "--method=rlx3"], "unknown method 'rlx3'"),
        (["--env=Hopper-v5", "--actor_sparsity=1.5"], r"not in \[0, 1\)"),
        (["--env=Hopper-v5", "--learning_rate=nan"], "finite"),
        (["--env=Hopper-v5", "--zeta0=abc"], "--zeta0=abc"),
        (["--env=Hopper-v5", "--warmup=9", "--steps=9"], "warmup"),
        (["--env=Hopper-v5", "--utd=0.5"], "--utd=0.5"),
        (["--env=CartPole-v1"], "continuous"),
    ],
)
def test_mistakes_are_found_before_anything_runs(parse, args, message):
    with pytest.raises((ValueError, SettingError), match=message):
        train.make_run(parse(*args))
