"""Mask updates of lanes: a method of `methods.METHODS` with its options.

Names and patterns are static (`Topology`); lanes that agree on them share a program. Fractions,
intervals, link counts, and growth and drop rules are traced per lane (`Schedule`).
"""

import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax.numpy as jnp

from rlx2_jax.sparse import masks as masks_lib
from rlx2_jax.sparse import rules
from rlx2_jax.sparse.groups import initial
from rlx2_jax.sparse.leaves import Leaf
from rlx2_jax.sparse.methods import METHODS, Method, options_of
from rlx2_jax.sparse.structure import Structure, parse
from rlx2_jax.sparse.topology import Schedule, update_fraction
from rlx2_jax.types import Array, Masks, Params


class Topology(NamedTuple):
    """The static part of a lane's mask updates.

    Attributes:
      method: a name in `methods.METHODS`. `rigl` covers all methods that drop and grow within a
        layer: RigL and SET (by their growth rule), static and dense networks (ζ_0 = 0).
      structure: the mask pattern, as for `structure.parse`. Layers that it does not divide are
        unstructured.
      scope: whether pruning ranks links per `layer` or over the whole network (`global`).
      start: updates of this network before pruning begins.
    """

    method: str = "rigl"
    structure: str = "none"
    scope: str = "layer"
    start: int = 0

    def __str__(self) -> str:
        return (
            f"topology={self.method}, structure={self.structure}, scope={self.scope}, "
            f"prune_start={self.start}"
        )

    @property
    def traits(self) -> Method:
        """The static properties of the method, built with a placeholder schedule."""
        return _traits(self)

    @property
    def options(self) -> list[str]:
        """The options of the method."""
        return options_of(METHODS[self.method])

    @property
    def prunes(self) -> bool:
        """Whether masks start dense."""
        return self.traits.begins == "dense"

    @property
    def pattern(self) -> Structure:
        """The structure, parsed."""
        return parse(self.structure)

    @property
    def gradual(self) -> bool:
        """Whether pruning is gradual, from `start` on."""
        return "start" in self.options

    def delayed(self, delay: int) -> "Topology":
        """The topology of a network that is updated every `delay` updates."""
        return self._replace(start=self.start // delay)

    def build(
        self,
        schedule: Schedule,
        grow: Sequence[str] = ("gradient",),
        drop: Sequence[str] = ("magnitude",),
        regrow: str = "keep",
    ) -> Method:
        """The method of one lane; `schedule` selects among the rules by index."""

        def select_growth(key: Array, layer: rules.Layer) -> Array | rules.Factors:
            return rules.select([rules.GROW[name](key, layer) for name in grow], schedule.grow)

        def drop_by(layer: rules.Layer) -> Array:
            scores = [rules.DROP[name](layer) for name in drop]
            return rules.dense(rules.select(scores, schedule.drop))

        grow_by: rules.GrowRule = select_growth
        if any(rules.needs_smoothed(rules.GROW[name]) for name in grow):
            grow_by = rules.uses_smoothed(grow_by)
        t_end = schedule.t_end
        if self.gradual:  # the last mask update must also be at a multiple of the interval
            t_end = t_end // schedule.interval * schedule.interval
        values = {
            "interval": schedule.interval,
            "t_end": t_end,
            "zeta0": schedule.zeta0,
            "grow": grow_by,
            "drop": drop_by,
            "regrow": regrow,
            "structure": None if self.structure == "none" else self.structure,
            "scope": self.scope,
            "start": self.start,
            "at": self.start + 1,
        }
        with warnings.catch_warnings():  # the schedule has already been checked
            warnings.simplefilter("ignore")
            return METHODS[self.method](**{x: values[x] for x in self.options if x in values})

    def due(self, schedule: Schedule, count: Array) -> Array:
        """Whether update `count` (from 1) of a network is a mask update of a lane: bool[]."""
        method = self.build(schedule)
        never = jnp.zeros((), bool)
        return never if method.due is None else (schedule.zeta0 > 0) & method.due(count)

    def fraction(self, schedule: Schedule, count: Array) -> Array:
        """ζ at update `count`; 0, which changes nothing, if no mask update is due."""
        fraction = update_fraction(count, schedule.zeta0, schedule.t_end)
        return jnp.where(self.due(schedule, count), fraction, 0.0)

    def check(self) -> None:
        """Raises if the method does not support the structure or scope."""
        for name, neutral in (("structure", "none"), ("scope", "layer")):
            value = getattr(self, name)
            if value != neutral and name not in self.options:
                able = [x for x, other in METHODS.items() if name in options_of(other)]
                raise ValueError(
                    f"{name}={value!r}: {self.method} has no {name}; these methods do: "
                    f"{', '.join(able)}"
                )
        if self.structure != "none" and self.scope == "global":
            raise ValueError(
                f"scope='global' ranks all links of a network, which structure={self.structure!r} "
                f"does not allow: use scope='layer'"
            )
        if self.traits.change is None:
            raise ValueError(
                f"topology={self.method!r} never changes masks: use zeta0=0 with a sparsity"
            )

    def check_layers(self, layers: Sequence[tuple[str, tuple[int, int]]], network: str) -> None:
        """Raises if the structure divides no layer of a network."""
        if not any(self.pattern.divides(kernel_leaf(name, shape)) for name, shape in layers):
            sizes = ", ".join(f"{i} x {o}" for _, (i, o) in layers)
            raise ValueError(
                f"structure={self.structure!r} divides no layer of the {network} ({sizes}): use "
                f"other sizes"
            )

    def links(self, name: str, shape: tuple[int, int], links: int) -> int:
        """`links` of a layer, rounded to the structure."""
        leaf = kernel_leaf(name, shape)
        return self.pattern.on(leaf).total(leaf, links)

    def initial_masks(
        self,
        key: Array,
        params: Params,
        sparsity: float | Sequence[float],
        distribution: str,
        init: str,
    ) -> Masks:
        """Initial masks with this structure, from the same random numbers as `masks.init`."""

        def choose(score: Array, links: int) -> Array:
            return initial(kernel_leaf("", score.shape), self.pattern, score, links)

        return masks_lib.init(
            key,
            params,
            sparsity,
            distribution=distribution,
            init=init,
            choose=None if self.structure == "none" else choose,
        )


RIGL = Topology()


def kernel_leaf(name: str, shape: tuple[int, ...]) -> Leaf:
    """The kernel of a linear layer."""
    return Leaf(name, shape, "io", True)


@lru_cache
def _traits(topology: Topology) -> Method:
    schedule: Any = Schedule(1.0, 1, topology.start + 2, 0, 0)  # pyright: ignore
    return topology.build(schedule)
