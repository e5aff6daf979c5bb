"""The sizes of a lane's networks: widths, live links, and the fields they depend on."""

import dataclasses

import numpy as np

from rlx2_jax.config.records import Config, Lane, Links
from rlx2_jax.config.resolve import resolve, topology_of
from rlx2_jax.networks import Architecture
from rlx2_jax.sparse import masks
from rlx2_jax.sparse.lane_topology import RIGL


def widths(config: Config, lane: Lane) -> tuple[int | None, int | None]:
    """Hidden units of the actor and of each critic under Tiny, None otherwise."""
    if not resolve(config, lane).tiny:
        return None, None

    def width(module: Architecture, inputs: int, sparsity: float | tuple[float, ...]) -> int:
        links = [i * o for _, (i, o) in module.layers(inputs)]
        overall = float(np.average(np.broadcast_to(sparsity, len(links)), weights=links))
        return module.tiny_width(inputs, overall)

    return (
        width(config.actor_module, config.actor_inputs, lane.actor_sparsity),
        width(config.critic_module, config.critic_inputs, lane.critic_sparsity),
    )


def live_links(config: Config, lane: Lane) -> Links:
    """The room for links in each layer: the program's, or the exact number of the lane.

    Computed on the host, by the same rule as `masks.init`, so that compact networks can be traced.
    """
    return config.links or lane_links(config, lane)


def lane_links(config: Config, lane: Lane, *, pruned: bool = False) -> Links:
    """The initial live links of each layer of a lane's networks; `pruned`: the final ones, if
    pruning ranks links per layer."""
    lane = resolve(config, lane)
    topology = topology_of(lane, started=False)
    dense = topology.traits.begins == "dense" and not pruned

    def count(
        module: Architecture,
        inputs: int,
        sparsity: float | tuple[float, ...],
        width: int | None,
    ) -> tuple[int, ...]:
        if width:
            return tuple(i * o for _, (i, o) in module.narrowed(width).layers(inputs))
        shapes = dict(module.layers(inputs))
        if dense:
            return tuple(i * o for i, o in shapes.values())
        # In tree order: "Dense_10" before "Dense_2".
        order = sorted(shapes, key=lambda name: name.split("/"))
        values = masks.layer_sparsities([shapes[x] for x in order], sparsity, lane.distribution)
        sparsities = dict(zip(order, values))
        return tuple(
            topology.links(name, shape, masks.links(shape, sparsities[name]))
            for name, shape in shapes.items()
        )

    actor, critic = widths(config, lane)
    return Links(
        count(config.actor_module, config.actor_inputs, lane.actor_sparsity, actor),
        count(config.critic_module, config.critic_inputs, lane.critic_sparsity, critic),
    )


def network_lane(config: Config, lane: Lane) -> Lane:
    """A lane with only the fields that the initial networks of a resolved lane depend on, without
    the seed. Other fields are set to constants, so that lanes share a compiled `init`."""
    lane = dense_lane(lane) if topology_of(lane, started=False).prunes else lane
    return Lane(
        topology=lane.topology,
        structure=lane.structure,
        actor_sparsity=lane.actor_sparsity,
        critic_sparsity=lane.critic_sparsity,
        distribution=lane.distribution,
        tiny=lane.tiny,
        execution=lane.execution,
        grow=config.grow[0],
        drop=config.drop[0],
        n=1,
        trim_ratio=0.0,
        b_min=0,
    )


def dense_lane(lane: Lane) -> Lane:
    """The same lane with dense networks."""
    return dataclasses.replace(
        lane,
        actor_sparsity=0.0,
        critic_sparsity=0.0,
        topology=RIGL.method,
        structure=RIGL.structure,
        scope=RIGL.scope,
        prune_start=RIGL.start,
    )
