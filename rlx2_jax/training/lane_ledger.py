"""The ledger of a lane: `sparse.accounting` with the lane's layers, schedule and method."""

import math
from collections.abc import Sequence

import numpy as np

from rlx2_jax import config as configs
from rlx2_jax.config import Config, Lane
from rlx2_jax.sparse import accounting, rules
from rlx2_jax.training import lane as lanes_


def lane_ledger(config: Config, lane: Lane, *, updates: int | None = None) -> accounting.Ledger:
    """Parameters and FLOPs of one lane, from the sparsity of each layer and the lane's schedule.

    Static masks, random growth and untrimmed buffers cost nothing. With pruning, an update costs
    what the links live at that time cost. Iterations are updates; averages are over the first
    `updates` of them (default: all).
    """
    updates = max(1, config.updates if updates is None else updates)
    lane = configs.resolve(config, lane)
    topology = configs.topology_of(lane)
    last = min(config.updates + 1, lane.t_end or 0)
    rule = rules.GROW[str(lane.grow)] if "grow" in topology.options else None
    smoothed = topology.traits.smoothed or (rule is not None and rules.needs_smoothed(rule))
    charged = smoothed or (rule is not None and rules.needs_gradient(rule))

    def mask_interval(delay: int) -> float:
        """Δ_m of a network that is updated every `delay` updates; infinite if its mask is static or
        its growth free. A smoothed gradient needs the dense gradient at every update of the
        network."""
        interval = lane.mask_interval or config.mask_interval
        if not charged or not lane.zeta0 or interval >= last // delay:
            return math.inf
        return delay if smoothed else interval

    sparsities = lane.actor_sparsity, lane.critic_sparsity
    if lane.structure != "none" or topology.prunes:  # exact link counts, rounded to patterns
        final = configs.lane_links(config, lane, pruned=True)
        sparsities = tuple(map(_sparsities, _shapes(config), final))
    interval = lane.buffer_interval or config.buffer_interval
    checks = max(interval // config.num_envs, 1) * config.updates_per_step
    trims = lane.trim_ratio and interval <= config.steps and not lanes_.offline(config)
    networks = accounting.Networks(
        config.obs_dim,
        config.action_dim,
        config.hidden,
        *sparsities,
        layers=_shapes(config),
        distribution=lane.distribution,
        tiny=bool(lane.tiny),
        critics=config.critics,
        trained=_trained_sparsities(config, lane, updates) if topology.prunes else None,
    )
    iteration = accounting.Iteration(
        batch_size=config.batch_size,
        n_step=int(lane.n or 1),
        mask_interval=(mask_interval(config.policy_delay), mask_interval(1)),
        buffer_interval=checks if trims else math.inf,
        oldest_k=config.oldest_k,
        policy_delay=config.policy_delay,
        hessian_products=1 / updates if topology.traits.hessian else 0.0,
    )
    return accounting.ledger(config.algo, networks, iteration, method=lane.method)


def _sparsities(shapes: accounting.Shapes, links: Sequence[float]) -> tuple[float, ...]:
    return tuple(1.0 - n / (i * o) for (i, o), n in zip(shapes, links, strict=True))


def _trained_sparsities(
    config: Config, lane: Lane, updates: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The sparsity of each layer of actor and critic, averaged over the first `updates` of a lane
    with pruning. An update uses the links from before its mask update."""
    topology = configs.topology_of(lane)
    final = configs.lane_links(config, lane, pruned=True)
    found = []
    for shapes, links, delay in zip(_shapes(config), final, (config.policy_delay, 1)):
        start, interval = topology.start // delay, lane.mask_interval or 1
        if topology.gradual:
            end = int(lane.t_end or 0) // delay // interval * interval
            counts = np.arange(-(-max(start, 1) // interval) * interval, end + 1, interval)
            done = 1.0 - (1.0 - (counts - start) / (end - start)) ** 3
        else:
            counts, done = np.array([start + 1]), np.ones(1)
        times = np.concatenate([[0], counts * delay, [updates]])
        lengths = np.diff(np.minimum(times, updates))  # updates between mask updates
        gone = np.floor(
            np.outer([0.0, *done], [i * o - n for (i, o), n in zip(shapes, links)])
            * (1.0 + 2.0**-22)
        )
        absent = lengths @ gone / updates
        found.append(tuple(float(x) / (i * o) for x, (i, o) in zip(absent, shapes)))
    return found[0], found[1]


def _shapes(config: Config) -> tuple[accounting.Shapes, accounting.Shapes]:
    actor, critic = config.actor_layers, config.critic_layers
    return tuple(shape for _, shape in actor), tuple(shape for _, shape in critic)
