"""The option table: one source of validation, flags and documentation."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import pytest

from experiments import presets_page
from rlx2_jax import checks, config
from rlx2_jax.config import Config, Lane
from rlx2_jax.option_table import CHOICES, CONFIG, LANE
from rlx2_jax.options import NEVER, Option
from rlx2_jax.training import lane
from rlx2_jax.types import TimeStep

pytestmark = pytest.mark.fast


def test_the_page_is_up_to_date():
    assert presets_page.PAGE.read_text() == presets_page.page(), (
        "docs/presets.md differs from the option table: run python -m experiments.presets_page"
    )


def test_the_table_has_every_setting():
    others = {"links", "grow", "drop", "topology"}  # what the lanes of a program share
    others |= {"action_low", "action_high"}  # the environment has them
    assert {f.name for f in dataclasses.fields(Config)} - others == set(CONFIG)
    others = {"tiny", "name", "weights", "masks", "expert"}
    assert {f.name for f in dataclasses.fields(Lane)} - others == set(LANE)


@pytest.mark.parametrize("option", CHOICES.values(), ids=lambda x: x.name)
def test_choices_are_checked(option: Option):
    values = option.allowed or (True, False)
    make = lambda value: config.make("td3", 3, 1, **{option.name: value})  # noqa: E731
    for value in values:
        assert getattr(make(value), option.name) == value
        assert option.parse(f" {str(value).lower()} ") == value
    for preset in (option.default, option.paper, option.reference):
        assert preset is None or preset in values
    assert set(option.meanings) <= set(option.allowed)
    for wrong in ("", "ébène", 3):
        with pytest.raises(ValueError, match=f"{option.name}=.*: use "):
            make(wrong)


TD3 = config.make("td3", 11, 3, steps=50_000, warmup=10_000, capacity=50_000)


@pytest.mark.parametrize(
    ("fields", "messages"),
    [
        ({"t0": 40_000}, []),
        ({"t0": 40_001}, ["t0=40001 is never reached: the run makes 40,000 updates"]),
        ({"t0": NEVER}, []),
        ({"method": "rigl", "t0": 40_001}, []),  # has 1-step targets anyway
        ({"t0": 0, "mask_interval": 20_000}, ["the actor makes 20,000 updates, with T_end at 20"]),
        ({"t0": 0, "mask_interval": 40_000}, ["the critic makes 40,000", "the actor makes"]),
        ({"t0": 0, "mask_interval": 20_000, "actor_sparsity": 0.0}, []),
        ({"t0": 0, "mask_interval": NEVER}, []),
        ({"t0": 0, "mask_interval": 40_000, "method": "rlx2-ss"}, []),
        ({"t0": 0, "mask_interval": 40_000, "method": "dense"}, []),
        ({"t0": 0, "t_end": 10_000}, ["mask_interval=10000 .* the critic", "the actor"]),
        ({"t0": 0, "t_end": 40_001}, ["t_end=40001 is never reached"]),
        ({"t0": 0, "t_end": NEVER}, []),
        ({"t0": 0, "t_end": 40_001, "method": "ss"}, []),
        ({"t0": 0, "buffer_interval": 60_000}, ["buffer_interval=60000 is never reached"]),
        ({"t0": 0, "buffer_interval": NEVER}, []),
        ({"t0": 0, "buffer_interval": 60_000, "method": "rigl"}, []),
        ({"t0": 0, "b_min": 50_000}, ["b_min=50000 is never exceeded: .* at most 50,000"]),
        ({"t0": 0, "b_min": 49_999}, []),
        (
            {"t0": 0, "b_min": 30_000, "buffer_interval": 30_000},
            ["at most 30,000 transitions when"],
        ),
        ({"t0": 0, "b_min": 50_000, "method": "dense"}, []),
        ({"t0": 0, "b_max": 10**6}, ["b_min=100000 is never exceeded"]),
    ],
)
def test_settings_that_never_take_effect(fields, messages):
    found = checks.never_effective(TD3, config.resolve(TD3, Lane(**fields)))
    assert len(found) == len(messages), found
    for text, message in zip(found, messages):
        assert re.search(message, text), text


def test_presets_and_delays_that_never_take_effect():
    paper = config.make("td3", 11, 3, name="paper", steps=300_000)
    assert checks.never_effective(paper, config.resolve(paper, Lane())) == []  # T_0 counts steps
    slow = dataclasses.replace(paper, policy_delay=10**6)
    found = checks.never_effective(slow, config.resolve(slow, Lane(method="dense")))
    assert len(found) == 1 and "275,000 updates: the actor never changes" in found[0]


@pytest.mark.parametrize("algo", ["td3", "sac"])
def test_never_fits_the_programs_counters(algo):
    """An interval of the largest int32, times the actor's delay, is still an int32."""
    cfg = config.make(
        algo, 3, 1, hidden=(8,), batch_size=8, capacity=64, mask_interval=NEVER, policy_delay=3
    )
    own = Lane(t0=NEVER, t_end=NEVER, buffer_interval=NEVER, seed=NEVER)
    obs, ends = jnp.zeros((1, 3)), jnp.zeros(1, bool)
    state = lane.init(cfg, own, obs)
    after = TimeStep(obs, obs, jnp.zeros(1), ends, ends)
    step = functools.partial(lane.step, config=cfg, hyper=config.hyper(cfg, own), learn=True)
    jax.eval_shape(step, state, after, jax.ShapeDtypeStruct((), jnp.int32))
