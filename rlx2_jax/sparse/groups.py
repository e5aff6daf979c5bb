"""Mask updates over several leaves: drop and grow, prune, move links between layers.

A mask update takes a `Step` and returns new masks. Places compete within the groups of a
`Structure`; an unstructured leaf is one group per member.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rlx2_jax.sparse import rules
from rlx2_jax.sparse.growth import dense_grow
from rlx2_jax.sparse.leaves import Leaf
from rlx2_jax.sparse.masks import largest, magnitude
from rlx2_jax.sparse.structure import Structure
from rlx2_jax.sparse.topology import links_to_move
from rlx2_jax.types import Array

Change = tuple[list[Array], list[Array] | None]  # new masks, and links that keep their value


class Step(NamedTuple):
    """The inputs of a mask update. Lists have one entry per sparse leaf.

    Attributes:
      leaves: shape and layout of each sparse kernel.
      weights: zero off the mask.
      grads: dense gradients.
      masks: current masks.
      links: final number of links of one member of each leaf.
      uniform: maps a key to random numbers in (0, 1) of the leaf's shape.
      count: the number of this update, from 1.
      key: for the random choices of this update.
      smoothed: exponentially smoothed dense gradients, for methods that declare them.
      signs: whether each place's initial weight was positive, for methods that declare them.
      hessian_gradient: computes H g, if `update` was given `grad_fn`.
      scored: passed to growth rules as the dense gradient, in place of `grads`.
      moments: Adam's moments μ and ν of the weights; None with a foreign optimizer.
    """

    leaves: Sequence[Leaf]
    weights: Sequence[Array]
    grads: Sequence[Array]
    masks: Sequence[Array]
    links: Sequence[int | Array]
    uniform: Sequence[Callable[[Array], Array]]
    count: Array  # pyright: ignore[reportIncompatibleMethodOverride]
    key: Array
    smoothed: Sequence[Array] | None = None
    signs: Sequence[Array] = ()
    hessian_gradient: Callable[[], Sequence[Array]] | None = None
    scored: Sequence[Array] | None = None
    moments: tuple[Sequence[Array], Sequence[Array]] | None = None


def initial(leaf: Leaf, structure: Structure, score: Array, links: int | Array) -> Array:
    """A mask of the `links` places with the largest score in every member: bool[leaf.shape]."""
    structure = structure.on(leaf)
    best = partial(largest, count=structure.links(leaf, links))
    return structure.ungroup(leaf, jax.vmap(best)(structure.groups(leaf, score)))


def evolve(
    step: Step,
    structure: Structure,
    grow: rules.GrowRule,
    drop: rules.DropRule,
    fraction: Array,
    regrow: str,
) -> Change:
    """Drop and grow (Algorithm 1). Drops the links with the smallest keep scores of the whole
    layer, as in SRigL; every group regrows as many as it lost."""
    masks, inherited = [], []

    def change(mask: Array, keep: Array, score: Array) -> tuple[Array, Array]:
        return _evolve_groups(mask, keep, score, fraction, regrow)

    for i, leaf in enumerate(step.leaves):
        pattern, members = structure.on(leaf), leaf.size("m")
        grow_score, keep_score = _scores(step, i, grow, drop)
        scores = (jnp.abs(keep_score), jnp.abs(grow_score))
        grouped = [pattern.groups(leaf, x) for x in (step.masks[i], *scores)]
        new = jax.vmap(change)(*(x.reshape(members, -1, x.shape[-1]) for x in grouped))
        for groups, kind in zip(new, (masks, inherited)):
            kind.append(pattern.ungroup(leaf, groups.reshape(grouped[0].shape)))
    return masks, inherited if regrow == "zero" else None


def _evolve_groups(
    mask: Array, keep: Array, score: Array, fraction: Array, regrow: str
) -> tuple[Array, Array]:
    """New mask and inherited links of one member; all arrays are [groups, size]."""
    live = mask.sum(axis=1, dtype=jnp.int32)
    size = jnp.where(mask, magnitude(keep), -1.0)
    kept = largest(size, live.sum() - links_to_move(live.sum(), fraction))
    taken = kept
    if regrow == "forbid":  # only absent links may grow, possibly too few
        gone = jnp.minimum(live - kept.sum(axis=1), mask.shape[1] - live)
        kept, taken = jax.vmap(largest)(size, live - gone), mask
    new = kept | jax.vmap(dense_grow)(score, taken, live - kept.sum(axis=1))
    return new, new & mask if regrow == "keep" else kept


def prune(
    step: Step, structure: Structure, scores: Sequence[Array], done: Array, together: bool
) -> list[Array]:
    """Keeps the N - floor(done (N - links)) live links with the largest scores.

    Args:
      scores: may be negative.
      done: pruning progress in [0, 1]; 1 leaves `step.links`.
      together: rank the links of all leaves together instead of within each group.
    """
    live = [jnp.where(m, s, -jnp.inf) for m, s in zip(step.masks, scores)]
    if together:
        every = jnp.concatenate([s.ravel() for s in live])
        final = sum(n * leaf.size("m") for n, leaf in zip(step.links, step.leaves))
        chosen = largest(every, _left(every.size, final, done))
        sizes = [s.size for s in live]
        parts = jnp.split(chosen, [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)])
        return [part.reshape(s.shape) for part, s in zip(parts, live)]
    masks = []
    for leaf, score, links in zip(step.leaves, live, step.links):
        pattern = structure.on(leaf)
        groups = pattern.groups(leaf, score)
        count = _left(groups.shape[1], pattern.links(leaf, links), done)
        chosen = jax.vmap(partial(largest, count=count))(groups)
        masks.append(pattern.ungroup(leaf, chosen))
    return masks


def redistribute(
    step: Step,
    fraction: Array,
    scores: Sequence[Array],
    importance: Callable[[Array, Array], Array],
    *,
    across: bool,
) -> Change:
    """Drops a share of the smallest weights and regrows as many links, distributed over layers in
    proportion to their importance. Links move between leaves but not between members of a stack.

    Args:
      scores: nonnegative growth scores.
      importance: of a layer, given its kept links and its scores.
      across: drop the smallest weights of all layers together instead of a share of each layer.
    """
    plain = Structure()
    members = {leaf.size("m") for leaf in step.leaves}
    if len(members) != 1:
        raise ValueError(
            "links move between layers: all sparse leaves need the same number of members, not "
            + ", ".join(f"{leaf.path} {leaf.size('m')}" for leaf in step.leaves)
        )

    def one(weights: list[Array], masks: list[Array], scores: list[Array]) -> list[Array]:
        live = [m.sum(dtype=jnp.int32) for m in masks]
        sizes = [jnp.where(m, magnitude(w), -1.0) for w, m in zip(weights, masks)]
        if across:
            total = sum(live, jnp.int32(0))
            move = links_to_move(total, fraction)
            flat = largest(jnp.concatenate(sizes), total - move)
            lengths = [m.size for m in masks]
            kept = jnp.split(flat, [sum(lengths[: i + 1]) for i in range(len(lengths) - 1)])
        else:
            moves = [links_to_move(n, fraction) for n in live]
            kept = [largest(s, n - k) for s, n, k in zip(sizes, live, moves)]
            move = sum(moves, jnp.int32(0))
        wanted = jnp.stack([importance(k, s) for k, s in zip(kept, scores)])
        room = jnp.stack([k.size - k.sum(dtype=jnp.int32) for k in kept])
        grow = apportion(move, wanted, room)
        return [k | dense_grow(s, k, n) for k, s, n in zip(kept, scores, grow)]

    group = lambda xs: [plain.groups(leaf, x) for leaf, x in zip(step.leaves, xs)]  # noqa: E731
    new = jax.vmap(one)(group(step.weights), group(step.masks), group(scores))
    return [plain.ungroup(leaf, m) for leaf, m in zip(step.leaves, new)], None


def apportion(total: Array, weights: Array, room: Array) -> Array:
    """Divides `total` among layers in proportion to `weights`, at most `room` each: i32[layers].

    The sum is exactly min(total, Σ room); the rounding remainder goes to the first layers.
    """
    given = jnp.zeros_like(room)
    weights = jnp.where(jnp.isfinite(weights) & (weights > 0), weights, 0.0)
    for _ in range(len(room)):  # each round distributes everything or fills another layer
        left = total - given.sum()
        open_weights = jnp.where(given < room, weights, 0.0)
        shares = open_weights / jnp.maximum(open_weights.sum(), jnp.finfo(weights.dtype).tiny)
        given = jnp.minimum(given + jnp.floor(left * shares).astype(given.dtype), room)
    rest, free = total - given.sum(), room - given
    before = jnp.cumsum(free) - free
    return given + jnp.clip(rest - before, 0, free)


def refill(leaf: Leaf, mask: Array, stays: Array, draws: Array) -> Array:
    """`stays`, filled up by the largest `draws` to the number of links in `mask`, per member."""
    groups = partial(Structure().groups, leaf)

    def one(mask: Array, stays: Array, draws: Array) -> Array:
        return stays | dense_grow(draws, stays, mask.sum(dtype=jnp.int32) - stays.sum())

    return Structure().ungroup(leaf, jax.vmap(one)(groups(mask), groups(stays), groups(draws)))


def _left(size: int, final: Any, done: Array) -> Array:
    absent = jnp.asarray(size - final, jnp.float32) * done * (1.0 + 2.0**-22)
    return size - jnp.minimum(jnp.floor(absent).astype(jnp.int32), size - final)


def _scores(step: Step, i: int, grow: rules.GrowRule, drop: rules.DropRule) -> tuple[Array, Array]:
    """Growth and keep scores of leaf i. Rules see one stack member at a time."""
    leaf = step.leaves[i]
    smoothed = step.smoothed[i] if step.smoothed is not None else None
    if "m" not in leaf.layout:
        mu, nu = (x[i] for x in step.moments) if step.moments else (None, None)
        dense_grad = step.grads[i] if step.scored is None else step.scored[i]
        layer = rules.Layer(
            step.weights[i], step.grads[i], mu, nu, dense_grad, step.uniform[i], smoothed
        )
        return rules.dense(grow(step.key, layer)), drop(layer)
    stack = [a for a, letter in enumerate(leaf.layout) if letter == "m"]
    front = list(range(len(stack)))
    shape = tuple(n for n, letter in zip(leaf.shape, leaf.layout) if letter != "m")

    def one(member: Array, arrays: Any) -> tuple[Array, Array]:
        weight, grad, smoothed = arrays

        def uniform(key: Array) -> Array:
            key = jax.random.fold_in(jax.random.fold_in(key, i), member)
            return jax.random.uniform(key, shape, weight.dtype)

        layer = rules.Layer(weight, grad, None, None, grad, uniform, smoothed)
        return rules.dense(grow(step.key, layer)), drop(layer)

    flat = lambda x: jnp.moveaxis(x, stack, front).reshape(-1, *shape)  # noqa: E731
    arrays = jax.tree.map(flat, (step.weights[i], step.grads[i], smoothed))
    scores = jax.vmap(one)(jnp.arange(leaf.size("m")), arrays)
    lead = tuple(leaf.shape[a] for a in stack)
    return jax.tree.map(lambda x: jnp.moveaxis(x.reshape(*lead, *shape), front, stack), scores)
