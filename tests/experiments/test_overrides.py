"""Settings for a whole sweep: they reach every unit or are rejected."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import pytest
from absl import flags

from experiments import suites, sweep
from experiments.reporting import exhibits, results
from experiments.suites import base
from experiments.suites.overrides import varied
from rlx2_jax import envs, files
from rlx2_jax.config import METHODS, Config
from rlx2_jax.option_table import CONFIG, LANE, RUN
from rlx2_jax.options import NEVER, Option
from rlx2_jax.training import lane_product, launch
from rlx2_jax.training.run import RunError
from rlx2_jax.training.settings import SettingError

pytestmark = pytest.mark.fast

PAPER, SHORT, SMOKE = (suites.BUDGETS[x] for x in ("paper", "short", "smoke"))
TRAINED = [suite for suite in suites.CATALOGUE.values() if suite.name != "flops"]
VARIED = {
    "nstep": {"n"},
    "buffer": {"b_max", "b_min", "trim_ratio"},
    "buffer_trace": {"trim_ratio"},
    "sensitivity": {"zeta0", "mask_interval", "buffer_interval", "d0", "t0", "trim_ratio"},
    "sparsity": {"actor_sparsity", "critic_sparsity"},
    "humanoid": {"hidden"},
    "mask_init": {"mask_init"},
}
SPEC = envs.EnvSpec(11, 3, 1000, (-2.0,) * 3, (2.0,) * 3)


@functools.cache
def flag_names() -> tuple[str, ...]:
    return tuple(sweep.define_flags(flags.FlagValues()))


def with_settings(budget: base.Budget, **overrides: Any) -> base.Budget:
    return dataclasses.replace(budget, overrides=overrides)


def units(suite: str, budget: base.Budget, **overrides: Any) -> list[base.Unit]:
    return suites.units(suites.CATALOGUE[suite], with_settings(budget, **overrides))


def config_of(unit: base.Unit) -> Config:
    return launch.make_config(unit.settings, unit.lanes, SPEC)


def sample(option: Option) -> Any:
    """A value that is neither the default nor any suite's."""
    if option.name == "hidden":
        return [24, 24]
    if option.name in ("critics", "critic_subset"):
        return {"critics": 5, "critic_subset": 1}[option.name]
    kinds = {"choice": tuple(option.allowed)[-1:], "bool": (not option.default,), "int": (30_000,)}
    return kinds.get(option.kind, (0.15,))[0]


def test_every_setting_of_the_launcher_has_a_flag():
    """Except what suites and the budget decide."""
    every = {o.name for o in (*CONFIG.values(), *RUN.values(), *LANE.values()) if o.flag}
    decided = {"method", "algo", "steps", "eval_interval", "seeds", "capacity"}
    decided |= {"architecture", "width", "blocks"}
    others = {"preset", "env_version", "env_backend", "max_episode_steps", "pipeline"}
    assert set(flag_names()) == (every - decided) | others
    values = flags.FlagValues()
    sweep.define_flags(values)
    values(["sweep", "--t0=5", "--trim_full=false", "--hidden=64,32", "--discount=0.9"])
    assert (values["t0"].value, values["trim_full"].value) == (5, False)
    assert (values["hidden"].value, values["discount"].value) == ([64, 32], 0.9)
    for name in base.LEAST:
        assert "scales with the budget" in values[name].help
    with pytest.raises(flags.IllegalFlagValueError, match="use an integer"):
        values(["sweep", "--t0=5,6"])


@pytest.mark.parametrize("suite", TRAINED, ids=lambda x: x.name)
def test_settings_reach_every_unit_or_are_refused(suite):
    budget = dataclasses.replace(SHORT, tasks=1, seeds=1)
    own = suite.units(budget)
    assert varied(own) == VARIED.get(suite.name, set())
    options = {o.name: o for o in (*CONFIG.values(), *RUN.values(), *LANE.values()) if o.flag}
    for name in (n for n in flag_names() if n in options and n != "first_seed"):
        value = sample(options[name])
        if name in VARIED.get(suite.name, set()):
            with pytest.raises(SettingError, match=f"--{name}: suite {suite.name} varies {name}"):
                units(suite.name, budget, **{name: value})
            continue
        found = units(suite.name, budget, **{name: value})
        assert [unit.name for unit in found] == [unit.name for unit in own]
        wanted = base.scaled(budget, name, value) if name in base.LEAST else value
        for unit, before in zip(found, own):
            if name in LANE:
                check_lanes(unit, before, name, wanted)
            elif name in lane_product.CHOICE_NAMES:
                assert getattr(config_of(unit), name) == wanted
            else:
                value_found = getattr(unit.settings, name)
                assert (list(value_found) if name == "hidden" else value_found) == wanted


def check_lanes(unit: base.Unit, before: base.Unit, name: str, wanted: Any) -> None:
    for lane, old in zip(unit.lanes, before.lanes):
        if name in METHODS[lane.method]:  # a static mask stays one
            assert getattr(lane, name) == getattr(old, name)
        elif name == "t_end" and unit.kind == "clone":  # has a tenth of the updates
            assert getattr(lane, name) == wanted // 10
        else:
            assert getattr(lane, name) == wanted


@pytest.mark.parametrize("preset", ["paper", "reference"])
@pytest.mark.parametrize("suite", TRAINED, ids=lambda x: x.name)
def test_presets_reach_every_unit(suite, preset):
    for unit in units(suite.name, SMOKE, preset=preset):
        config = config_of(unit)
        assert (config.distance == "l2") == (preset == "paper")
        assert (config.moments == "keep") == (preset == "reference")
        units_seen = (-2.0,) * 3 if preset == "reference" else None
        assert config.action_low == units_seen


def test_presets_of_lanes_are_scaled():
    for budget in (PAPER, SHORT):
        found = {u.name: u for u in units("table2", budget, preset="reference")}
        sac, rigl = found["sac-hopper-rlx2"].lanes[0], found["sac-hopper-rigl"].lanes[0]
        scale = budget.fraction
        assert (sac.n, sac.b_min, sac.b_max) == (3, 200_000 * scale, 3_000_000 * scale)
        assert (rigl.n, rigl.b_max) == (None, 3_000_000 * scale)  # its method has 1-step targets
        td3 = found["td3-hopper-rlx2"].lanes[0]
        assert (td3.n, td3.b_min, td3.b_max) == (None, 100_000 * scale, 1_000_000 * scale)
    (over,) = {
        u.lanes[0].n for u in units("table2", PAPER, preset="reference", n=2) if "rlx2" in u.name
    }
    assert over == 2


def test_what_a_suite_varies_is_not_the_presets():
    inits = {
        unit.name: config_of(unit).mask_init
        for unit in units("mask_init", PAPER, preset="reference")
    }
    assert inits and all(value in name for name, value in inits.items())
    shared = {u.name for u in units("mask_init", PAPER, preset="reference") if u.home}
    assert shared == {"td3-hopper-rlx2-magnitude-0", "td3-hopper-ss-magnitude-0"}


def test_steps_scale_and_never_stays():
    lane = units("topology", SHORT, t0=100_000, t_end=NEVER, mask_interval=20_000)[-1].lanes[0]
    assert (lane.t0, lane.t_end, lane.mask_interval) == (10_000, NEVER, 2000)
    unit = units("topology", SHORT, warmup=50_000, checkpoint_interval=100_000)[-1]
    assert (unit.settings.warmup, unit.settings.checkpoint_interval) == (5000, 10_000)
    # B_min follows B_max, as it does in the launcher.
    lane = units("topology", SHORT, b_max=200_000)[-1].lanes[0]
    assert (lane.b_min, lane.b_max) == (2000, 20_000)
    lane = units("topology", SHORT, b_max=200_000, b_min=50_000)[-1].lanes[0]
    assert (lane.b_min, lane.b_max) == (5000, 20_000)


@pytest.mark.parametrize(
    ("given", "backend", "names"),
    [
        ({"env_version": "v3"}, "envpool", {"Hopper-v3", "InvertedPendulum-v2"}),
        ({"env_version": "v4"}, "gymnasium", {"Hopper-v4", "InvertedPendulum-v4"}),
        ({"env_version": "v5"}, "gymnasium", {"Hopper-v5", "InvertedPendulum-v5"}),
        ({}, "gymnasium", {"Hopper-v5", "InvertedPendulum-v5"}),
        ({"env_backend": "envpool"}, "envpool", {"Hopper-v5", "InvertedPendulum-v5"}),
        ({"env_version": "v3", "env_backend": "envpool"}, "envpool", {"Hopper-v3"}),
        ({"env_backend": "brax"}, "brax", {"Hopper-v5", "InvertedPendulum-v5"}),
    ],
)
def test_versions_and_backends(given, backend, names):
    found = sweep.overrides_of({"preset": None, **given})
    assert found == ({} if backend == "gymnasium" else {"env_backend": backend})
    version = given.get("env_version", SMOKE.version)
    budget = dataclasses.replace(SMOKE, version=version, overrides=found)
    own = [u for s in ("table2", "toy") for u in suites.units(suites.CATALOGUE[s], budget)]
    assert {u.settings.env_backend for u in own} == {backend}
    assert names <= {u.settings.env for u in own}
    limit = {"episode_length": 40} if backend == "brax" else {"max_episode_steps": 40}
    assert all(u.settings.env_options == limit for u in own)
    if backend != "brax":
        launch.env_spec(own[-1].settings)  # there is such a task


def test_impossible_versions_and_backends():
    with pytest.raises(SettingError, match="Gymnasium has only -v4 and -v5"):
        sweep.overrides_of({"env_version": "v3", "env_backend": "gymnasium"})
    with pytest.raises(
        SettingError, match="suite tickets uses behaviour cloning, which needs one of"
    ):
        units("tickets", SMOKE, env_backend="brax")


def test_time_limits():
    (unit, *_) = units("toy", PAPER, max_episode_steps=50)
    assert unit.settings.env_options == {"max_episode_steps": 50}
    (unit, *_) = units("toy", SMOKE, max_episode_steps=50, env_backend="brax")
    assert unit.settings.env_options == {"episode_length": 50}


def test_suites_record_given_settings(tmp_path):
    suite = suites.CATALOGUE["nstep"]

    def plan(budget: base.Budget) -> dict[str, Any]:
        return json.loads(
            json.dumps(sweep.describe_suite(suite, budget, suites.units(suite, budget)))
        )

    default, other = plan(SMOKE), plan(with_settings(SMOKE, preset="reference", d0=0.1))
    assert "overrides" not in default["budget"]  # as suites noted before there were any
    assert other["budget"]["overrides"] == {"preset": "reference", "d0": 0.1}
    assert {x["d0"] for u in other["units"] for x in u["lanes"]} == {0.1}
    sweep.claim(tmp_path, default)
    sweep.claim(tmp_path, default)
    with pytest.raises(RunError, match="different settings"):
        sweep.claim(tmp_path, other)


def test_reports_show_given_settings():
    budget = dataclasses.asdict(with_settings(SMOKE, preset="reference", d0=0.1))
    text = exhibits.difference(results.Suite("toy", "Figure 2", budget, ()))
    assert "preset = reference; d0 = 0.1" in text


def test_nothing_begins_where_a_unit_cannot_run(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.units.run_unit", lambda *_: pytest.fail("began"))
    chosen = suites.find(["toy", "nstep"])
    with pytest.raises(SettingError, match=r"^toy/inverted-pendulum-ss: .*actor_sparsity=0.9999"):
        sweep.sweep(chosen, with_settings(SMOKE, actor_sparsity=0.9999), tmp_path)
    with pytest.raises(SettingError, match="--n: suite nstep varies n itself"):
        sweep.sweep(chosen, with_settings(SMOKE, n=2), tmp_path)
    assert not list(tmp_path.iterdir())


def test_finished_units_with_other_settings_are_not_taken(tmp_path, capsys):
    """Suites share units, but not one trained under a preset with a suite that lacks it."""
    only = ["td3-hopper-rlx2", "td3-hopper-3-step"]

    def finish(unit: base.Unit, directory: Path, *_: Any) -> None:
        directory.mkdir(parents=True)
        run = launch.make_run(unit.settings, unit.lanes)
        files.write_json(directory / "config.json", run.to_json())
        files.write_json(directory / "summary.json", {})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.units.run_unit", finish)
        one = with_settings(SMOKE, preset="reference")
        assert sweep.sweep(suites.find(["nstep"]), one, tmp_path, only=only) == 0
    assert (tmp_path / "table2" / "td3-hopper-rlx2" / "summary.json").exists()
    assert sweep.sweep(suites.find(["table2"]), SMOKE, tmp_path, only=only) == 1
    assert "holds a run with other settings (config differ)" in capsys.readouterr().err
    (tmp_path / "table2" / "suite.json").unlink()
    # The same, although another suite named its lanes.
    assert sweep.sweep(suites.find(["table2"]), one, tmp_path, only=only) == 0
    assert "finished before" in capsys.readouterr().err


def test_clones_count_cloning_updates():
    (clone,) = [u for u in units("tickets", SMOKE, t_end=1_000_000) if u.kind == "clone"]
    assert {lane.t_end for lane in clone.lanes} == {10}
    (clone,) = [u for u in units("tickets", SMOKE, t_end=NEVER) if u.kind == "clone"]
    assert {lane.t_end for lane in clone.lanes} == {NEVER}
