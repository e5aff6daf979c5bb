"""Chooses each lane's execution mode, and which lanes share a program.

Masked lanes share a program if their topologies agree. A compact program stores a fixed number of
links per layer, so lanes share one if padding them to the largest adds at most 10%.
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
from rlx2_jax.sparse import rules
from rlx2_jax.sparse.lane_topology import RIGL, Topology
from rlx2_jax.types import Device

EXECUTIONS = ("auto", "masked", "compact")
# Above this share of live links, and below this network size, dense is faster.
_DENSEST = 0.4
_SMALLEST = 10_000


@dataclasses.dataclass(frozen=True)
class Part:
    """The static configuration of one program, and the positions of its lanes."""

    config: Config
    lanes: tuple[int, ...]


def choose(config: Config, lanes: Sequence[Lane], execution: str) -> tuple[Lane, ...]:
    """The lanes, each with its execution mode set.

    Args:
      execution: `masked`; `compact`, for all lanes that are not dense; or `auto`, compact where it
        is supported and expected to be faster (given the machine, size and sparsity).
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
        dataclasses.replace(config, execution="compact")  # raises if options need dead links
        if native.execution() == "off":
            raise ValueError(
                "execution='compact', but RLX2_COMPACT=off disables it: "
                "use --execution=masked, or unset RLX2_COMPACT"
            )

    def form(lane: Lane) -> str:
        topology = configs.topology_of(configs.resolve(config, lane))
        if automatic and topology != RIGL:
            return "masked"
        if execution == "compact":
            checks.check_compact(topology)
        live, size = _count(config, configs.lane_links(config, lane)), _size(config)
        sparse = live < size and live <= densest * size and size >= smallest
        if automatic and rules.needs_smoothed(rules.GROW[str(configs.resolve(config, lane).grow)]):
            return "masked"  # compact would need the dense gradient at every update
        return "compact" if execution == "compact" and sparse else "masked"

    return tuple(dataclasses.replace(lane, execution=form(lane)) for lane in lanes)


def parts(config: Config, lanes: Sequence[Lane]) -> list[Part]:
    """The programs that run `lanes`, each lane in its execution mode."""
    rest = [i for i, lane in enumerate(lanes) if lane.execution == "compact"]
    resolved = [configs.resolve(config, lane) for lane in lanes]
    topologies = [configs.topology_of(lane) for lane in resolved]

    def common(topology: Topology, members: Sequence[int]) -> dict[str, Any]:
        """Fields of the `Config` of a program."""
        interval = config.mask_interval
        if len(set(topologies)) > 1:  # only the lanes with this topology set its interval
            alike = [x.mask_interval or 1 for x, t in zip(resolved, topologies) if t == topology]
            interval = configs.shared_interval(alike)
        rules_used = _rules([resolved[i] for i in members])
        return {"topology": topology, "mask_interval": interval, **rules_used}

    programs = []
    for topology in dict.fromkeys(topologies):
        members = tuple(
            i
            for i, lane in enumerate(lanes)
            if lane.execution == "masked" and topologies[i] == topology
        )
        if members:
            programs.append(Part(dataclasses.replace(config, **common(topology, members)), members))
    counts = [configs.lane_links(config, lanes[i]) for i in rest]
    for group in layout.group_lanes([(*links.actor, *links.critic) for links in counts]):
        members = tuple(rest[j] for j in group)
        actors, critics = (zip(*(counts[j][k] for j in group)) for k in (0, 1))
        room = Links(tuple(map(max, actors)), tuple(map(max, critics)))
        fields = {"execution": "compact", "links": room, **common(RIGL, members)}
        programs.append(Part(dataclasses.replace(config, **fields), members))
    return sorted(programs, key=lambda part: part.lanes)


def _rules(lanes: Sequence[Lane]) -> dict[str, tuple[str, ...]]:
    """The rules that the lanes use, as fields of their program's `Config`."""
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
            least = min(_count(config, configs.lane_links(config, lanes[i])) for i in part.lanes)
            text += f": room for {room:,} of {_size(config):,} links, up to "
            text += f"{room / least - 1:.0%} padding"
        lines.append(text)
    return lines


def blocks(parts: Sequence[Part], shards: int, *, turns: bool) -> list[Part]:
    """Splits the lanes of each program into blocks; one device updates a block in one call.

    Blocks are fixed when a run begins and do not depend on the devices that continue it: a lane's
    last bits may depend on the size of its block, but on nothing else.

    Args:
      shards: the number of devices that the run begins on.
      turns: whether halves of the lanes take turns with the host, if possible.
    """
    return [block for part in parts for block in _blocks(part, shards, turns and len(parts) == 1)]


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
    """The device of each block, round-robin; None (JAX's default) if there is only one."""
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
    return _count(config, Links(*(tuple(i * o for _, (i, o) in net) for net in layers)))
