"""Mask updates of `sparsify`: a branch that returns booleans only."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rlx2_jax.control_flow import when
from rlx2_jax.sparse import rules
from rlx2_jax.sparse.groups import Step
from rlx2_jax.sparse.leaves import Leaf
from rlx2_jax.sparse.methods import Method
from rlx2_jax.sparse.options import known
from rlx2_jax.sparse.structure import local, placed_as
from rlx2_jax.types import Array, Masks, Params


class Inputs(NamedTuple):
    """Everything that a mask update may read, besides the weights. Trees, and values of them."""

    method: Method
    leaves: Sequence[Leaf]
    params: Params
    grads: Params
    masks: Masks
    count: Array  # pyright: ignore[reportIncompatibleMethodOverride]
    key: Array  # data of a random key
    method_state: dict[str, Params] | None
    links: Callable[[Sequence[Leaf], Sequence[Array]], Sequence[int | Array]]
    grad_fn: Callable[[Params], Params] | None


def masked(leaves: Sequence[Leaf], masks: Masks, tree: Params) -> Params:
    """Zero off the mask, on sparse leaves."""
    flat, treedef = jax.tree.flatten(tree)
    triples = zip(leaves, jax.tree.leaves(masks), flat)
    return treedef.unflatten(
        [jnp.where(m, x, jnp.zeros_like(x)) if leaf.sparse else x for leaf, m, x in triples]
    )


def change_masks(
    inputs: Inputs, due: Array | bool, weights: Params
) -> tuple[Masks, list[Array | None]]:
    """New masks where a mask update is due, and which places of each leaf keep their value.

    `weights` need not be on the mask: masked inside the branch, they are not computed without it.
    Under vmap, a mask update is computed when it is due in any of the runs.
    """
    masks, treedef = jax.tree.flatten(inputs.masks)
    chosen = [i for i, leaf in enumerate(inputs.leaves) if leaf.sparse]
    old = [masks[i] for i in chosen]

    def change(carry: Any) -> Any:
        now, _ = carry
        new, kept = _changed(inputs, weights, now)
        new = [placed_as(m, like) for m, like in zip(new, now)]
        if kept is None:
            return new, [a & b for a, b in zip(new, now)]
        return new, [placed_as(m, like) for m, like in zip(kept, now)]

    # Nothing outside the branch reads the old masks, so that XLA need not keep a copy of them.
    carry = (old, old)
    new, kept = when(due, change, carry) if not known(due) else change(carry) if due else carry
    keep: list[Array | None] = [None] * len(masks)
    for i, m, k in zip(chosen, new, kept):
        masks[i], keep[i] = m, k
    return treedef.unflatten(masks), keep


def _changed(
    inputs: Inputs, weights: Params, masks: Sequence[Array]
) -> tuple[list[Array], list[Array] | None]:
    method, leaves = inputs.method, inputs.leaves
    chosen = [i for i, leaf in enumerate(leaves) if leaf.sparse]
    pick = lambda tree: [local(x) for x in _pick(tree, chosen)]  # noqa: E731
    now = [local(m) for m in masks]
    params = _pick(inputs.params, chosen)
    uniform = rules.shared_uniform([leaf.shape for leaf in leaves], params[0].dtype)
    own = inputs.method_state or {}
    step = Step(
        leaves=[leaves[i] for i in chosen],
        weights=[jnp.where(m, x, jnp.zeros_like(x)) for m, x in zip(now, pick(weights))],
        grads=pick(inputs.grads),
        masks=now,
        links=inputs.links(leaves, params) if method.begins == "dense" else (),
        uniform=[uniform[i] for i in chosen],
        count=inputs.count,
        key=jax.random.fold_in(jax.random.wrap_key_data(inputs.key), inputs.count),
        smoothed=pick(own["smoothed"]) if method.smoothed else None,
        signs=pick(own["signs"]) if method.signs else (),
    )
    if inputs.grad_fn is not None:
        grad_fn, params, grads = inputs.grad_fn, inputs.params, inputs.grads
        hessian = lambda: pick(jax.jvp(grad_fn, (params,), (grads,))[1])  # noqa: E731
        step = step._replace(hessian_gradient=hessian)
    assert method.change is not None
    return method.change(step)


def init_method_state(
    method: Method, leaves: Sequence[Leaf], params: Params, key: Array
) -> dict[str, Params] | None:
    """What a method keeps of each sparse leaf; scalars stand for the others."""

    def signs(leaf: Leaf, x: Array) -> Array:
        random = jax.random.bernoulli(jax.random.fold_in(key, 1), shape=leaf.shape)
        return placed_as(jnp.where(local(x) == 0, random, local(x) > 0), x)

    kinds = {}
    if method.smoothed:
        kinds["smoothed"] = lambda leaf, x: jnp.zeros_like(x)
    if method.signs:
        kinds["signs"] = signs
    flat, treedef = jax.tree.flatten(params)
    return {
        kind: treedef.unflatten(
            [make(leaf, x) if leaf.sparse else jnp.zeros(()) for leaf, x in zip(leaves, flat)]
        )
        for kind, make in kinds.items()
    } or None


def advance_method_state(method: Method, state: Any, leaves: Sequence[Leaf], grads: Params) -> Any:
    """The state of a method after one more gradient."""
    if not method.smoothed:
        return state
    averages, treedef = jax.tree.flatten(state["smoothed"])
    triples = zip(leaves, averages, jax.tree.leaves(grads))
    new = [rules.smooth(m, g) if leaf.sparse else m for leaf, m, g in triples]
    return {**state, "smoothed": treedef.unflatten(new)}


def _pick(tree: Params, chosen: Sequence[int]) -> list[Array]:
    flat = jax.tree.leaves(tree)
    return [flat[i] for i in chosen]
