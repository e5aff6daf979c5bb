"""Defaults, presets, methods as data, and helpful errors."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
import pytest

from rlx2_jax import config
from rlx2_jax.config import Config, Lane
from rlx2_jax.options import NEVER
from rlx2_jax.sparse.lane_topology import RIGL

pytestmark = pytest.mark.fast
TD3, SAC = config.make("td3", 11, 3), config.make("sac", 11, 3)


def test_defaults_are_the_papers_table():
    for cfg in (TD3, SAC):
        assert cfg.hidden == (256, 256) and cfg.batch_size == 256
        assert cfg.warmup == 25_000 and cfg.steps == 3_000_000
        assert cfg.mask_interval == cfg.buffer_interval == 10_000
        assert cfg.oldest_k == 8 * cfg.batch_size and cfg.capacity == 1_000_000
        lane = config.resolve(cfg, Lane())
        assert lane.learning_rate == 3e-4 and lane.discount == 0.99 and lane.tau == 0.005
        assert lane.zeta0 == 0.5 and lane.d0 == 0.2 and lane.t0 == 300_000
        assert (lane.b_min, lane.b_max) == (100_000, 1_000_000) and lane.trim_ratio == 0.1
        assert lane.exploration_noise == 0.1
        assert (lane.target_noise, lane.target_noise_clip) == (0.2, 0.5)
        assert lane.t_end == cfg.updates == 2_975_000
    assert (TD3.policy_delay, TD3.target_interval, config.resolve(TD3, Lane()).n) == (2, 2, 3)
    assert (SAC.policy_delay, SAC.target_interval, config.resolve(SAC, Lane()).n) == (1, 1, 2)
    assert config.resolve(SAC, Lane()).target_entropy == -3.0
    assert (TD3.scheme, SAC.scheme) == ("uniform", "orthogonal")
    sizes = lambda layers: [shape for _, shape in layers]  # noqa: E731
    assert sizes(TD3.actor_layers) == [(11, 256), (256, 256), (256, 3)]
    assert sizes(SAC.actor_layers) == [(11, 256), (256, 256), (256, 6)]
    assert sizes(TD3.critic_layers) == sizes(SAC.critic_layers) == [(14, 256), (256, 256), (256, 1)]


# Where the paper's text and its authors' code differ: (field, paper, reference, default).
TABLE = [
    ("mask_init", "random", "magnitude", "random"),
    ("mask_step", "after", "skip", "skip"),
    ("moments", "zero", "keep", "zero"),
    ("regrow", "keep", "keep", "keep"),
    ("targets", "masked", "polyak", "masked"),
    ("distance", "l2", "mse", "mse"),
    ("behaviour", "action", "mean", "mean"),
    ("oldest_k", 2048, 2048, 2048),
    ("trim", "until", "ratio", "ratio"),
    ("trim_full", False, True, True),
    ("b_min_bound", "hard", "soft", "hard"),
    ("switch", "steps", "updates", "updates"),
    ("t_end_counts", "steps", "updates", "updates"),
    ("both_ends", "terminated", "truncated", "terminated"),
    ("exploration", "sample", "mean", "sample"),
    ("sac_growth", "critic", "leaked", "critic"),
    ("critic_actions", "unit", "environment", "unit"),
]


@pytest.mark.parametrize("algo", ["td3", "sac"])
def test_presets_set_the_documented_fields(algo):
    made = [config.make(algo, 11, 3, name=n) for n in ("paper", "reference", "default")]
    for field, *values in TABLE:
        assert [getattr(cfg, field) for cfg in made] == values, field
    covered = {field for field, *_ in TABLE} | {"policy_delay", "target_interval", "n_max"}
    for name in config.PRESETS:
        assert set(config.preset(name, algo)) <= covered | {"capacity"}
    t_ends = [config.resolve(cfg, Lane()).t_end for cfg in made]
    assert t_ends == [3_000_000, 2_975_000, 2_975_000]


def test_sac_of_the_released_code_has_other_bounds():
    cfg = config.make("sac", 11, 3, name="reference")
    lane = config.resolve(cfg, Lane(**config.lane_preset("reference", "sac")))
    assert (lane.n, lane.b_min, lane.b_max) == (3, 200_000, 3_000_000)
    assert cfg.capacity == 3_000_000 and cfg.n_max == 3
    fields = config.lane_preset("reference", "sac", "rigl")  # n = 1 is the method's own
    assert config.resolve(cfg, Lane(method="rigl", **fields)).n == 1
    assert config.lane_preset("reference", "td3") == config.lane_preset("paper", "sac") == {}


def test_sac_always_gets_its_default_intervals():
    direct = Config("sac", 11, 3)
    assert direct == SAC and Config("td3", 11, 3) == TD3
    assert (direct.policy_delay, direct.target_interval, direct.n_max) == (1, 1, 2)
    assert Config("sac", 11, 3, policy_delay=2).policy_delay == 2
    with pytest.raises(ValueError, match="policy_delay=0: use an integer of at least 1"):
        Config("sac", 11, 3, policy_delay=0)


def test_b_min_follows_b_max_and_not_the_capacity():
    short = config.make("td3", 11, 3, steps=300_000, capacity=300_000)
    lane = config.resolve(short, Lane(b_max=1_000_000))
    assert (lane.b_min, lane.b_max) == (100_000, 1_000_000)
    assert config.resolve(TD3, Lane(b_max=50_000)).b_min == 5_000
    with pytest.raises(ValueError, match="b_max=1000000: use at most capacity=299999"):
        config.resolve(dataclasses.replace(short, capacity=299_999), Lane(b_max=1_000_000))


def test_explicit_fields_win_over_presets():
    cfg = config.make("sac", 11, 3, name="paper", trim="ratio", policy_delay=4)
    assert cfg.trim == "ratio" and cfg.policy_delay == 4


@pytest.mark.parametrize(
    ("method", "n", "trims", "evolves", "random", "dense", "tiny"),
    [
        ("dense", 1, False, False, False, True, False),
        ("tiny", 1, False, False, False, False, True),
        ("ss", 1, False, False, False, False, False),
        ("set", 1, False, True, True, False, False),
        ("rigl", 1, False, True, False, False, False),
        ("rlx2", 3, True, True, False, False, False),
        ("rlx2-tiny", 3, True, False, False, False, True),
        ("rlx2-ss", 3, True, False, False, False, False),
        ("rlx2-set", 3, True, True, True, False, False),
    ],
)
def test_methods_are_data(method, n, trims, evolves, random, dense, tiny):
    lane = config.resolve(TD3, Lane(method=method))
    assert lane.n == n and (lane.grow == "random") == random and lane.tiny == tiny
    assert (lane.trim_ratio or 0) > 0 if trims else lane.trim_ratio == 0
    assert (lane.zeta0 or 0) > 0 if evolves else lane.zeta0 == 0
    assert (lane.actor_sparsity == lane.critic_sparsity == 0.0) == dense
    assert config.resolve(TD3, lane) == lane  # nothing left to fill in
    widths = config.widths(TD3, Lane(method=method))
    assert (widths == (None, None)) != tiny
    assert set(config.METHODS) >= {method}


def test_tiny_widths():
    hopper = Lane(method="tiny", actor_sparsity=0.98, critic_sparsity=0.95)
    assert config.widths(TD3, hopper) == (31, 52)
    # A list of one sparsity per layer counts by the layers' sizes.
    listed = Lane(method="tiny", actor_sparsity=(0.98,) * 3, critic_sparsity=(0.5, 0.96, 0.5))
    actor, critic = config.widths(TD3, listed)
    overall = (0.5 * 14 * 256 + 0.96 * 256**2 + 0.5 * 256) / (14 * 256 + 256**2 + 256)
    same = Lane(method="tiny", actor_sparsity=0.98, critic_sparsity=overall)
    assert (actor, critic) == config.widths(TD3, same)


def test_lanes_of_any_method_stack():
    methods = [m for m in config.METHODS if config.topology_of(Lane(method=m)) == RIGL]
    assert {"dense", "tiny", "ss", "set", "rigl", "rlx2"} < set(methods)
    lanes = [Lane(method=m, discount=d) for m, d in zip(methods, [1, 0.9] * 5)]
    hypers = [config.hyper(TD3, lane) for lane in lanes]
    types = [jax.tree.map(lambda x: (x.dtype, x.shape), h) for h in hypers]
    assert all(t == types[0] for t in types)
    assert all(x.shape == () for x in jax.tree.leaves(hypers[0]))
    numpy = config.hyper(TD3, Lane(n=np.int64(2), b_max=np.int64(10**6), d0=np.float64(0.1)))  # type: ignore[arg-type]
    assert jax.tree.map(lambda x: (x.dtype, x.shape), numpy) == types[0]


def test_the_actors_schedule_counts_actor_updates():
    hyper = config.hyper(TD3, Lane(t_end=1001, mask_interval=20_000))
    assert (int(hyper.critic.t_end), int(hyper.actor.t_end)) == (1001, 500)
    assert int(hyper.critic.interval) == int(hyper.actor.interval) == 20_000
    assert config.shared_interval([10_000, 15_000, 20_000, NEVER]) == 5_000
    assert config.shared_interval([NEVER, NEVER]) == NEVER


def test_updates_of_several_environments():
    cfg = config.make("td3", 3, 1, num_envs=4, steps=1000, warmup=200, updates_per_step=2)
    assert cfg.updates == 400


def test_a_config_is_a_static_argument():
    listed: Any = [8, 8]
    one, same = (config.make("td3", 3, 1, hidden=h) for h in (listed, (8, 8)))
    assert one == same and hash(one) == hash(same)
    assert dataclasses.replace(one, batch_size=1) != one


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"algo": "ddpg"}, r"algo 'ddpg': use one of \('td3', 'sac', "),
        ({"mask_init": "best"}, r"mask_init='best': use one of .*'magnitude'"),
        ({"regrow": "yes"}, r"regrow='yes': use one of .*'forbid'"),
        ({"dtype": "float16"}, r"dtype='float16': use one of .*'float64'"),
        ({"hidden": ()}, r"hidden=\(\): give at least one layer"),
        ({"hidden": (8, 0)}, r"hidden=\(8, 0\)"),
        ({"batch_size": 0}, r"batch_size=0: use an integer of at least 1"),
        ({"batch_size": 2.5}, r"batch_size=2.5: use an integer"),
        ({"mask_interval": -1}, r"mask_interval=-1"),
        ({"capacity": 1e6}, r"capacity=1000000.0: use an integer"),
        ({"capacity": 2}, r"capacity=2 holds fewer than n_max=3 .* use at least 3"),
        ({"capacity": 5, "num_envs": 2}, r"capacity=5 .* use at least 6"),
        ({"warmup": 3_000_000}, r"warmup=3000000: use .* below steps=3000000"),
        ({"warmup": -1}, r"warmup=-1"),
        ({"warmup": 1.5}, r"warmup=1.5: use an integer"),
        ({"steps": 2**31}, r"steps=2147483648: use .* at most 2147483647"),
        ({"updates_per_step": 1000}, r"2,975,000,000 updates"),
        ({"updates_per_step": 10**6}, r"updates_per_step=1000000: use .* at most 65536"),
        ({"hidden": (8,) * 33}, r"at most 32 layers"),
        ({"hidden": "abc"}, r"hidden=abc: give at least one layer"),
        ({"hidden": ("a",)}, r"hidden=\('a',\): for each layer, use an integer"),
        ({"capacity": 2**31}, r"capacity=2147483648: use .* at most 2147483647"),
        (
            {"steps": 2**31 - 1, "num_envs": 4},
            r"limit for steps and updates is 2,147,483,647: use fewer",
        ),
        ({"steps": 10, "warmup": 9, "num_envs": 4, "capacity": 99}, r"use at least steps=13"),
        ({"trim_full": "yes"}, r"trim_full='yes': use true or false"),
    ],
)
def test_bad_configs(fields, message):
    fields = {"algo": "td3", "obs_dim": 3, "action_dim": 1, **fields}
    with pytest.raises(ValueError, match=message):
        config.make(**fields)


def test_unknown_names():
    with pytest.raises(ValueError, match=r"unknown preset 'best': use one of .*'paper'"):
        config.make("td3", 3, 1, name="best")
    with pytest.raises(ValueError, match=r"unknown preset 'best'"):
        config.lane_preset("best")
    with pytest.raises(ValueError, match=r"unknown method 'magic': use one of .*'rlx2'"):
        config.hyper(TD3, Lane(method="magic"))
    with pytest.raises(ValueError, match=r"algo='dqn': use one of"):
        Config("dqn", 3, 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"learning_rate": math.nan}, r"learning_rate=nan: .* must be finite"),
        ({"d0": math.inf}, r"d0=inf: .* must be finite"),
        ({"actor_sparsity": math.nan}, r"actor_sparsity=nan"),
        ({"actor_sparsity": 1.0}, r"actor_sparsity=1.0: use a value in \[0, 1\)"),
        ({"critic_sparsity": (0.5, -0.1, 0.5)}, r"critic_sparsity=-0.1: use a value in"),
        ({"distribution": "magic"}, r"distribution='magic': use one of .*'erk'"),
        ({"discount": 1.01}, r"discount=1.01: use a value in \[0, 1\]"),
        ({"tau": -0.1}, r"tau=-0.1: use a value in \[0, 1\]"),
        ({"zeta0": 1.5}, r"zeta0=1.5: use a value in"),
        ({"trim_ratio": 2.0}, r"trim_ratio=2.0: use a value in"),
        ({"learning_rate": -1.0}, r"learning_rate=-1.0: use a value of at least 0"),
        ({"n": 0}, r"n=0: use an integer of at least 1"),
        ({"n": 4}, r"n=4: use 1 to n_max=3, or raise n_max"),
        ({"t0": -1}, r"t0=-1: use an integer of at least 0"),
        ({"t_end": 0}, r"t_end=0: use an integer of at least 1"),
        ({"mask_interval": 15_000}, r"mask_interval=15000 .* multiple of .*10000.* gcd"),
        ({"buffer_interval": 1}, r"buffer_interval=1 .* not a multiple of .*10000"),
        ({"b_max": 2_000_000}, r"b_max=2000000: use at most capacity=1000000"),
        ({"b_max": 2}, r"b_max=2: .* at least 3 for windows of n=3"),
        ({"b_min": 2_000, "b_max": 1_000}, r"b_min=2000 must be between 0 and b_max=1000"),
        ({"t0": 2**31}, r"t0=2147483648: use .* at most 2147483647"),
        ({"t0": 1.5}, r"t0=1.5: use an integer"),
        ({"seed": 2**31}, r"seed=2147483648: use .* at most 2147483647"),
        ({"d0": 1e39}, r"d0=1e\+39: a hyper-parameter is a 32-bit float"),
        (
            {"actor_sparsity": 0.9999999},
            r"actor_sparsity=0.9999999 with hidden=.* every layer needs one",
        ),
        ({"b_min": 0}, r"b_min=0 is smaller than a window of n=3 .* use at least 3"),
    ],
)
def test_bad_lanes(fields, message):
    with pytest.raises(ValueError, match=message):
        config.hyper(TD3, Lane(**fields))


@pytest.mark.parametrize("method", config.METHODS)
def test_the_lane_of_an_init_fits_a_program_of_one_method(method):
    rule = config.METHODS[method].get("grow", "gradient")
    lane = config.Lane(method=method, actor_sparsity=0.9, critic_sparsity=0.8)
    cfg = config.with_topology(config.make("td3", 11, 3, grow=(rule,)), lane)
    lane = config.resolve(cfg, lane)
    same = config.resolve(cfg, config.network_lane(cfg, lane))
    assert config.lane_links(cfg, same) == config.lane_links(cfg, lane)
    assert config.widths(cfg, same) == config.widths(cfg, lane)
