"""Arguments of a mask update, shared by both execution forms."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from rlx2_jax.sparse.lane_topology import RIGL, Topology
from rlx2_jax.sparse.methods import Method
from rlx2_jax.sparse.topology import Schedule
from rlx2_jax.types import Array, Network, Params

MASK_STEPS = ("skip", "after")
MOMENTS = ("zero", "keep")


@dataclasses.dataclass(frozen=True)
class Evolution:
    """How the masks of a network change: static, the same for all lanes of a program.

    Attributes:
      rows: size of the batch of the loss.
      interval: mask updates happen at multiples of it.
      topology: the method that changes masks.
      grow, drop: the rules that lanes use; `Schedule` holds their numbers.
      mask_step: `skip` the optimizer step on a mask update, or evolve `after` it.
      moments: `zero` those of links dropped or newly grown, or `keep` all.
      regrow: whether links just dropped may regrow, see `topology.evolve`.
      remask_target: put the target under the new mask at once.
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
            raise ValueError(f"interval={self.interval}: use a whole number of at least 1")

    @property
    def after(self) -> bool:
        """Whether masks evolve after an optimizer step instead of replacing it."""
        return "after" in (self.mask_step, self.topology.traits.mask_step)

    def build(self, schedule: Schedule) -> Method:
        """The method of one lane."""
        return self.topology.build(schedule, self.grow, self.drop, self.regrow)


class Update(NamedTuple):
    """Which update of a network this is.

    Attributes:
      number: from 1; not batched over lanes, so that the evolution stays inside a real branch.
      schedule: of this lane. `topology.due(schedule, number)` implies that it is a multiple of
        `Evolution.interval`, or `topology.traits.at`.
      key: for random growth.
    """

    number: Array
    schedule: Schedule
    key: Array


class Gradient(NamedTuple):
    """The gradient of a loss, and what recomputes it in another way.

    Attributes:
      loss: bound parameters to a value and anything else; it applies the network once, to a batch.
      at: the network at which `grads` was taken.
      grads: of the masked form dense, of the compact form that of the live links.
      leak: added to it in growth scores.
    """

    loss: Callable[[Any], tuple[Array, Any]]
    at: Network
    grads: Params
    leak: Params | None = None
