"""Arguments of a mask update, shared by both execution forms."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from rlx2_jax.networks.base import BoundNetwork
from rlx2_jax.sparse.lane_topology import RIGL, Topology
from rlx2_jax.sparse.methods import Method
from rlx2_jax.sparse.topology import Schedule
from rlx2_jax.types import Array, Network, Params

MASK_STEPS = ("skip", "after")
MOMENTS = ("zero", "keep")


@dataclasses.dataclass(frozen=True)
class Evolution:
    """Static options of mask updates, shared by all lanes of a program.

    Attributes:
      rows: batch size of the loss.
      interval: mask updates happen at its multiples.
      topology: the method that changes masks.
      grow, drop: the rules that lanes of this program use; `Schedule` selects by index.
      mask_step: `skip` the optimizer step on a mask update, or evolve `after` it.
      moments: `zero` those of dropped and newly grown links, or `keep` all.
      regrow: whether dropped links may regrow in the same update, see `topology.evolve`.
      remask_target: apply the new mask to the target immediately.
    """

    rows: int
    interval: int
    topology: Topology = RIGL
    grow: tuple[str, ...] = ("gradient", "random")
    drop: tuple[str, ...] = ("magnitude",)
    mask_step: str = "skip"
    moments: str = "zero"
    regrow: str = "keep"
    remask_target: bool = True

    def __post_init__(self):
        if self.mask_step not in MASK_STEPS or self.moments not in MOMENTS:
            raise ValueError(
                f"mask_step={self.mask_step!r}, moments={self.moments!r}: use one of {MASK_STEPS} "
                f"and {MOMENTS}"
            )
        if self.interval < 1:
            raise ValueError(f"interval={self.interval}: use an integer of at least 1")

    @property
    def after(self) -> bool:
        """Whether masks evolve after an optimizer step instead of replacing it."""
        return "after" in (self.mask_step, self.topology.traits.mask_step)

    def build(self, schedule: Schedule) -> Method:
        """The method of one lane."""
        return self.topology.build(schedule, self.grow, self.drop, self.regrow)


class Update(NamedTuple):
    """One update of a network.

    Attributes:
      number: counts from 1; not batched over lanes, so that mask updates stay inside a real branch.
      schedule: of this lane. `topology.due(schedule, number)` implies that `number` is a multiple
        of `Evolution.interval`, or `topology.traits.at`.
      key: for random growth.
    """

    number: Array
    schedule: Schedule
    key: Array


class Gradient(NamedTuple):
    """The gradient of a loss, and the arguments to recompute it.

    Attributes:
      loss: maps bound parameters (`networks.bind`) to (value, aux); applies the network once, to a
        batch.
      at: the network at which `grads` was computed.
      grads: dense for masked networks, of the live links for compact ones.
      leak: added to the gradient in growth scores.
    """

    loss: Callable[[BoundNetwork], tuple[Array, Any]]
    at: Network
    grads: Params
    leak: Params | None = None
