"""Sparse training of any network, as an optax transformation around its optimizer.

tx = sparsify(optax.adam(1e-3), 0.9, interval=100, t_end=10_000)
state = tx.init(params)
params = masks.apply(params, get_masks(state))  # or leave it to the first update
...
updates, state = tx.update(grads, state, params)  # grads: dense, as jax.grad gives them
params = optax.apply_updates(params, updates)  # exactly zero off the mask
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rlx2_jax.sparse import masks as masks_lib
from rlx2_jax.sparse import rules
from rlx2_jax.sparse.masks import Predicate, is_weight
from rlx2_jax.sparse.topology import REGROW, evolution, update_fraction
from rlx2_jax.types import Array, Masks, Params

# The growth rule of each method; None never evolves.
METHODS: dict[str, str | None] = {
    "rigl": "gradient",
    "set": "random",
    "ss": None,
    "static": None,  # another name of ss
    "dense": None,
}


class SparsifyState(NamedTuple):
    """To keep mask updates in a real branch, vmap with `SparsifyState(0, 0, None, 0)` as the
    state's axes: the count is not of a lane."""

    inner: Any  # of the wrapped optimizer
    masks: Masks
    count: Array  # pyright: ignore[reportIncompatibleMethodOverride]  # i32[], updates so far
    key: Array


def sparsify(
    tx: optax.GradientTransformation,
    sparsity: float | Sequence[float],
    *,
    method: str = "rigl",
    grow: str | rules.GrowRule | None = None,
    drop: str | rules.DropRule = "magnitude",
    interval: int | None = None,
    zeta0: float = 0.5,
    t_end: int | None = None,
    distribution: str = "erdos_renyi",
    init: str = "random",
    seed: int | Array = 0,
    regrow: str = "keep",
    moments: str = "zero",
    mask_step: str = "skip",
    sparse: Predicate = is_weight,
) -> optax.GradientTransformationExtraArgs:
    """Trains sparse with `tx`: its updates on live links, Algorithm 1 every `interval` updates.

    After `optax.apply_updates` the parameters are exactly on the mask, also when they were dense
    before the first update. `tx` sees masked gradients and parameters.

    Args:
      tx: a complete optimizer, learning rate included; its updates are applied as they are.
      sparsity: of all sparse leaves together, or one value for each. Dense networks ignore it.
      method: `rigl` grows by |gradient|, `set` at random; `ss` (or `static`) keeps its first
        mask; `dense` has all links.
      grow: another growth rule for `rigl` and `set`: a name of `rules.GROW`, or a function.
      drop: a name of `rules.DROP`, or a function. Rules see no moments here.
      interval, t_end: Δ_m and T_end in updates; rigl and set need both.
      zeta0: ζ_0, the first share of links to move.
      distribution, init, sparse: as in `masks.init`.
      seed: a whole number or a key (possibly traced); decides first masks and random growth.
      regrow: as in `topology.evolve`.
      moments: `zero` what `tx` keeps of links dropped or newly grown, or `keep` it. State that
        is not shaped as the parameters (Adafactor's) is always kept.
      mask_step: `skip` the optimizer's step on a mask update, or evolve `after` it.

    >>> import jax, jax.numpy as jnp, optax
    >>> import rlx2_jax as rlx2
    >>> params = {"kernel": jnp.ones((20, 10)), "bias": jnp.zeros(10)}
    >>> tx = rlx2.sparsify(optax.adam(1e-3), 0.9, interval=100, t_end=10_000)
    >>> state = tx.init(params)
    >>> updates, state = tx.update(jax.tree.map(jnp.ones_like, params), state, params)
    >>> params = optax.apply_updates(params, updates)
    >>> int((params["kernel"] != 0).sum())
    20
    """
    _choose("method", method, tuple(METHODS))
    interval, t_end = (_whole(n, v, method) for n, v in (("interval", interval), ("t_end", t_end)))
    if not 0.0 <= zeta0 <= 1.0:
        raise ValueError(f"zeta0={zeta0}: use a share in [0, 1]")
    _choose("distribution", distribution, masks_lib.DISTRIBUTIONS)
    _choose("init", init, masks_lib.INITS)
    _choose("regrow", regrow, REGROW)
    _choose("moments", moments, ("zero", "keep"))
    _choose("mask_step", mask_step, ("skip", "after"))
    for value in sparsity if isinstance(sparsity, Sequence) else (sparsity,):
        masks_lib.check_sparsity(value)
    if not (hasattr(tx, "init") and hasattr(tx, "update")):
        raise ValueError(f"tx={tx!r} is no optax transformation: give one, as optax.adam(1e-3)")
    inner_tx = optax.with_extra_args_support(tx)
    grow_by = _rule("grow", grow or METHODS[method], rules.GROW)
    drop_by = _rule("drop", drop, rules.DROP)
    if METHODS[method] is None and grow is not None:
        raise ValueError(f"grow={grow!r}: {method!r} keeps its links; use method='rigl'")

    def init_fn(params: Params) -> SparsifyState:
        key = seed if isinstance(seed, jax.Array) else jax.random.key(seed)
        masks = params  # optax.tree.map_params initialises with a stand-in that has no leaves
        if jax.tree.leaves(params):
            masks = masks_lib.init(
                jax.random.fold_in(key, 0),
                params,
                0.0 if method == "dense" else sparsity,
                distribution=distribution,
                init=init,
                sparse=sparse,
            )
        inner = inner_tx.init(masks_lib.apply(params, masks))
        return SparsifyState(inner, masks, jnp.zeros((), jnp.int32), key)

    def update_fn(
        updates: Params, state: Any, params: Params | None = None, **extra: Any
    ) -> tuple[Params, SparsifyState]:
        if params is None:
            raise ValueError("sparsify needs the parameters: call update(grads, state, params)")
        masks_lib.check_same_tree(params, state.masks, "params", "masks")
        masks_lib.check_same_tree(params, updates, "params", "grads")
        current = masks_lib.apply(params, state.masks)
        count = jnp.asarray(optax.safe_increment(state.count))

        def optimizer_step() -> tuple[Params, Any, Masks]:
            masked = masks_lib.apply(updates, state.masks)
            step, inner = inner_tx.update(masked, state.inner, current, **extra)
            return _onto(state.masks, step, params), inner, state.masks

        def mask_update(grow_by: rules.GrowRule) -> tuple[Params, Any, Masks]:
            if mask_step == "after":
                step, inner, _ = optimizer_step()
                before = optax.apply_updates(params, step)
            else:
                shapes = jax.eval_shape(optimizer_step)[0]
                step = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
                inner, before = state.inner, current
            key = jax.random.fold_in(state.key, count)
            flat = jax.tree_util.tree_flatten_with_path(params)[0]
            scores = rules.tree_scores(
                before,
                updates,
                updates,
                partial(grow_by, key),
                drop_by,
                [sparse(path, leaf) for path, leaf in flat],
            )
            fraction = update_fraction(count, zeta0, t_end)
            new = evolution(
                before,
                state.masks,
                scores[0],
                fraction,
                keep_scores=scores[1],
                regrow=regrow,
                sparse=sparse,
            )
            if moments == "zero":
                inner = optax.tree.map_params(
                    inner_tx, _inherit, inner, new.inherited, is_leaf=_is_absent
                )
            return _onto(new.inherited, step, params), inner, new.masks

        if grow_by is None or zeta0 == 0:
            step, inner, masks = optimizer_step()
        else:
            due = (count % interval == 0) & (count < t_end)
            step, inner, masks = jax.lax.cond(due, partial(mask_update, grow_by), optimizer_step)
        return step, SparsifyState(inner, masks, count, state.key)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def get_masks(state: Any) -> Masks:
    """The masks in an optimizer's state, wherever `sparsify` stands in a chain."""
    nodes = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, SparsifyState))
    found = [node.masks for node in nodes if isinstance(node, SparsifyState)]
    if len(found) != 1:
        raise ValueError(f"the state holds {len(found)} states of sparsify, not one")
    return found[0]


def _onto(keep: Masks, step: Params, params: Params) -> Params:
    """`step` where links carry their value over; elsewhere what takes them exactly to zero."""
    return jax.tree.map(lambda m, u, p: jnp.where(m, u, -p), keep, step, params)


def _is_absent(node: Any) -> bool:
    """Whether optax.masked or optax.multi_transform left this parameter out."""
    return isinstance(node, optax.MaskedNode)


def _inherit(moment: Any, keep: Array) -> Any:
    if _is_absent(moment) or moment.shape != keep.shape:
        return moment
    return jnp.where(keep, moment, jnp.zeros_like(moment))


def _rule(name: str, rule: Any, table: dict[str, Any]) -> Any:
    """A rule by name, or the function itself."""
    if rule is None or callable(rule):
        return rule
    _choose(name, rule, tuple(table))
    return table[rule]


def _choose(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r}: use one of {tuple(allowed)}")


def _whole(name: str, value: int | None, method: str) -> int:
    if value is None and METHODS[method] is None:
        return 1  # of no effect
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name}={value!r}: give {method!r} a whole number of at least 1")
    return int(value)
