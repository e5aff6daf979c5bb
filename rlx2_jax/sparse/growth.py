"""Link growth in one layer: ArgTopK of |∇_θ L| outside the taken places, in three versions.

`dense_grow` ranks a dense score array. Algorithm 2, efficient link growing, avoids the N-element
gradient, which compact networks never materialize: the gradient of a linear layer y = xθ is
∂L/∂θ_ij = x_i g_j, an outer product for one sample (`heap_grow`, a plain Python reference) and xᵀg
for a batch (`tiled_grow`, for jit). All three choose the same links.

Place (i, j) has number i · out + j, its position in the raveled `[in, out]` kernel. Ties go to the
lower number.
"""

import heapq
from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax.sparse.masks import largest, magnitude
from rlx2_jax.types import Array

# Scores are magnitudes; places that must not be chosen rank below zero.
_TAKEN, _NOTHING = -1.0, -2.0  # NaN ranks at -0.5


def dense_grow(score: Array, taken: Array, k: Array | int) -> Array:
    """A mask of the k largest |score| outside `taken`: all three `[in, out]`, k possibly traced.

    NaN scores rank last. At least k places must be free.
    """
    return largest(jnp.where(taken, _TAKEN, magnitude(score)), k)


class Grown(NamedTuple):
    """Links to grow, by decreasing |score|; invalid entries hold the layer's size."""

    indices: Array  # i32[k_max]
    valid: Array  # bool[k_max]

    def mask(self, shape: tuple[int, int]) -> Array:
        """The links as a boolean `[in, out]` mask."""
        empty = jnp.zeros(shape[0] * shape[1], bool)
        return empty.at[self.indices].set(True, mode="drop").reshape(shape)


def tiled_grow(
    x: Array, g: Array, taken: Array, k: Array | int, *, k_max: int, tile: int = 64
) -> Grown:
    """The k largest |xᵀg| outside `taken`, without materializing xᵀg: scans tiles of input rows
    with a running top k_max, so only `tile · out + k_max` scores exist at a time.

    Args:
      x: inputs of the layer, `[batch, in]`.
      g: gradient of the loss with respect to its outputs, `[batch, out]`.
      taken: a boolean mask `[in, out]`, or i32[m] places; places outside the layer are ignored and
        can serve as padding.
      k: links to grow, at most `k_max` and at most the places not taken; possibly traced.
      k_max: static size of the result.
      tile: input rows per tile.
    """
    (batch, n_in), n_out = x.shape, g.shape[-1]
    size = n_in * n_out
    dense = jnp.issubdtype(taken.dtype, jnp.bool_)
    if g.shape != (batch, n_out):
        raise ValueError(f"x and g are [batch, in] and [batch, out], got {x.shape} and {g.shape}")
    if taken.shape != (n_in, n_out) if dense else taken.ndim != 1:
        raise ValueError(
            f"taken is a mask of shape {(n_in, n_out)} or a vector of integers, got "
            f"{taken.dtype} of shape {taken.shape}"
        )
    if not 0 <= k_max <= size or tile < 1:
        raise ValueError(f"k_max={k_max} must be in [0, {size}] and tile={tile} at least 1")
    if isinstance(k, int) and not 0 <= k <= k_max:
        raise ValueError(f"k={k} must be in [0, k_max={k_max}]")

    tile = min(tile, n_in)
    tiles = -(-n_in // tile)
    padding = ((0, tiles * tile - n_in), (0, 0))
    x_tiles = jnp.pad(x.T, padding).reshape(tiles, tile, batch)
    starts = jnp.arange(tiles, dtype=jnp.int32) * (tile * n_out)
    local = jnp.arange(tile * n_out, dtype=jnp.int32)
    masks = jnp.pad(taken, padding, constant_values=True).reshape(tiles, -1) if dense else None

    def merge_tile(best: tuple[Array, Array], now: tuple[Array, Array, Array | None]):
        x_tile, start, mask = now
        if mask is None:
            places = taken - start
            places = jnp.where(places < 0, tile * n_out, places)  # a negative index would wrap
            mask = jnp.zeros(tile * n_out, bool).at[places].set(True, mode="drop")
            mask |= start + local >= size
        score = jnp.where(mask, _TAKEN, magnitude(x_tile @ g).ravel())
        # top_k is stable and the best so far come from lower rows: ties go to the lower place.
        scores = jnp.concatenate([best[0], score])
        indices = jnp.concatenate([best[1], start + local])
        scores, chosen = jax.lax.top_k(scores, k_max)
        return (scores, indices[chosen]), None

    nothing = (
        jnp.full(k_max, _NOTHING, jnp.result_type(x, g)),
        jnp.full(k_max, size, jnp.int32),
    )
    (scores, indices), _ = jax.lax.scan(merge_tile, nothing, (x_tiles, starts, masks))
    valid = (jnp.arange(k_max) < k) & (scores > _TAKEN)
    return Grown(jnp.where(valid, indices, size), valid)


def heap_grow(
    x: np.ndarray,
    g: np.ndarray,
    base: Iterable[int],
    links: int,
    forbid: Iterable[int] = (),
) -> set[int]:
    """Efficient link growing (Algorithm 2), for the gradient x_i g_j of one sample.

    One pointer per output walks down |x_σ1| ≥ |x_σ2| ≥ …, and a heap of the products at the
    pointers yields them in decreasing order, in O(links · log N) steps.

    Args:
      x, g: input and output gradient of the layer, `[in]` and `[out]`.
      base: S_0, existing links.
      links: (1 - s) N, the total number of links to reach.
      forbid: U, places that must not become links.

    Returns:
      S ⊇ S_0 with |S| = `links` and S \\ S_0 outside U.
    """
    x, g = np.abs(x), np.abs(g)
    links_now, forbidden = set(base), set(forbid)
    blocked = len(links_now | forbidden)
    if not (np.isfinite(x).all() and np.isfinite(g).all()):
        raise ValueError("x and g must be finite")
    if not len(links_now) <= links <= len(links_now) + x.size * g.size - blocked:
        raise ValueError(
            f"links={links} cannot be reached from {len(links_now)} links, with {blocked} of "
            f"{x.size * g.size} places taken or forbidden"
        )
    order = np.argsort(-x, kind="stable")  # σ

    def product(j: int, rank: int) -> float:
        return -float(g[j] * x[order[rank]])  # heapq is a min-heap

    with np.errstate(over="ignore"):
        heap = [(product(j, 0), j, 0) for j in range(g.size)]
        heapq.heapify(heap)
        while len(links_now) < links:
            # Pop all ties at once: a column is ordered by |x|, which is not the order of places if
            # g_j = 0 or if products round to the same number.
            top, tied = heap[0][0], []
            while heap and heap[0][0] == top:
                _, j, rank = heapq.heappop(heap)
                tied.append(int(order[rank]) * g.size + j)
                if rank + 1 < x.size:
                    heapq.heappush(heap, (product(j, rank + 1), j, rank + 1))
            free = [p for p in sorted(tied) if p not in links_now and p not in forbidden]
            links_now |= set(free[: links - len(links_now)])
    return links_now
