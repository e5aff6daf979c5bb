"""Sparse masks: the number of links per layer, and initial masks.

A mask is a boolean pytree with the structure of the parameters. It is all ones on leaves that are
not sparse (by default those with fewer than two axes, such as biases), so it applies to the whole
tree. Weights are `[..., in, out]`, as in Flax and Haiku.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rlx2_jax.types import Array, Masks, Params

DISTRIBUTIONS = ("erdos_renyi", "erk", "uniform")
INITS = ("random", "magnitude")

Predicate = Callable[[jax.tree_util.KeyPath, Array], bool]


def is_weight(path: jax.tree_util.KeyPath, leaf: Array) -> bool:
    """The default choice of sparse leaves: arrays with at least two axes."""
    del path
    return np.ndim(leaf) >= 2


def layer_sparsities(
    shapes: Sequence[Sequence[int]],
    sparsity: float | Sequence[float] | Array,
    distribution: str = "erdos_renyi",
) -> list[Any]:
    """The sparsity S_l of each layer, given the sparsity S of the network (appendix B).

        (1 - S) Σ I_l O_l = Σ (1 - S_l) I_l O_l,      1 - S_l = k (I_l + O_l) / (I_l O_l)

    Layers whose density would exceed 1 are kept dense and k is solved again for the others.

    Args:
      shapes: `[(in, out), ...]`; leading axes (a convolution's window) are allowed.
      sparsity: S in [0, 1), possibly traced, or one S_l per layer, which is only checked.
      distribution: `erdos_renyi` (the paper's), `erk` (sum and product over all axes, which differs
        only for convolutions) or `uniform` (S_l = S).
    """
    shapes = [tuple(int(n) for n in shape) for shape in shapes]
    for shape in shapes:
        if len(shape) < 2 or min(shape) < 1:
            raise ValueError(f"a layer's shape is (..., in, out) with sizes >= 1, got {shape}")
    if isinstance(sparsity, Sequence) and not isinstance(sparsity, str):
        if len(sparsity) != len(shapes):
            raise ValueError(f"{len(sparsity)} sparsities for {len(shapes)} layers: give one each")
        return [check_sparsity(s) for s in sparsity]
    if distribution not in DISTRIBUTIONS:
        raise ValueError(f"unknown distribution {distribution!r}: use one of {DISTRIBUTIONS}")
    if isinstance(sparsity, Tracer):
        return _traced_sparsities(shapes, sparsity, distribution)
    sparsity = float(check_sparsity(sparsity))

    sizes = [math.prod(shape) for shape in shapes]
    budget = (1.0 - sparsity) * sum(sizes)
    if budget < len(shapes) * (1 - 1e-9):
        best = 1 - len(shapes) / sum(sizes)
        raise ValueError(
            f"sparsity {sparsity} leaves {budget:.3g} links for {len(shapes)} layers, "
            f"and every layer needs one: use at most {best:.6g}, or larger layers"
        )
    if distribution == "uniform":
        return [sparsity] * len(shapes)

    raw = _raw_densities(shapes, distribution)
    dense: set[int] = set()
    while len(dense) < len(shapes):
        free = [i for i in range(len(shapes)) if i not in dense]
        links = budget - sum(sizes[i] for i in dense)
        k = links / sum(raw[i] * sizes[i] for i in free)
        steepest = max(raw[i] for i in free)
        if k * steepest <= 1.0:
            return [0.0 if i in dense else 1.0 - k * raw[i] for i in range(len(shapes))]
        dense |= {i for i in free if raw[i] == steepest}
    return [0.0] * len(shapes)


def _raw_densities(shapes: Sequence[tuple[int, ...]], distribution: str) -> list[float]:
    """Densities of the layers up to the common factor k."""
    spans = [shape if distribution == "erk" else shape[-2:] for shape in shapes]
    return [sum(span) / math.prod(span) for span in spans]


def _traced_sparsities(
    shapes: Sequence[tuple[int, ...]], sparsity: Array, distribution: str
) -> list[Array]:
    """`layer_sparsities` for a traced S, in float32: densities min(1, k r_l) with the same k, found
    by trying every possible number of dense layers."""
    if distribution == "uniform":
        return [sparsity] * len(shapes)
    sizes = np.array([math.prod(shape) for shape in shapes], np.float32)
    raw = np.array(_raw_densities(shapes, distribution), np.float32)
    order = np.argsort(-raw, kind="stable")
    held = np.concatenate([[0.0], np.cumsum(sizes[order])[:-1]])  # links of the first j layers
    free = np.cumsum((raw * sizes)[order][::-1])[::-1]
    budget = (1.0 - sparsity) * sizes.sum()
    factors = (budget - held.astype(np.float32)) / free.astype(np.float32)
    fits = factors * raw[order] <= 1.0
    dense = jnp.where(fits.any(), jnp.argmax(fits), len(shapes))
    k = factors[jnp.minimum(dense, len(shapes) - 1)]
    rank = np.argsort(order, kind="stable")
    return [jnp.where(dense > rank[i], 0.0, 1.0 - k * raw[i]) for i in range(len(shapes))]


def links(shape: Sequence[int], sparsity: float | Array) -> Any:
    """The number of links of a layer: N - floor(S_l N), at least 1 for a traced S_l: i32[]."""
    size = math.prod(shape)
    if isinstance(sparsity, Tracer):
        absent = jnp.floor(sparsity * size * (1.0 + 2.0**-22)).astype(jnp.int32)
        return jnp.clip(size - absent, 1, size)
    return size - int(sparsity * size)


def init(
    key: Array,
    params: Params,
    sparsity: float | Sequence[float],
    *,
    distribution: str = "erdos_renyi",
    init: str = "random",
    sparse: Predicate = is_weight,
    choose: Callable[[Array, int], Array] | None = None,
) -> Masks:
    """Initial masks with exactly `links(shape, S_l)` ones in layer l, all ones elsewhere.

    Args:
      key: for `init="random"`.
      params: any pytree of arrays.
      sparsity: of all sparse leaves together, or a list with one value per sparse leaf in the
        order of `jax.tree.leaves`.
      init: `random` (the paper's), or `magnitude` for the largest weights of each layer.
      sparse: selects sparse leaves, given path and leaf.
      choose: maps scores and a number of links to a mask, for patterns; default: `largest`.
    """
    if init not in INITS:
        raise ValueError(f"unknown mask init {init!r}: use one of {INITS}")
    flat, treedef = jax.tree_util.tree_flatten_with_path(params)
    chosen = [i for i, (path, leaf) in enumerate(flat) if sparse(path, leaf)]
    if not chosen:
        raise ValueError("no leaf of params is sparse: give weights with two axes, or `sparse`")
    sparsities = layer_sparsities([flat[i][1].shape for i in chosen], sparsity, distribution)
    masks = [jnp.ones(leaf.shape, bool) for _, leaf in flat]
    for i, layer_sparsity, subkey in zip(chosen, sparsities, jax.random.split(key, len(chosen))):
        leaf = flat[i][1]
        score = jnp.abs(leaf) if init == "magnitude" else jax.random.uniform(subkey, leaf.shape)
        masks[i] = (choose or largest)(score, links(leaf.shape, layer_sparsity))
    return jax.tree.unflatten(treedef, masks)


def largest(score: Array, count: int | Array) -> Array:
    """A mask of the `count` largest entries of `score`. Ties go to the first; NaN ranks last.

    `count` may be traced. Finds the count-th largest value by bisection over the bits of a float:
    32 passes over the scores, far fewer than sorting.
    """
    flat = score.ravel()
    bits = jnp.finfo(flat.dtype).bits
    unsigned = jnp.dtype(f"uint{bits}")
    raw = jax.lax.bitcast_convert_type(flat, unsigned)
    top = jnp.asarray(1 << (bits - 1), unsigned)
    # Unsigned integers in the order of the floats; negative zero (`top`) ranks with zero.
    rank = jnp.where(jnp.isnan(flat), 0, jnp.where(raw > top, ~raw, raw | top))

    start = (jnp.zeros((), unsigned), rank, jnp.asarray(count), top)
    threshold = jax.lax.fori_loop(0, bits, _refine, start)[0]
    above, equal = rank > threshold, rank == threshold
    short = count - jnp.sum(above)
    chosen = above | (equal & (jnp.cumsum(equal) <= short))
    return chosen.reshape(score.shape) & (jnp.asarray(count) > 0)


def magnitude(score: Array) -> Array:
    """|score|, with -0.5 (below every magnitude) for NaN."""
    size = jnp.abs(score)
    return jnp.where(jnp.isnan(size), jnp.asarray(-0.5, size.dtype), size)


def _refine(i: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
    """Determines one more bit of the threshold of `largest`. Not a closure, which JAX would
    recompile at every call outside of jit."""
    threshold, rank, count, top = state
    candidate = threshold | (top >> jnp.asarray(i, top.dtype))
    enough = jnp.sum(rank >= candidate) >= count
    return jnp.where(enough, candidate, threshold), rank, count, top


def apply(params: Params, masks: Masks) -> Params:
    """θ ⊙ M_θ."""
    check_same_tree(params, masks, "params", "masks")
    return jax.tree.map(lambda p, m: jnp.where(m, p, jnp.zeros((), p.dtype)), params, masks)


def live(masks: Masks, *, sparse: Predicate = is_weight) -> Any:
    """The number of live links in sparse leaves (without biases, as in the paper).

    A Python integer, or i32[] if the masks are traced.
    """
    return sum(count(m) for m in _sparse_leaves(masks, sparse))


def count(mask: Array) -> Any:
    """Live links of one mask: a Python integer, or i32[] if the mask is traced."""
    if isinstance(mask, Tracer):
        return mask.sum(dtype=jnp.int32)
    return int(np.asarray(mask).sum())


def sparsity(masks: Masks, *, sparse: Predicate = is_weight) -> Any:
    """The fraction of absent links over all sparse leaves: a float, or f32[] if traced."""
    total = sum(np.size(m) for m in _sparse_leaves(masks, sparse))
    return 1.0 - live(masks, sparse=sparse) / total if total else 0.0


def connections(mask: Array) -> Array:
    """Live links of each input dimension of one `[in, out]` mask: i32[in]."""
    return mask.sum(axis=-1, dtype=jnp.int32)


def check_sparsity(value: Any) -> Any:
    """Returns `value` as a float; raises unless it is in [0, 1). Traced values pass through."""
    if isinstance(value, Tracer):
        if value.ndim:
            raise ValueError(f"sparsity of shape {value.shape}: give one number, or vmap over it")
        return value
    number = isinstance(value, int | float | np.number | np.ndarray | jax.Array)
    if isinstance(value, bool) or not number or np.ndim(value) or np.iscomplexobj(value):
        raise ValueError(
            f"sparsity {value!r} is not a number: give one in [0, 1), a list with one per layer, a "
            "dict of patterns, or a function"
        )
    if not 0.0 <= float(value) < 1.0:
        raise ValueError(f"sparsity {value!r} is not in [0, 1): 0 is dense, 0.9 keeps a tenth")
    return float(value)


def check_same_tree(a: Params, b: Params, name_a: str, name_b: str) -> None:
    """Raises if two trees differ in structure or in the shape of a leaf."""
    flat_a, tree_a = jax.tree_util.tree_flatten_with_path(a)
    flat_b, tree_b = jax.tree_util.tree_flatten_with_path(b)
    if tree_a != tree_b:
        raise ValueError(
            f"{name_a} and {name_b} must have the same tree structure, got {tree_a} and {tree_b}"
        )
    for (path, x), (_, y) in zip(flat_a, flat_b):
        if np.shape(x) != np.shape(y):
            where = jax.tree_util.keystr(path)
            raise ValueError(
                f"{name_a}{where} has shape {np.shape(x)} but {name_b}{where} {np.shape(y)}"
            )


def _sparse_leaves(masks: Masks, sparse: Predicate) -> list[Array]:
    return [m for path, m in jax.tree_util.tree_flatten_with_path(masks)[0] if sparse(path, m)]
