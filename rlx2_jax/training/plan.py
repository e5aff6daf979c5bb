"""Chooses the form of each lane, and which lanes share a program.

Masked lanes share a program if they change their masks by the same method. A program of the compact
form has room for a fixed number of links in each layer, so lanes share
one where padding each to the largest costs at most a tenth.
"""

import dataclasses
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import jax

from rlx2_jax import checks
from rlx2_jax import config as configs
from rlx2_jax.config import Config, Lane, Links
from rlx2_jax.kernels import layout, native
from rlx2_jax.options import NEVER
from rlx2_jax.sparse import rules
from rlx2_jax.sparse.lane_topology import RIGL, Topology
from rlx2_jax.types import Device

EXECUTIONS = ("auto", "masked", "compact")
# Live links above this share of all, and networks below this size, are faster dense.
_DENSEST = 0.4
_SMALLEST = 10_000


@dataclasses.dataclass(frozen=True)
class Part:
    """The static configuration of one program, and the positions of its lanes."""

    config: Config
    lanes: tuple[int, ...]


def choose(config: Config, lanes: Sequence[Lane], execution: str) -> tuple[Lane, ...]:
    """The lanes, each with its form.

    Args:
      execution: `masked`; `compact`, for all lanes but dense ones; or `auto`, compact where this
        machine and the lane's size and sparsity make it faster and no option forbids it.
    """
    if execution not in EXECUTIONS:
        raise ValueError(f"execution={execution!r}: use one of {EXECUTIONS}")
    automatic = execution == "auto"
    if automatic:
        execution = "compact" if _is_faster_here(config) else "masked"
        densest, smallest = _DENSEST, _SMALLEST
    else:
        densest, smallest = 1.0, 0
    if execution == "compact":
        dataclasses.replace(config, execution="compact")  # refuses what needs dead links
        if native.execution() == "off":
            raise ValueError(
                "execution='compact', but RLX2_COMPACT=off switches it off: "
                "use --execution=masked, or unset RLX2_COMPACT"
            )

    def form(lane: Lane) -> str:
        topology = configs.topology_of(configs.resolve(config, lane))
        if automatic and topology != RIGL:
            return "masked"
        if execution == "compact":
            checks.check_compact(topology)
        live, size = _count(config, configs.own_links(config, lane)), _size(config)
        sparse = live < size and live <= densest * size and size >= smallest
        if automatic and rules.needs_smoothed(rules.GROW[str(configs.resolve(config, lane).grow)]):
            return "masked"  # compact networks would compute the dense gradient at every update
        return "compact" if execution == "compact" and sparse else "masked"

    return tuple(dataclasses.replace(lane, execution=form(lane)) for lane in lanes)


def parts(config: Config, lanes: Sequence[Lane]) -> list[Part]:
    """The programs that run `lanes`, each lane in its form."""
    rest = [i for i, lane in enumerate(lanes) if lane.execution == "compact"]
    resolved = [configs.resolve(config, lane) for lane in lanes]
    topologies = [configs.topology_of(lane) for lane in resolved]

    def common(topology: Topology, members: Sequence[int]) -> dict[str, Any]:
        """Fields of the `Config` of a program."""
        interval = config.mask_interval
        if len(set(topologies)) > 1:  # of lanes that change their masks in the same way
            alike = {
                x.mask_interval or 1 for x, own in zip(resolved, topologies) if own == topology
            }
            interval = configs.intervals([*(alike - {NEVER} or {NEVER})])
        own = _rules([resolved[i] for i in members])
        return {"topology": topology, "mask_interval": interval, **own}

    found = []
    for topology in dict.fromkeys(topologies):
        members = tuple(
            i
            for i, lane in enumerate(lanes)
            if lane.execution == "masked" and topologies[i] == topology
        )
        if members:
            found.append(Part(dataclasses.replace(config, **common(topology, members)), members))
    own = [configs.own_links(config, lanes[i]) for i in rest]
    for group in layout.group_lanes([(*links.actor, *links.critic) for links in own]):
        members = tuple(rest[j] for j in group)
        actors, critics = (zip(*(own[j][k] for j in group)) for k in (0, 1))
        room = Links(tuple(map(max, actors)), tuple(map(max, critics)))
        own_config = dataclasses.replace(
            config, execution="compact", links=room, **common(RIGL, members)
        )
        found.append(Part(own_config, members))
    return sorted(found, key=lambda part: part.lanes)


def _rules(lanes: Sequence[Lane]) -> dict[str, tuple[str, ...]]:
    """The rules that lanes use, as fields of their program's `Config`."""
    return {
        name: tuple(sorted({str(getattr(lane, name)) for lane in lanes}))
        for name in ("grow", "drop")
    }


def describe(config: Config, lanes: Sequence[Lane], first: int = 0) -> list[str]:
    """One line per program."""
    lines = []
    for part in parts(config, lanes):
        numbers = ", ".join(str(first + i) for i in part.lanes)
        text = f"{part.config.execution}, lanes {numbers}"
        if part.config.links is not None:
            room = _count(config, part.config.links)
            least = min(_count(config, configs.own_links(config, lanes[i])) for i in part.lanes)
            text += f": room for {room:,} of {_size(config):,} links, up to "
            text += f"{room / least - 1:.0%} padding"
        lines.append(text)
    return lines


def blocks(parts: Sequence[Part], shards: int, *, turns: bool) -> list[Part]:
    """The lanes of each program as blocks: a block is what one device updates in one call.

    Fixed when a run begins and the same on any devices that it is continued on: what a lane
    computes may depend on its block's size in the last bits, but on nothing else.

    Args:
      shards: the number of devices that the run begins on.
      turns: whether halves of the lanes take turns with the host, where they can.
    """
    return [own for part in parts for own in _blocks(part, shards, turns and len(parts) == 1)]


def _blocks(part: Part, shards: int, turns: bool) -> list[Part]:
    count = len(part.lanes)
    number = min(shards, count)
    if turns and count % (2 * number) == 0:
        number *= 2
    # Sizes differ by at most one, the larger blocks first.
    ends = [-(-count * i // number) for i in range(number + 1)]
    sizes = sorted((b - a for a, b in pairwise(ends)), reverse=True)
    starts = accumulate([0, *sizes])
    return [
        dataclasses.replace(part, lanes=part.lanes[start : start + size])
        for start, size in zip(starts, sizes)
    ]


def place(blocks: Sequence[Part], devices: Sequence[Device] | None) -> list[Device | None]:
    """The device of each block, in turn; None, JAX's own choice, where there is only one."""
    if devices is None or len(devices) == 1:
        return [None] * len(blocks)
    return [devices[i % len(devices)] for i in range(len(blocks))]


def _is_faster_here(config: Config) -> bool:
    if jax.default_backend() != "cpu" or native.execution() != "native":
        return False
    try:
        dataclasses.replace(config, execution="compact")
    except ValueError:
        return False
    return True


def _count(config: Config, links: Links) -> int:
    return sum(links.actor) + config.critics * sum(links.critic)


def _size(config: Config) -> int:
    layers = (config.actor_layers, config.critic_layers)
    return _count(config, Links(*(tuple(i * o for _, (i, o) in own) for own in layers)))
