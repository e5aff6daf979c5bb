"""Topology evolution (Algorithm 1): drop the smallest links, grow where the score is largest.

    k      = floor(ζ_t · live links)
    I_drop = ArgTopK(-|θ ⊙ M|, k)
    I_grow = ArgTopK_{i ∉ M \\ I_drop}(|score|, k)

Every layer keeps its exact number of links. `rules` defines the scores: RigL uses the dense
gradient, SET random numbers; a static network has ζ = 0. k is traced, so one compiled program
serves all fractions and lanes.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlx2_jax.sparse.growth import dense_grow
from rlx2_jax.sparse.masks import Predicate, check_same_tree, is_weight, largest, magnitude
from rlx2_jax.types import Array, Masks, Params

REGROW = ("keep", "zero", "forbid")
# Rounds up products that are integers in float64 but slightly less in float32.
_FLOOR_GUARD = 1.0 + 2.0**-22


def update_fraction(step: Array | int, zeta0: Array | float, t_end: Array | int) -> Array:
    """ζ_t = ζ_0/2 (1 + cos(π t / T_end)) until T_end, then 0: f32[]."""
    t = jnp.asarray(step, jnp.float32) / jnp.asarray(t_end, jnp.float32)
    fraction = 0.5 * jnp.asarray(zeta0, jnp.float32) * (1.0 + jnp.cos(jnp.pi * t))
    return jnp.where(t < 1.0, fraction, 0.0)


class Evolution(NamedTuple):
    """The result of a mask update, as trees of the same structure.

    Attributes:
      params: new parameters: 0 off the mask and on links that do not keep their value.
      masks: new masks.
      inherited: links that keep their value (and moments and target).
    """

    params: Params
    masks: Masks
    inherited: Masks


def evolve(
    params: Params,
    masks: Masks,
    grow_scores: Params,
    fraction: Array | float,
    *,
    keep_scores: Params | None = None,
    regrow: str = "keep",
    sparse: Predicate = is_weight,
) -> tuple[Params, Masks]:
    """One drop-and-grow step of every layer (Algorithm 1). Leaves that are not sparse pass through.

    Args:
      params, masks, grow_scores: trees of the same structure; growth takes the largest |score|.
      fraction: ζ_t in [0, 1], possibly traced.
      keep_scores: links with the smallest score are dropped; default |θ|.
      regrow: whether links just dropped may regrow: `keep`, with their value (as in the paper, its
        code and RigL); `zero`, from zero; `forbid`, not in this step.
      sparse: selects the leaves that evolve, given path and leaf.
    """
    evolved = evolution(
        params,
        masks,
        grow_scores,
        fraction,
        keep_scores=keep_scores,
        regrow=regrow,
        sparse=sparse,
    )
    return evolved.params, evolved.masks


def evolution(
    params: Params,
    masks: Masks,
    grow_scores: Params,
    fraction: Array | float,
    *,
    keep_scores: Params | None = None,
    regrow: str = "keep",
    sparse: Predicate = is_weight,
) -> Evolution:
    """Like `evolve`, and also returns which links keep their value."""
    keep_scores = params if keep_scores is None else keep_scores
    check_same_tree(params, keep_scores, "params", "keep_scores")
    check_same_tree(params, masks, "params", "masks")
    check_same_tree(params, grow_scores, "params", "grow_scores")
    flat, treedef = jax.tree_util.tree_flatten_with_path(params)
    evolved = [
        evolve_layer(p, m, partial(dense_grow, s), fraction, keep, regrow=regrow)
        if sparse(path, p)
        else Evolution(p, m, m)
        for (path, p), m, s, keep in zip(
            flat, *map(jax.tree.leaves, (masks, grow_scores, keep_scores))
        )
    ]
    return Evolution(*(jax.tree.unflatten(treedef, field) for field in zip(*evolved)))


def evolve_layer(
    weight: Array,
    mask: Array,
    grow: Callable[[Array, Array], Array],
    fraction: Array | float,
    keep_score: Array | None = None,
    *,
    regrow: str = "keep",
) -> Evolution:
    """One layer of `evolution`.

    `grow(taken, k)` returns a mask of k places that are not taken. Links with the smallest
    |keep_score| (default: the weight) are dropped.
    """
    if regrow not in REGROW:
        raise ValueError(f"unknown regrow {regrow!r}: use one of {REGROW}")
    if isinstance(fraction, int | float) and not 0.0 <= fraction <= 1.0:
        raise ValueError(f"the update fraction {fraction} is not in [0, 1]")
    score = weight if keep_score is None else keep_score
    live = mask.sum(dtype=jnp.int32)
    k = links_to_move(live, fraction)
    if regrow == "forbid":  # only absent links may grow, possibly fewer than k
        k = jnp.minimum(k, mask.size - live)
    kept = largest(jnp.where(mask, magnitude(score), -1.0), live - k)
    new_mask = kept | grow(mask if regrow == "forbid" else kept, k)
    inherited = (new_mask & mask) if regrow == "keep" else kept
    return Evolution(jnp.where(inherited, weight, 0.0), new_mask, inherited)


def links_to_move(live: Array, fraction: Array | float) -> Array:
    """k = floor(live · ζ): i32[]."""
    k = jnp.floor(live.astype(jnp.float32) * jnp.asarray(fraction, jnp.float32) * _FLOOR_GUARD)
    return jnp.clip(k.astype(jnp.int32), 0, live)


class Schedule(NamedTuple):
    """The traced part of the mask updates of one network of a lane; see `lane_topology` for the
    static part.

    Attributes:
      zeta0: ζ_0; 0 for static and dense networks.
      interval: Δ_m, in updates of this network.
      t_end: T_end, in updates of this network.
      grow: index of the growth rule among those of the program.
      drop: index of the drop rule among those of the program.
      links: final links of each kernel, for methods that prune.
    """

    zeta0: Array
    interval: Array
    t_end: Array
    grow: Array
    drop: Array
    links: dict[str, Array] | None = None
