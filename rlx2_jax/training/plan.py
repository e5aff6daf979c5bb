"""Chooses the form of each lane, and which lanes share a program.

A program of the compact form has room for a fixed number of links in each layer, so lanes share
one where padding each to the largest costs at most a tenth. Masked lanes all share one program.
"""

import dataclasses
from collections.abc import Sequence

import jax

from rlx2_jax import config as configs
from rlx2_jax.config import Config, Lane, Links
from rlx2_jax.kernels import layout, native
from rlx2_jax.sparse import rules

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
        live, size = _count(config, configs.own_links(config, lane)), _size(config)
        sparse = live < size and live <= densest * size and size >= smallest
        if automatic and rules.needs_smoothed(rules.GROW[str(configs.resolve(config, lane).grow)]):
            return "masked"  # compact networks would compute the dense gradient at every update
        return "compact" if execution == "compact" and sparse else "masked"

    return tuple(dataclasses.replace(lane, execution=form(lane)) for lane in lanes)


def parts(config: Config, lanes: Sequence[Lane]) -> list[Part]:
    """The programs that run `lanes`, each lane in its form."""
    masked = tuple(i for i, lane in enumerate(lanes) if lane.execution == "masked")
    rest = [i for i, lane in enumerate(lanes) if lane.execution == "compact"]
    used = _rules([configs.resolve(config, lanes[i]) for i in masked])
    found = [Part(dataclasses.replace(config, **used), masked)] if masked else []
    own = [configs.own_links(config, lanes[i]) for i in rest]
    for group in layout.group_lanes([(*links.actor, *links.critic) for links in own]):
        members = tuple(rest[j] for j in group)
        actors, critics = (zip(*(own[j][k] for j in group)) for k in (0, 1))
        room = Links(tuple(map(max, actors)), tuple(map(max, critics)))
        resolved = [configs.resolve(config, lanes[i]) for i in members]
        own_config = dataclasses.replace(
            config,
            execution="compact",
            links=room,
            **_rules(resolved),
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


def groups(part: Part) -> list[Part]:
    """The lanes of one program as groups that take turns with the host: halves if even in number.
    Not by the number of cores: a run can be continued on another machine."""
    count = len(part.lanes)
    size = count // 2 if count % 2 == 0 else count
    return [Part(part.config, part.lanes[i : i + size]) for i in range(0, count, size)]


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
