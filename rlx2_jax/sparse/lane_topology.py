"""How the lanes of one program change their masks: a method of `methods.METHODS`, with its options.

Names and patterns are static (`Topology`), lanes that share them share a program. Fractions,
intervals and numbers of links are data of a lane (`Schedule`), and so are growth and drop rules.
"""

import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
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
      method: a name of `methods.METHODS`. `rigl` stands for all that drop and grow in place: RigL
        and SET, by their growth rule, static and dense networks, by ζ_0 = 0.
      structure: the pattern of the masks, as `structure.parse` reads it. Layers that it does not
        divide have none.
      scope: whether pruning ranks the links of a `layer`, or of the whole network (`global`).
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
        """The method without a schedule: what it reads, and how masks begin."""
        return _traits(self)

    @property
    def options(self) -> list[str]:
        """The options that its method has."""
        return options_of(METHODS[self.method])

    @property
    def prunes(self) -> bool:
        """Whether masks begin dense."""
        return self.traits.begins == "dense"

    @property
    def pattern(self) -> Structure:
        """The structure, parsed."""
        return parse(self.structure)

    @property
    def gradual(self) -> bool:
        """Whether links go step by step from `start` on."""
        return "start" in self.options

    def delayed(self, delay: int) -> "Topology":
        """The same for a network that makes every `delay`-th update."""
        return self._replace(start=self.start // delay)

    def build(
        self,
        schedule: Schedule,
        grow: Sequence[str] = ("gradient",),
        drop: Sequence[str] = ("magnitude",),
        regrow: str = "keep",
    ) -> Method:
        """The method of one lane, whose rules `schedule` numbers."""

        def select_growth(key: Array, layer: rules.Layer) -> Array | rules.Factors:
            return rules.select([rules.GROW[name](key, layer) for name in grow], schedule.grow)

        def drop_by(layer: rules.Layer) -> Array:
            scores = [rules.DROP[name](layer) for name in drop]
            return rules.dense(rules.select(scores, schedule.drop))

        grow_by: rules.GrowRule = select_growth
        if any(rules.needs_smoothed(rules.GROW[name]) for name in grow):
            grow_by = rules.uses_smoothed(grow_by)
        t_end = schedule.t_end
        if self.gradual:  # mask updates are at multiples of the interval, the last one too
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
        with warnings.catch_warnings():  # whoever made the schedule has checked it
            warnings.simplefilter("ignore")
            return METHODS[self.method](**{x: values[x] for x in self.options if x in values})

    def due(self, schedule: Schedule, count: Array) -> Array:
        """Whether update `count` (from 1) of a network is a mask update of a lane: bool[]."""
        method = self.build(schedule)
        never = jnp.zeros((), bool)
        return never if method.due is None else (schedule.zeta0 > 0) & method.due(count)

    def fraction(self, schedule: Schedule, count: Array) -> Array:
        """ζ at update `count`: 0, which changes nothing, where no mask update is due."""
        fraction = update_fraction(count, schedule.zeta0, schedule.t_end)
        return jnp.where(self.due(schedule, count), fraction, 0.0)

    def check(self) -> None:
        """Raises if the method does not have the structure or scope."""
        for name, neutral in (("structure", "none"), ("scope", "layer")):
            value = getattr(self, name)
            if value != neutral and name not in self.options:
                able = [x for x, other in METHODS.items() if name in options_of(other)]
                raise ValueError(
                    f"{name}={value!r}: {self.method} has no {name}, these do: {', '.join(able)}"
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
        """Raises if the structure divides none of the layers of a network."""
        if not any(self.pattern.divides(kernel_leaf(name, shape)) for name, shape in layers):
            sizes = ", ".join(f"{i} x {o}" for _, (i, o) in layers)
            raise ValueError(
                f"structure={self.structure!r} divides no layer of the {network} ({sizes}): use "
                f"other sizes"
            )

    def links(self, name: str, shape: tuple[int, int], links: int) -> int:
        """The links of a layer whose sparsity gives it `links`."""
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
        """First masks with this structure; random numbers are those of `masks.init`."""
        if self.structure == "none":
            return masks_lib.init(key, params, sparsity, distribution=distribution, init=init)
        flat, treedef = jax.tree_util.tree_flatten_with_path(params)
        chosen = [i for i, (path, leaf) in enumerate(flat) if masks_lib.is_weight(path, leaf)]
        shapes = [flat[i][1].shape for i in chosen]
        sparsities = masks_lib.layer_sparsities(shapes, sparsity, distribution)
        masks = [jnp.ones(leaf.shape, bool) for _, leaf in flat]
        for i, own, subkey in zip(chosen, sparsities, jax.random.split(key, len(chosen))):
            x = flat[i][1]
            score = jnp.abs(x) if init == "magnitude" else jax.random.uniform(subkey, x.shape)
            masks[i] = initial(
                kernel_leaf("", x.shape), self.pattern, score, masks_lib.links(x.shape, own)
            )
        return jax.tree.unflatten(treedef, masks)


RIGL = Topology()


def kernel_leaf(name: str, shape: tuple[int, ...]) -> Leaf:
    """The kernel of a linear layer."""
    return Leaf(name, shape, "io", True)


@lru_cache
def _traits(topology: Topology) -> Method:
    schedule: Any = Schedule(1.0, 1, topology.start + 2, 0, 0)  # pyright: ignore
    return topology.build(schedule)
