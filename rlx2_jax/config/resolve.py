"""Presets, and lanes with every default filled in."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from rlx2_jax import checks
from rlx2_jax.config.records import Config, Lane
from rlx2_jax.option_table import ALGORITHMS, CHOICES, LANE, METHODS
from rlx2_jax.options import NEVER
from rlx2_jax.sparse.lane_topology import RIGL, Topology

PRESETS: dict[str, dict[str, Any]] = {
    name: {
        option.name: option.preset_of(name, "td3")
        for option in CHOICES.values()
        if option.preset_of(name, "td3") is not None
    }
    for name in ("default", "paper", "reference")
}


def preset(name: str, algo: str = "td3") -> dict[str, Any]:
    """Fields of `Config` that a preset sets."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}: use one of {tuple(PRESETS)}")
    lane = lane_preset(name, algo)
    room = {"n_max": lane.get("n"), "capacity": lane.get("b_max")}
    return PRESETS[name] | {k: v for k, v in room.items() if v is not None}


def lane_preset(name: str, algo: str = "td3", method: str = "rlx2") -> dict[str, Any]:
    """Fields of `Lane` that a preset sets, except those that the method sets."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}: use one of {tuple(PRESETS)}")
    fields = {option.name: option.preset_of(name, algo) for option in LANE.values()}
    of_method = METHODS.get(method, {})
    return {k: v for k, v in fields.items() if v is not None and k not in of_method}


def make(algo: str, obs_dim: int, action_dim: int, *, name: str = "default", **fields) -> Config:
    """A `Config` from a preset, overridden by `fields`."""
    if algo not in ALGORITHMS:
        raise ValueError(f"unknown algo {algo!r}: use one of {tuple(ALGORITHMS)}")
    return Config(algo, obs_dim, action_dim, **{**preset(name, algo), **fields})


def resolve(config: Config, lane: Lane) -> Lane:
    """`lane` with every None replaced by the default of its method or the algorithm."""
    if lane.method not in METHODS:
        raise ValueError(f"unknown method {lane.method!r}: use one of {tuple(METHODS)}")
    method = METHODS[lane.method]
    topology = topology_of(lane, started=False)
    forced = {k: v for k, v in method.items() if k.endswith("sparsity")}
    if pattern := topology.pattern.nm:
        absent = 1.0 - pattern[0] / pattern[1]
        forced = {"distribution": "uniform", "actor_sparsity": absent, "critic_sparsity": absent}
        forced |= {k: v for k, v in method.items() if k.endswith("sparsity")}
    last = config.steps if config.t_end_counts == "steps" else config.updates
    defaults = {
        "target_entropy": -float(config.action_dim),
        "zeta0": LANE["zeta0"].default,
        "mask_interval": config.mask_interval,
        "t_end": max(1, last * 4 // 5) if topology.gradual else last,
        "grow": LANE["grow"].default,
        "topology": topology.method,
        "structure": topology.structure,
        "scope": topology.scope,
        "prune_start": last // 5 if topology.gradual else 0,
        "n": LANE["n"].default_of(config.algo),
        "buffer_interval": config.buffer_interval,
        "trim_ratio": LANE["trim_ratio"].default,
        "b_max": config.capacity,
        "tiny": False,
    }
    given = {f.name: getattr(lane, f.name) for f in dataclasses.fields(lane)}
    given = {k: v for k, v in given.items() if v is not None}
    fields = {**defaults, **method, **given, **forced}
    filled = Lane(**{"b_min": _default_b_min(config, fields), **fields})
    checks.check_lane(config, filled)
    return filled


def topology_of(lane: Lane, *, started: bool = True) -> Topology:
    """The static part of a lane's mask updates; RigL's for static masks.

    Args:
      started: False for an unresolved lane, whose start of pruning may be unknown.
    """
    names = ("topology", "structure", "scope")
    values = [setting(lane, name) for name in names]
    for name, value in zip(names, values):
        LANE[name].check(value)
    topology = Topology(*values)
    if not started:
        return topology
    if setting(lane, "zeta0") == 0 and "zeta0" in topology.options:
        return RIGL
    if not topology.prunes:
        return topology
    return topology._replace(start=int(setting(lane, "prune_start") or 0))


def setting(lane: Lane, name: str) -> Any:
    """A field of an unresolved lane: as given, or the default of its method, or that of all lanes.
    None if that depends on the algorithm or the program."""
    given = getattr(lane, name)
    default = LANE[name].default
    default = None if isinstance(default, dict) else default
    return METHODS.get(lane.method, {}).get(name, default) if given is None else given


def shared_interval(intervals: Iterable[int]) -> int:
    """The event interval of a program: the gcd of its lanes' intervals, without those of lanes that
    never reach theirs."""
    return math.gcd(*(set(intervals) - {NEVER} or {NEVER}))


def with_topology(config: Config, *lanes: Lane) -> Config:
    """`config` for a program of `lanes`, which must have the same topology.

    >>> import rlx2_jax as rlx2
    >>> lane = rlx2.Lane(method="snip")
    >>> config = rlx2.config.with_topology(rlx2.config.make("td3", 11, 3), lane)
    >>> config.topology.method
    'snip'
    """
    given = [lane.mask_interval or METHODS[lane.method].get("mask_interval") for lane in lanes]
    interval = shared_interval(x or config.mask_interval for x in given)
    config = dataclasses.replace(config, mask_interval=interval)
    topologies = {topology_of(resolve(config, lane)) for lane in lanes}
    if len(topologies) != 1:
        raise ValueError(f"lanes of one program need the same topology, not {sorted(topologies)}")
    return dataclasses.replace(config, topology=topologies.pop())


def _default_b_min(config: Config, fields: dict[str, Any]) -> int:
    """A tenth of B_max as in the paper, but at least one n-step window."""
    b_max, n = fields["b_max"], fields["n"]
    if not all(isinstance(x, int | np.integer) for x in (b_max, n)):
        return 0  # `check_lane` rejects these
    return max(min(LANE["b_min"].default, int(b_max) // 10), int(n) * config.num_envs)
