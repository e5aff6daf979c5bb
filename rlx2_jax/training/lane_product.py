"""Builds lanes from lists of values: the product of all lists and seeds."""

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from rlx2_jax import config as configs
from rlx2_jax.option_table import CHOICES, LANE, MAX_LANES
from rlx2_jax.options import NEVER
from rlx2_jax.training.settings import SettingError

LANE_NAMES = tuple(option.name for option in LANE.values() if option.flag)
# Fields of `Config` that are set only if given.
CHOICE_NAMES = (
    *CHOICES,
    "architecture",
    "width",
    "blocks",
    "critics",
    "critic_subset",
    "policy_delay",
    "target_interval",
    "oldest_k",
    "precision",
)


def lane_axes(values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The given lists by field of `Lane`; lanes are their product."""
    given = {name: values.get(name) for name in LANE_NAMES}
    return {name: list(axis) for name, axis in given.items() if axis is not None}


def lane_points(axes: Mapping[str, Sequence[Any]], seeds: int) -> list[dict[str, Any]]:
    """The product of the lists; raises before building it if there are too many lanes."""
    count = seeds * math.prod(len(axis) for axis in axes.values())
    if count > MAX_LANES:
        lists = [f"--{name} ({len(axis)})" for name, axis in axes.items() if len(axis) > 1]
        raise SettingError(
            f"{count:,} lanes from {', '.join([*lists, f'--seeds={seeds}'])}: a run has at most "
            f"{MAX_LANES:,}; use several runs, with --first_seed or shorter lists"
        )
    return [dict(zip(axes, point)) for point in itertools.product(*axes.values())]


def choices(values: Mapping[str, Any]) -> dict[str, Any]:
    """The given choices, as fields of `Config`."""
    return {name: values[name] for name in CHOICE_NAMES if values.get(name) is not None}


def lanes(values: Mapping[str, Any], fields: Mapping[str, Any]) -> list[configs.Lane]:
    """The lanes that flags describe, seeds innermost; `fields` override the preset."""
    first, seeds = values["first_seed"], values["seeds"]
    if first + seeds - 1 > NEVER:
        raise SettingError(
            f"--first_seed={first} with --seeds={seeds}: seeds go up to {NEVER}, use a "
            f"--first_seed of at most {NEVER - seeds + 1}"
        )

    if values.get("expert") is not None:  # lane paths are relative to the run directory
        fields = {**fields, "expert": os.path.abspath(values["expert"])}

    def lane(point: dict[str, Any], seed: int) -> configs.Lane:
        preset = configs.lane_preset(values["preset"], values["algo"], point["method"])
        capacity = values.get("capacity")
        if capacity is not None and capacity < preset.get("b_max", 0):
            preset = {k: v for k, v in preset.items() if k not in ("b_min", "b_max")}
        return configs.Lane(**{**preset, **fields, **point, "seed": seed})

    points = lane_points(lane_axes(values), seeds)
    return [lane(point, seed) for point in points for seed in range(first, first + seeds)]
