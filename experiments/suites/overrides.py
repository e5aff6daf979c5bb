"""Settings for a whole sweep, which override those of its suites.

`Budget.overrides` holds them by flag name, in the paper's units. Settings that a suite varies
cannot be overridden, and settings that define a method (static masks, 1-step targets) are kept.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from experiments.cloning import SHARE
from experiments.suites.base import LEAST, NEVER, Budget, Suite, Unit, scaled
from rlx2_jax import config as configs
from rlx2_jax import envs
from rlx2_jax.config import METHODS, Lane
from rlx2_jax.option_table import CHOICES, LANE
from rlx2_jax.training import lane_product
from rlx2_jax.training.settings import SettingError, Settings


def overridden(suite: Suite, budget: Budget) -> list[Unit]:
    """The units of a suite with overridden settings."""
    units, given = suite.units(budget), budget.overrides
    if not given:
        return units
    fixed = varied(units)
    if wrong := [name for name in given if name in fixed]:
        flags = ", ".join(f"--{name}" for name in wrong)
        raise SettingError(
            f"{flags}: suite {suite.name} varies {', '.join(wrong)} itself; omit the flag, or "
            f"the suite"
        )
    return [_change(suite, unit, budget, fixed) for unit in units]


def varied(units: Sequence[Unit]) -> set[str]:
    """Settings that differ between runs of one task, or between lanes of one method in a run."""
    seen: dict[tuple[str, ...], set[str]] = {}
    for unit in units:
        settings = unit.settings
        run = (settings.env, settings.algo)
        own = {**_unset_choices(), **dataclasses.asdict(settings), **settings.choices}
        for name, value in own.items():
            if name != "choices":
                seen.setdefault((*run, name), set()).add(repr(value))
        for lane in unit.lanes:
            key = (repr(settings), lane.method)
            for name in lane_product.LANE_NAMES:
                seen.setdefault((*key, name), set()).add(repr(getattr(lane, name)))
    return {key[-1] for key, values in seen.items() if len(values) > 1}


def _unset_choices() -> dict[str, None]:
    return dict.fromkeys(lane_product.CHOICE_NAMES)


def _change(suite: Suite, unit: Unit, budget: Budget, fixed: set[str]) -> Unit:
    settings = _settings(unit.settings, budget, fixed)
    if unit.kind == "clone" and settings.env_backend in envs.DEVICE_BACKENDS:
        raise SettingError(
            f"--env_backend={settings.env_backend}: suite {suite.name} uses behaviour cloning, "
            f"which needs one of {envs.HOST_BACKENDS}"
        )
    lanes = tuple(_lane(lane, settings, budget, fixed, unit.kind) for lane in unit.lanes)
    return dataclasses.replace(unit, settings=settings, lanes=lanes)


def _settings(settings: Settings, budget: Budget, fixed: set[str]) -> Settings:
    given = budget.overrides
    names = {field.name for field in dataclasses.fields(Settings)}
    fields = {k: _in_budget(budget, k, v) for k, v in given.items() if k in names}
    if "hidden" in fields:
        fields["hidden"] = tuple(fields["hidden"])
    new = dataclasses.replace(settings, **fields)
    # If a suite varies a choice, units that do not set it use the default, not the preset.
    defaults = {name: option.default for name, option in CHOICES.items()}
    pinned = {name: value for name, value in defaults.items() if name in fixed}
    chosen = {**pinned, **settings.choices, **lane_product.choices(given)}
    preset = {**defaults, **configs.preset(new.preset, new.algo)}
    choices = {k: v for k, v in chosen.items() if k not in CHOICES or v != preset[k]}
    options = dict(settings.env_options)
    limit = given.get("max_episode_steps", options.pop("max_episode_steps", None))
    if limit is not None:
        options |= envs.time_limit(new.env_backend, limit)
    return dataclasses.replace(new, choices=choices, env_options=options)


def _lane(lane: Lane, settings: Settings, budget: Budget, fixed: set[str], kind: str) -> Lane:
    preset = configs.lane_preset(settings.preset, settings.algo, lane.method)
    given = {k: v for k, v in budget.overrides.items() if k in LANE}
    fields = {k: v for k, v in preset.items() if k not in fixed} | given
    if "b_max" in fields and "b_min" not in {*fields, *fixed}:
        fields["b_min"] = min(LANE["b_min"].default, fields["b_max"] // 10)
    fields = {k: v for k, v in fields.items() if k not in METHODS[lane.method]}
    if kind == "clone" and fields.get("t_end", NEVER) != NEVER:
        fields["t_end"] = max(1, fields["t_end"] // SHARE)
    new = {k: _in_budget(budget, k, v) for k, v in fields.items()}
    return dataclasses.replace(lane, **new)


def _in_budget(budget: Budget, name: str, value: Any) -> Any:
    return scaled(budget, name, value) if name in LEAST else value
