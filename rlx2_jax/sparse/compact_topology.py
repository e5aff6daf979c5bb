"""Topology evolution of a compact network (Algorithm 1, and the growth of appendix A.1).

    k      = floor(ζ_t · live links)
    I_drop = the k live links of smallest |θ|
    I_grow = the k places of largest |score| among those not live after the drop

The score of a batch is the dense gradient g_y xᵀ. It is computed in tiles with a running top-k, so
its N elements are never all in memory. Ties are broken as in masked networks, by position in the
flattened [in, out] kernel: of equal |θ| the later place drops first, of equal |score| the earlier
place grows first.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from rlx2_jax.kernels.layout import Array, Index, build_index, places
from rlx2_jax.sparse.masks import magnitude

REGROW = ("keep", "zero", "forbid")
Score = Array | tuple[Array, Array]  # [in, out], or (x [in, batch], g_y [out, batch])

# Rounds up products that are integers in float64 but slightly less in float32.
_FLOOR_GUARD = 1.0 + 2.0**-22
_TILE = 1 << 15  # places scored at a time


def evolve(
    flat: Array,
    index: Index,
    scores: Sequence[Score],
    fraction: Array | float,
    *,
    keep_scores: Array | None = None,
    regrow: str = "keep",
    max_fraction: float = 1.0,
) -> tuple[Index, Array]:
    """Drops and grows links in every layer; each layer keeps its exact number of live links.

    Args:
      flat: [parameters]; biases are ignored.
      scores: per layer, growth scores [in, out] or the pair (x [in, batch], g_y [out, batch])
        whose product is the score.
      fraction: ζ_t in [0, 1], possibly traced; 0 changes nothing.
      keep_scores: [parameters] or [links]; links with the smallest |score| are dropped. Default
        |θ|.
      regrow: whether links just dropped may regrow: `keep`, with their value; `zero`, from zero;
        `forbid`, not in this update.
      max_fraction: static bound on `fraction`, which bounds the memory and time of the top-k.

    Returns:
      The new index, and the source of each parameter for `remap` (-1 if new): i32[parameters].
    """
    if regrow not in REGROW:
        raise ValueError(f"unknown regrow {regrow!r}: use one of {REGROW}")
    if isinstance(fraction, int | float) and not 0.0 <= fraction <= max_fraction:
        raise ValueError(f"the update fraction {fraction} is not in [0, {max_fraction}]")
    spec, keep = index.spec, flat if keep_scores is None else keep_scores
    moved = [
        _evolve_layer(keep, index, layer, score, fraction, regrow, max_fraction)
        for layer, score in enumerate(scores)
    ]
    new_index, order = build_index([place for place, _ in moved], spec)
    source = [
        jnp.where(old[order[s]] >= 0, old[order[s]] + s.start, -1)
        for (_, old), s in zip(moved, spec.slices("values"))
    ]
    biases = jnp.arange(spec.links, spec.parameters, dtype=jnp.int32)
    return new_index, jnp.concatenate([*source, biases])


def remap(source: Array, *vectors: Array) -> tuple[Array, ...]:
    """Reorders parameter vectors (values, moments, targets) by `source`; new links get 0."""
    return tuple(jnp.where(source >= 0, v[jnp.maximum(source, 0)], 0) for v in vectors)


def links_to_move(live: Array, fraction: Array | float) -> Array:
    """k = floor(live · ζ): i32[]."""
    k = jnp.floor(live.astype(jnp.float32) * jnp.asarray(fraction, jnp.float32) * _FLOOR_GUARD)
    return jnp.clip(k.astype(jnp.int32), 0, live)


def _evolve_layer(
    keep: Array,
    index: Index,
    layer: int,
    score: Score,
    fraction: Array | float,
    regrow: str,
    max_fraction: float,
) -> tuple[Array, Array]:
    """New places (ascending, padded) and, for each, the old value position or -1."""
    n_in, n_out = index.spec.shapes[layer]
    nnz, dead = index.spec.nnz[layer], n_in * n_out
    most = min(nnz, int(nnz * max_fraction * _FLOOR_GUARD))
    place, perm = places(index, layer), index.layer("perm", layer)
    if most == 0:
        return place, perm
    live = index.live()[layer]
    k = jnp.minimum(links_to_move(live, fraction), most)
    if regrow == "forbid":  # only absent links may grow, possibly fewer than k
        k = jnp.minimum(k, dead - live)
    keep = keep[index.spec.slices("values")[layer]][perm]
    size = jnp.where(place < dead, magnitude(keep), -1.0)
    order = jnp.argsort(-size, stable=True)
    kept = jnp.zeros(nnz, bool).at[order].set(jnp.arange(nnz) < live - k)
    taken = place if regrow == "forbid" else jnp.where(kept, place, dead)
    best = _top_places(score, taken, index.layer("colptr", layer), (n_in, n_out), most)
    grown = jnp.where(jnp.arange(most) < k, best, dead)
    was = jnp.minimum(jnp.searchsorted(place, grown), nnz - 1)
    regrown = (place[was] == grown) & (grown < dead) & (regrow == "keep")
    new_place = jnp.concatenate([jnp.where(kept, place, dead), grown])
    source = jnp.concatenate([perm, jnp.where(regrown, perm[was], -1)])
    new_place, source = jax.lax.sort((new_place, source), num_keys=1)
    return new_place[:nnz], jnp.where(new_place[:nnz] < dead, source[:nnz], -1)


def _top_places(
    score: Score, taken: Array, colptr: Array, shape: tuple[int, int], most: int
) -> Array:
    """The `most` best places not in `taken`, best first: i32[most].

    A tile is a few inputs with all their outputs, so tiles are in order of place, and ties go to
    the earlier place. Places in `taken` score -1, NaN scores -0.5. `taken` is in link order: those
    of a tile lie between two entries of `colptr`.
    """
    n_in, n_out = shape
    rows = max(1, min(n_in, _TILE // n_out))
    tiles = -(-n_in // rows)
    span = min(len(taken), rows * n_out)
    padding = ((0, rows * tiles - n_in), (0, 0))
    left = jnp.pad(score[0] if isinstance(score, tuple) else score, padding)

    def tile(t: Array, best: tuple[Array, Array]) -> tuple[Array, Array]:
        first = t * rows
        part = jax.lax.dynamic_slice_in_dim(left, first, rows)
        if isinstance(score, tuple):
            part = jax.lax.dot_general(
                part, score[1], (((1,), (1,)), ((), ())), precision=jax.lax.Precision.HIGHEST
            )
        key = magnitude(part).reshape(-1)
        here = first * n_out + jnp.arange(rows * n_out, dtype=jnp.int32)
        key = jnp.where(here < n_in * n_out, key, -2.0)
        mine = jax.lax.dynamic_slice_in_dim(taken, colptr[first], span) - first * n_out
        mine = jnp.where(mine < 0, rows * n_out, mine)  # outside the tile (negative would wrap)
        key = key.at[mine].set(-1.0, mode="drop")
        keys, winners = jnp.concatenate([best[0], key]), jnp.concatenate([best[1], here])
        top, chosen = jax.lax.top_k(keys, most)
        return top, winners[chosen]

    start = (jnp.full(most, -3.0, left.dtype), jnp.full(most, n_in * n_out, jnp.int32))
    return jax.lax.fori_loop(0, tiles, tile, start)[1]
