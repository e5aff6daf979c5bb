"""Validates a `Config` and a `Lane` before anything is compiled."""

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

from rlx2_jax.algorithms import NETWORK_USE
from rlx2_jax.networks import ARCHITECTURES
from rlx2_jax.option_table import CONFIG, LANE, SIZES
from rlx2_jax.options import LARGEST_FLOAT, NEVER
from rlx2_jax.sparse import masks
from rlx2_jax.sparse.lane_topology import RIGL, Topology

# `config` imports this module, so it cannot be imported here.
Config: TypeAlias = Any
Lane: TypeAlias = Any

MAX_LAYERS = 32
# Choices that need absent links, and the alternative that does not.
_DEAD_LINKS = {"moments": "zero", "targets": "masked", "sac_growth": "critic"}


def check_config(config: Config) -> None:
    """Raises ValueError if a field of a Config is invalid."""
    for name, option in CONFIG.items():
        if name not in SIZES:
            option.check(getattr(config, name))
    _check_sizes(config)
    if config.capacity // config.num_envs < config.n_max:
        raise ValueError(
            f"capacity={config.capacity} holds fewer than n_max={config.n_max} steps of "
            f"{config.num_envs} environment(s): use at least {config.n_max * config.num_envs}"
        )
    for name, other in _DEAD_LINKS.items():
        if config.execution == "compact" and getattr(config, name) != other:
            raise ValueError(
                f"execution='compact' stores only live links and {name}="
                f"{getattr(config, name)!r} needs the others: use {name}={other!r}, "
                f"or execution='masked'"
            )
    if config.execution == "compact":
        check_compact(config.topology)
    if config.execution == "compact" and config.precision != "float32":
        raise ValueError(
            f"execution='compact' supports only float32 products, not precision="
            f"{config.precision!r}: use precision='float32', or execution='masked'"
        )
    if config.precision != "float32" and config.dtype != "float32":
        raise ValueError(f"precision={config.precision!r} needs dtype='float32'")
    _check_critics(config)
    _check_action_bounds(config)
    _check_schedule(config)


def check_compact(topology: Topology) -> None:
    """Raises if compact networks do not support a topology: they have a fixed number of
    unstructured links in each layer."""
    if topology != RIGL:
        name = topology.method if topology.structure == "none" else f"{topology.structure} masks"
        raise ValueError(
            f"execution='compact' drops and grows a fixed number of unstructured links per layer, "
            f"and does not support {name}: use execution='masked' or 'auto'"
        )


def _check_sizes(config: Config) -> None:
    """Checks that exactly the size settings of the architecture are given, and valid."""
    used = ARCHITECTURES[config.architecture].defaults
    for name in SIZES:
        value, option = getattr(config, name), CONFIG[name]
        if name not in used:
            if value is not None:
                raise ValueError(
                    f"{name}={value}: architecture={config.architecture!r} is sized by "
                    f"{' and '.join(used) or 'nothing'}; omit {name}, or use another architecture"
                )
        elif name == "hidden":
            if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_LAYERS:
                raise ValueError(
                    f"hidden={value}: give at least one layer of at least one unit, and at most "
                    f"{MAX_LAYERS} layers"
                )
            if any(option.problem(x) for x in value):
                raise ValueError(f"hidden={tuple(value)}: for each layer, {option.rule}")
        else:
            option.check(value)


def _check_action_bounds(config: Config) -> None:
    low, high = config.action_low, config.action_high
    if low is None and high is None:
        return
    if low is None or high is None or not len(low) == len(high) == config.action_dim:
        raise ValueError(
            f"action_low={low}, action_high={high}: give both, with one value for each of the "
            f"{config.action_dim} action components, or neither"
        )
    if not all(-LARGEST_FLOAT <= a <= b <= LARGEST_FLOAT for a, b in zip(low, high)):
        raise ValueError(
            f"action_low={low}, action_high={high}: networks need low <= high, both 32-bit floats; "
            f"fix them, or use critic_actions='unit'"
        )


def _check_schedule(config: Config) -> None:
    if config.warmup >= config.steps:
        raise ValueError(
            f"warmup={config.warmup!r}: use an integer from 0 to below steps={config.steps}"
        )
    rounded = -(-config.steps // config.num_envs) * config.num_envs
    if max(rounded, config.updates) > NEVER:
        raise ValueError(
            f"steps={config.steps} with updates_per_step={config.updates_per_step} make "
            f"{config.updates:,} updates; the limit for steps and updates is 2,147,483,647: use "
            "fewer of either"
        )
    if config.updates < 1:
        raise ValueError(
            f"steps={config.steps} and warmup={config.warmup} leave no time step of "
            f"num_envs={config.num_envs} environments to learn from: use at least "
            f"steps={config.warmup + config.num_envs}"
        )


def _check_critics(config: Config) -> None:
    if config.critic_subset > config.critics:
        raise ValueError(
            f"critic_subset={config.critic_subset}: use at most critics={config.critics}, or 0 for "
            f"all of them"
        )


def check_lane(config: Config, lane: Lane) -> None:
    """Raises ValueError if a resolved lane is invalid or does not fit its program."""
    for name, option in LANE.items():
        value = getattr(lane, name)
        for x in value if isinstance(value, Sequence) and option.kind != "choice" else (value,):
            option.check(x)
    _check_links(config, lane)
    _check_topology(config, lane)
    if lane.expert is not None and not NETWORK_USE[config.algo].expert:
        able = ", ".join(name for name, use in NETWORK_USE.items() if use.expert)
        raise ValueError(f"expert={lane.expert!r}: only {able} can learn from an expert")
    for name in ("grow", "drop"):
        rule, offered = getattr(lane, name), getattr(config, name)
        if rule not in offered:
            raise ValueError(
                f"{name}={rule!r} of a lane: the program has {name}={offered}; add the rule there"
            )
    if not 1 <= int(lane.n or 0) <= config.n_max:
        raise ValueError(f"n={lane.n}: use 1 to n_max={config.n_max}, or raise n_max")
    for name in ("mask_interval", "buffer_interval"):
        interval, branch = int(getattr(lane, name)), getattr(config, name)
        if interval != NEVER and interval % branch:
            raise ValueError(
                f"{name}={interval} of a lane is not a multiple of the program's {name}={branch}: "
                f"give the program the gcd of its lanes' intervals"
            )
    _check_bounds(config, lane)


def _check_topology(config: Config, lane: Lane) -> None:
    """Checks the method of mask updates, its structure, and that pruning ends within the run."""
    topology = Topology(lane.topology, lane.structure, lane.scope, int(lane.prune_start or 0))
    topology.check()
    plain = topology._replace(start=0) == RIGL
    sparse = any(any(_as_tuple(x)) for x in (lane.actor_sparsity, lane.critic_sparsity))
    if not plain and (lane.tiny or not sparse):
        given = topology.method if topology.structure == "none" else topology.structure
        raise ValueError(
            f"method={lane.method!r} trains dense networks, which {given} does not change: omit "
            f"one of them, or give a sparsity"
        )
    topology.check_layers(config.actor_layers, "actor")
    if NETWORK_USE[config.algo].has_critic:
        topology.check_layers(config.critic_layers, "critic")
    if topology.prunes:
        _check_pruning(config, lane, topology)


def _check_pruning(config: Config, lane: Lane, topology: Topology) -> None:
    """Checks that networks that start dense are pruned during the run."""
    for network, delay in (("critic", 1), ("actor", config.policy_delay)):
        updates, start = config.updates // delay, topology.start // delay
        if not topology.gradual:
            if start + 1 > updates:
                raise ValueError(
                    f"prune_start={lane.prune_start}: the {network} makes {updates:,} updates, so "
                    f"it would stay dense; lower prune_start"
                )
            continue
        interval, t_end = int(lane.mask_interval or 1), int(lane.t_end or 0) // delay
        last = t_end // interval * interval
        if not start < last <= updates:
            raise ValueError(
                f"method={lane.method!r} prunes the {network} every mask_interval={interval} of "
                f"its {updates:,} updates, from {start:,} (prune_start) to {t_end:,} (t_end): "
                f"{'it would stay dense' if last <= start else 'the last one is never reached'}; "
                f"lower {'mask_interval' if last <= start else 't_end'}"
            )


def _check_links(config: Config, lane: Lane) -> None:
    """Checks that every layer has a link."""
    if lane.tiny:
        if not config.actor_module.narrows:
            raise ValueError(
                f"method={lane.method!r} trains a narrower MLP: use architecture='mlp' instead of "
                f"{config.architecture!r}, or another method"
            )
        return
    for name, layers in (
        ("actor_sparsity", config.actor_layers),
        ("critic_sparsity", config.critic_layers),
    ):
        value = getattr(lane, name)
        value = tuple(value) if isinstance(value, Sequence) else value
        try:
            _check_sparsity(tuple(shape for _, shape in layers), value, lane.distribution)
        except ValueError as error:
            sizes = [f"{x}={getattr(config, x)}" for x in SIZES if getattr(config, x) is not None]
            raise ValueError(f"{name}={value} with {', '.join(sizes)}: {error}") from error


@functools.lru_cache
def _check_sparsity(
    shapes: tuple[tuple[int, int], ...], sparsity: float | tuple[float, ...], distribution: str
) -> None:
    masks.layer_sparsities(shapes, sparsity, distribution)


def _check_bounds(config: Config, lane: Lane) -> None:
    """Checks B_min and B_max against the capacity and the n-step window."""
    n, b_min, b_max = int(lane.n or 0), int(lane.b_min or 0), int(lane.b_max or 0)
    window = n * config.num_envs  # the minimum that can be sampled from
    # A buffer with room for all steps never reaches B_max, so any value is allowed.
    if b_max < window or (b_max > config.capacity and config.capacity < config.steps):
        raise ValueError(
            f"b_max={b_max}: use at most capacity={config.capacity}, and at least {window} for "
            f"windows of n={n} steps of {config.num_envs} environment(s)"
        )
    if b_min > b_max:
        raise ValueError(f"b_min={b_min} must be between 0 and b_max={b_max}")
    if lane.trim_ratio and b_min < window:
        raise ValueError(
            f"b_min={b_min} is smaller than a window of n={n} steps of {config.num_envs} "
            f"environment(s): use at least {window}, or trim_ratio=0"
        )


def never_effective(config: Config, lane: Lane) -> list[str]:
    """Settings of a resolved lane that cannot take effect within the run, one message each.

    Ignores settings that the lane's method does not use, and the value 2147483647 (never), which is
    deliberate.
    """
    prunes = Topology(lane.topology).prunes  # `check_lane` has checked the schedule
    evolves = bool(lane.zeta0) and not lane.tiny and not prunes
    trims = bool(lane.trim_ratio)
    return [
        *(_unused_delay(config)),
        *(_unused_switch(config, lane) if int(lane.n or 1) > 1 else []),
        *(_unused_masks(config, lane) if evolves else []),
        *(_unused_trims(config, lane) if trims else []),
    ]


def _unused_delay(config: Config) -> list[str]:
    return [
        f"{name}={value} is more than the run's {config.updates:,} updates: the {network} "
        f"never changes"
        for name, network in (("policy_delay", "actor"), ("target_interval", "target network"))
        if NEVER != (value := getattr(config, name)) > config.updates
    ]


def _unused_switch(config: Config, lane: Lane) -> list[str]:
    total = getattr(config, config.switch)
    if NEVER != lane.t0 > total:
        return [
            f"t0={lane.t0} is never reached: the run makes {total:,} {config.switch}, so targets "
            f"stay 1-step; lower --t0, or set it to {NEVER} (never)"
        ]
    return []


def _unused_masks(config: Config, lane: Lane) -> list[str]:
    messages = []
    interval, t_end = int(lane.mask_interval or 0), int(lane.t_end or 0)
    delays = {"critic": 1, "actor": config.policy_delay}
    for network, delay in delays.items():
        updates, end = config.updates // delay, max(1, t_end // delay)
        sparse = any(_as_tuple(getattr(lane, f"{network}_sparsity")))
        if sparse and interval != NEVER and interval > min(updates, end - 1):
            messages.append(
                f"mask_interval={interval} is never reached: the {network} makes {updates:,} "
                f"updates, with T_end at {end:,}, so its masks never change; lower "
                f"--mask_interval, or set it to {NEVER} (never)"
            )
    last = max(config.updates, getattr(config, config.t_end_counts))
    if NEVER != t_end > last:
        messages.append(
            f"t_end={t_end} is never reached: the run makes {config.updates:,} updates, so the "
            f"mask update fraction does not fall to 0; lower --t_end"
        )
    return messages


def _unused_trims(config: Config, lane: Lane) -> list[str]:
    interval, b_min = int(lane.buffer_interval or 0), int(lane.b_min or 0)
    if interval == NEVER:
        return []
    if interval > config.steps:
        return [
            f"buffer_interval={interval} is never reached: the run makes {config.steps:,} steps, "
            f"so the buffer is never trimmed; lower --buffer_interval, or set it to {NEVER} (never)"
        ]
    held = min(int(lane.b_max or 0), config.capacity, config.steps // interval * interval)
    if b_min >= held:
        return [
            f"b_min={b_min} is never exceeded: the buffer holds at most {held:,} transitions when "
            f"it is checked, so it is never trimmed; lower --b_min, or use --trim_ratio=0"
        ]
    return []


def _as_tuple(value: float | Sequence[float]) -> Sequence[float]:
    return value if isinstance(value, Sequence) else (value,)
