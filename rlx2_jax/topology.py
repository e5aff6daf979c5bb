"""Topology evolution (Algorithm 1): drop the smallest links, grow where the score is largest.

    k      = floor(ζ_t · live links)
    I_drop = ArgTopK(-|θ ⊙ M|, k)
    I_grow = ArgTopK_{i ∉ M \\ I_drop}(|score|, k)

Every layer keeps its exact number of links. RigL scores by the dense gradient, SET at random, a
static network has ζ = 0: one code path, other data. k is traced, so that one compiled program
serves all fractions and all lanes.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlx2_jax.masks import check_same_tree, largest
from rlx2_jax.types import Array, Masks, Params

REGROW = ("keep", "zero", "forbid")
# floor(live · ζ) as float64 gives it: float32 may fall just short of a whole number.
_FLOOR_GUARD = 1.0 + 2.0**-22


def update_fraction(step: Array | int, zeta0: Array | float, t_end: Array | int) -> Array:
    """ζ_t = ζ_0/2 (1 + cos(π t / T_end)) until T_end, then 0: f32[]."""
    t = jnp.asarray(step, jnp.float32) / jnp.asarray(t_end, jnp.float32)
    fraction = 0.5 * jnp.asarray(zeta0, jnp.float32) * (1.0 + jnp.cos(jnp.pi * t))
    return jnp.where(t < 1.0, fraction, 0.0)


class Evolution(NamedTuple):
    """The new parameters and masks, and which links carry their value (moments, target) over."""

    params: Params
    masks: Masks
    inherited: Masks


def evolve(
    params: Params,
    masks: Masks,
    grow_scores: Params,
    fraction: Array | float,
    *,
    regrow: str = "keep",
) -> tuple[Params, Masks]:
    """One drop-and-grow step of every layer (Algorithm 1). Leaves with one axis pass through.

    Args:
      params, masks, grow_scores: trees of the same structure; growth takes the largest |score|.
      fraction: ζ_t in [0, 1], possibly traced.
      regrow: what a link just dropped may do: `keep`, grow again at once with its value (as the
        paper, its code and RigL); `zero`, grow again from zero; `forbid`, not grow again now.
    """
    evolved = evolution(params, masks, grow_scores, fraction, regrow=regrow)
    return evolved.params, evolved.masks


def evolution(
    params: Params,
    masks: Masks,
    grow_scores: Params,
    fraction: Array | float,
    *,
    regrow: str = "keep",
) -> Evolution:
    """`evolve`, which also tells what was inherited."""
    if regrow not in REGROW:
        raise ValueError(f"unknown regrow {regrow!r}: use one of {REGROW}")
    if isinstance(fraction, int | float) and not 0.0 <= fraction <= 1.0:
        raise ValueError(f"the update fraction {fraction} is not in [0, 1]")
    check_same_tree(params, masks, "params", "masks")
    check_same_tree(params, grow_scores, "params", "grow_scores")
    leaves, treedef = jax.tree.flatten(params)
    evolved = [
        _evolve_layer(p, m, s, fraction, regrow) if p.ndim >= 2 else Evolution(p, m, m)
        for p, m, s in zip(leaves, jax.tree.leaves(masks), jax.tree.leaves(grow_scores))
    ]
    return Evolution(*(jax.tree.unflatten(treedef, field) for field in zip(*evolved)))


def links_to_move(live: Array, fraction: Array | float) -> Array:
    """k = floor(live · ζ): i32[]."""
    k = jnp.floor(live.astype(jnp.float32) * jnp.asarray(fraction, jnp.float32) * _FLOOR_GUARD)
    return jnp.clip(k.astype(jnp.int32), 0, live)


def _evolve_layer(
    weight: Array, mask: Array, score: Array, fraction: Array | float, regrow: str
) -> Evolution:
    live = mask.sum(dtype=jnp.int32)
    k = links_to_move(live, fraction)
    if regrow == "forbid":  # only links dead before may grow: there may be fewer than k
        k = jnp.minimum(k, mask.size - live)
    kept = largest(jnp.where(mask, jnp.abs(weight), -1.0), live - k)
    taken = mask if regrow == "forbid" else kept
    size = jnp.abs(score)
    grown = largest(jnp.where(taken, -1.0, jnp.where(jnp.isnan(size), -0.5, size)), k)
    new_mask = kept | grown
    inherited = (new_mask & mask) if regrow == "keep" else kept
    return Evolution(jnp.where(inherited, weight, 0.0), new_mask, inherited)


class Schedule(NamedTuple):
    """When one network of one lane evolves, and how. All scalars, all traced."""

    zeta0: Array  # ζ_0; 0 never evolves (static and dense networks)
    interval: Array  # Δ_m, in updates of this network
    t_end: Array  # T_end, likewise
    random: Array  # bool: score growth at random (SET) instead of by gradient (RigL)

    def due(self, count: Array) -> Array:
        """Whether update `count` (from 1) is a mask update: bool[]."""
        return (self.zeta0 > 0) & (count % self.interval == 0) & (count < self.t_end)


def random_scores(key: Array, like: Params) -> Params:
    """SET's growth scores: uniform in (0, 1), a fresh key for each leaf."""
    leaves, treedef = jax.tree.flatten(like)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(
        treedef, [jax.random.uniform(k, x.shape, x.dtype) for k, x in zip(keys, leaves)]
    )
