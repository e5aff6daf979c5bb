"""What a `Config` and a `Lane` may say; every mistake is told before anything is compiled."""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlx2_jax import masks
from rlx2_jax.topology import REGROW

if TYPE_CHECKING:
    from rlx2_jax.config import Config, Lane

ALGORITHMS = ("td3", "sac")

_CHOICES: dict[str, tuple[str, ...]] = {
    "algo": ALGORITHMS,
    "dtype": ("float32", "float64"),
    "mask_init": masks.INITS,
    "mask_step": ("skip", "after"),
    "moments": ("zero", "keep"),
    "regrow": REGROW,
    "targets": ("masked", "polyak"),
    "distance": ("mse", "l2"),
    "behaviour": ("mean", "action"),
    "trim": ("ratio", "until"),
    "b_min_bound": ("hard", "soft"),
    "switch": ("updates", "steps"),
    "t_end_counts": ("updates", "steps"),
    "both_ends": ("terminated", "truncated"),
    "exploration": ("sample", "mean"),
    "sac_growth": ("critic", "leaked"),
    "execution": ("masked", "compact"),
}
# What needs links that are not live, and the choice that does without.
_DEAD_LINKS = {"moments": "zero", "targets": "masked", "sac_growth": "critic"}


def check_config(config: "Config") -> None:
    """Raises ValueError where a field of a Config is not allowed."""
    for name, allowed in _CHOICES.items():
        if getattr(config, name) not in allowed:
            raise ValueError(f"{name}={getattr(config, name)!r}: use one of {allowed}")
    if not config.hidden or min(config.hidden) < 1:
        raise ValueError(f"hidden={config.hidden}: give at least one layer of at least one unit")
    positive = (
        "obs_dim action_dim batch_size num_envs steps updates_per_step n_max policy_delay "
        "target_interval mask_interval buffer_interval oldest_k capacity"
    )
    for name in positive.split():
        value = getattr(config, name)
        if not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name}={value!r}: use a whole number of at least 1")
    if config.capacity // config.num_envs < config.n_max:
        raise ValueError(
            f"capacity={config.capacity} holds fewer than n_max={config.n_max} steps of "
            f"{config.num_envs} environment(s): use at least {config.n_max * config.num_envs}"
        )
    for name, other in _DEAD_LINKS.items():
        if config.execution == "compact" and getattr(config, name) != other:
            raise ValueError(
                f"execution='compact' holds live links only and {name}="
                f"{getattr(config, name)!r} needs the others: use {name}={other!r}, "
                f"or execution='masked'"
            )
    whole = isinstance(config.warmup, int | np.integer)
    if not (whole and 0 <= config.warmup < config.steps):
        raise ValueError(
            f"warmup={config.warmup!r}: use a whole number from 0 to below steps={config.steps}"
        )
    if max(config.steps, config.updates) >= 2**31:
        raise ValueError(
            f"steps={config.steps} with updates_per_step={config.updates_per_step} make "
            f"{config.updates:,} updates; steps and updates are counted up to 2,147,483,647: use "
            "fewer of either"
        )


def check_lane(config: "Config", lane: "Lane") -> None:
    """Raises ValueError where a resolved lane is not allowed, or does not fit its program."""
    for name, value in dataclasses.asdict(lane).items():
        if isinstance(value, float | int | np.number) and not math.isfinite(value):
            raise ValueError(f"{name}={value}: a hyper-parameter must be finite")
    for name in ("actor_sparsity", "critic_sparsity"):
        value = getattr(lane, name)
        for s in value if isinstance(value, Sequence) else (value,):
            masks.check_sparsity(s)
    if lane.execution not in _CHOICES["execution"]:
        raise ValueError(f"execution={lane.execution!r}: use one of {_CHOICES['execution']}")
    if lane.distribution not in masks.DISTRIBUTIONS:
        raise ValueError(f"distribution={lane.distribution!r}: use one of {masks.DISTRIBUTIONS}")
    unit = ("discount", "tau", "zeta0", "trim_ratio")
    for name in unit:
        if not 0.0 <= getattr(lane, name) <= 1.0:
            raise ValueError(f"{name}={getattr(lane, name)}: use a value in [0, 1]")
    for name in ("learning_rate", "exploration_noise", "target_noise", "target_noise_clip", "d0"):
        if getattr(lane, name) < 0:
            raise ValueError(f"{name}={getattr(lane, name)}: use a value of at least 0")
    for name, least in (("t0", 0), ("t_end", 1), ("n", 1), ("b_min", 0), ("b_max", 1)):
        value = getattr(lane, name)
        if value != int(value) or value < least:
            raise ValueError(f"{name}={value}: use a whole number of at least {least}")
    if lane.expert is not None and config.algo != "td3":
        raise ValueError(f"expert={lane.expert!r}: only td3 can follow an expert's Q")
    if lane.random_growth and not config.random_growth:
        raise ValueError("random_growth=True of a lane: the program needs random_growth=True too")
    if not 1 <= int(lane.n or 0) <= config.n_max:
        raise ValueError(f"n={lane.n}: use 1 to n_max={config.n_max}, or raise n_max")
    for name in ("mask_interval", "buffer_interval"):
        own, branch = int(getattr(lane, name)), getattr(config, name)
        if own < 1 or own % branch:
            raise ValueError(
                f"{name}={own} of a lane is not a multiple of the program's {name}={branch}: "
                f"give the program the gcd of its lanes' intervals"
            )
    n, b_min, b_max = int(lane.n or 0), int(lane.b_min or 0), int(lane.b_max or 0)
    window = n * config.num_envs  # the least that can be sampled from
    if not window <= b_max <= config.capacity:
        raise ValueError(
            f"b_max={b_max}: use at most capacity={config.capacity}, and at least {window} for "
            f"windows of n={n} steps of {config.num_envs} environment(s)"
        )
    if not 0 <= b_min <= b_max:
        raise ValueError(f"b_min={b_min} must be between 0 and b_max={b_max}")
    if lane.trim_ratio and b_min < window:
        raise ValueError(
            f"b_min={b_min} lets trimming leave no window of n={n} steps of {config.num_envs} "
            f"environment(s): use at least {window}, or trim_ratio=0"
        )
