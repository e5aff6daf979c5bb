"""Mask patterns: which places of a leaf compete for links.

A pattern divides the places of a leaf into groups `[groups, size]` with the same exact number of
links each:

    unstructured   one group per member of a stack
    fan_in         one group per output unit: constant fan-in (SRigL)
    "2:4", n:m     groups of m consecutive inputs of an output unit, n of them live
    (4, 4)         blocks of 4 inputs x 4 outputs, entirely live or entirely absent
"""

import math
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rlx2_jax.sparse.leaves import Leaf
from rlx2_jax.types import Array

Pattern = str | tuple[int, int] | None


class Structure(NamedTuple):
    """A pattern. At most one of `nm` and `block` is given.

    Attributes:
      name: `unstructured`, `fan_in`, or a name for messages.
      nm: (n, m) of n:m sparsity.
      block: inputs and outputs of a block.
    """

    name: str = "unstructured"
    nm: tuple[int, int] | None = None
    block: tuple[int, int] | None = None

    def check(self, leaf: Leaf) -> None:
        """Raises if the leaf's sizes do not fit the pattern."""
        sizes = {"inputs": leaf.size("i"), "outputs": leaf.size("o")}
        units = {"inputs": self.nm[1]} if self.nm else {}
        if self.block:
            units = dict(zip(sizes, self.block))
        for side, unit in units.items():
            if sizes[side] % unit:
                raise ValueError(
                    f"{leaf.path} has {sizes[side]} {side}, which {self.name} cannot divide into "
                    f"groups of {unit}: exclude this leaf (sparsity by pattern, or `sparse`)"
                )

    def divides(self, leaf: Leaf) -> bool:
        """Whether the leaf's sizes fit the pattern."""
        rows, columns = self.block or ((self.nm[1], 1) if self.nm else (1, 1))
        return leaf.size("i") % rows == 0 and leaf.size("o") % columns == 0

    def on(self, leaf: Leaf) -> "Structure":
        """The pattern, or unstructured for a leaf that it does not divide."""
        return self if self.divides(leaf) else Structure()

    def groups(self, leaf: Leaf, x: Array) -> Array:
        """Scores or masks of a leaf as [groups, size]; blocks are summed."""
        members = leaf.size("m")
        if self.block:
            ordered = _ordered(leaf, x, "msio").reshape(_blocks(leaf, self.block))
            pooled = ordered.sum(axis=(3, 5)) if x.dtype != bool else ordered.any(axis=(3, 5))
            return pooled.reshape(members, -1)
        if self.nm:
            return _ordered(leaf, x, "mosi").reshape(-1, self.nm[1])
        if self.name == "fan_in":
            return _ordered(leaf, x, "mosi").reshape(members * leaf.size("o"), -1)
        return _ordered(leaf, x, "m").reshape(members, -1)

    def ungroup(self, leaf: Leaf, mask: Array) -> Array:
        """The inverse of `groups`, for masks: bool[leaf.shape]."""
        if self.block:
            shape = _blocks(leaf, self.block)
            pooled = mask.reshape(*shape[:3], 1, shape[4], 1)
            return _restored(leaf, jnp.broadcast_to(pooled, shape), "msio")
        order = "mosi" if self.nm or self.name == "fan_in" else "m"
        return _restored(leaf, mask, order)

    def links(self, leaf: Leaf, links: Any) -> Any:
        """Links (or blocks) of one group, if one member of the leaf has `links` links."""
        if self.nm:
            return self.nm[0]
        size = math.prod(leaf.member_shape)
        if self.block:
            area = math.prod(self.block)
            return _at_least_one((links + area // 2) // area, size // area)
        if self.name == "fan_in":
            outputs = leaf.size("o")
            return _at_least_one((links + outputs // 2) // outputs, size // outputs)
        return links

    def total(self, leaf: Leaf, links: int) -> int:
        """The actual links of one member of the leaf: `links`, rounded to the pattern."""
        count, size = self.links(leaf, links), math.prod(leaf.member_shape)
        if self.block:
            return count * math.prod(self.block)
        if self.nm:
            return count * (size // self.nm[1])
        return count * leaf.size("o") if self.name == "fan_in" else count


def parse(pattern: Pattern) -> Structure:
    """Parses a pattern: None or "none", "fan_in", "2:4", (4, 4) or "4x4"."""
    if pattern is None or pattern == "none":
        return Structure()
    if pattern == "fan_in":
        return Structure("fan_in")
    nm = re.fullmatch(r"(\d+):(\d+)", pattern) if isinstance(pattern, str) else None
    if nm and 0 < int(nm[1]) <= int(nm[2]):
        return Structure(str(pattern), nm=(int(nm[1]), int(nm[2])))
    block = re.fullmatch(r"(\d+)x(\d+)", pattern) if isinstance(pattern, str) else None
    if block:
        pattern = (int(block[1]), int(block[2]))
    pair = isinstance(pattern, tuple) and len(pattern) == 2
    if pair and all(isinstance(n, int) and n > 0 for n in pattern):
        return Structure(f"block {pattern}", block=pattern)  # pyright: ignore[reportArgumentType]
    raise ValueError(
        f"structure={pattern!r}: use None, 'fan_in', 'n:m' with n <= m such as '2:4', or a block "
        "size such as (4, 4) or '4x4'"
    )


def _at_least_one(count: Any, most: int) -> Any:
    if isinstance(count, int):
        return min(max(count, 1), most)
    return jnp.clip(count, 1, most)


def _blocks(leaf: Leaf, block: tuple[int, int]) -> tuple[int, ...]:
    rows, columns = block
    inputs, outputs = leaf.size("i") // rows, leaf.size("o") // columns
    return (leaf.size("m"), leaf.size("s"), inputs, rows, outputs, columns)


def _axes(leaf: Leaf, order: str) -> list[int]:
    """Axes of a leaf, with those of the letters in `order` first and the others in place."""
    kinds = ["s" if axis not in "mio" else axis for axis in leaf.layout]
    first = [a for letter in order for a, kind in enumerate(kinds) if kind == letter]
    return first + [a for a in range(len(kinds)) if a not in first]


def _ordered(leaf: Leaf, x: Array, order: str) -> Array:
    return jnp.transpose(x, _axes(leaf, order))


def _restored(leaf: Leaf, x: Array, order: str) -> Array:
    axes = _axes(leaf, order)
    ordered = x.reshape([leaf.shape[a] for a in axes])
    return jnp.transpose(ordered, [axes.index(a) for a in range(len(axes))])


def local(x: Array) -> Array:
    """`x`, replicated if it is sharded over an explicit mesh."""
    return jax.sharding.reshard(x, jax.P()) if _explicit(x) else x


def placed_as(x: Array, like: Array) -> Array:
    """`x`, with the sharding of `like` if that has an explicit mesh."""
    return jax.sharding.reshard(x, jax.typeof(like).sharding) if _explicit(like) else x


def _explicit(x: Array) -> bool:
    mesh = jax.typeof(x).sharding.mesh
    return not mesh.empty and mesh._any_axis_explicit
