"""Mask updates of `sparsify`: a branch that outputs only one byte per place.

One array of codes (`SparsifyState`) encodes the masks and the links that keep their value. A rarely
taken branch changes it in place, so a step without a mask update copies nothing and needs no extra
memory.
"""

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
from rlx2_jax.types import Array, Params


class Inputs(NamedTuple):
    """Everything that a mask update may read, except the weights."""

    method: Method
    leaves: Sequence[Leaf]
    params: Params
    grads: Params
    codes: Params
    count: Array  # pyright: ignore[reportIncompatibleMethodOverride]
    key: Array  # data of a random key
    method_state: dict[str, Params] | None
    links: Callable[[Sequence[Leaf], Sequence[Array]], Sequence[int | Array]]
    grad_fn: Callable[[Params], Params] | None


def masked(leaves: Sequence[Leaf], codes: Params, tree: Params) -> Params:
    """`tree` with sparse leaves zeroed off the mask."""
    flat, treedef = jax.tree.flatten(tree)
    triples = zip(leaves, jax.tree.leaves(codes), flat)
    return treedef.unflatten(
        [jnp.where(c > 0, x, jnp.zeros_like(x)) if leaf.sparse else x for leaf, c, x in triples]
    )


def kept_places(leaves: Sequence[Leaf], codes: Params, due: Array | bool) -> list[Array | None]:
    """The places of each sparse leaf that keep their value in this update: code 1, and also code 2
    if no mask update is due. A single byte comparison, which XLA vectorizes."""
    kinds = jnp.where(due, jnp.uint8(1), jnp.uint8(2))
    flat = zip(leaves, jax.tree.leaves(codes))
    return [c - jnp.uint8(1) < kinds if leaf.sparse else None for leaf, c in flat]


def change_codes(inputs: Inputs, due: Array | bool, weights: Params) -> Params:
    """New codes if a mask update is due, else the old ones.

    `weights` may be nonzero off the mask: the branch masks them, so that it costs nothing when not
    taken. Under vmap, a mask update is computed if it is due in any of the runs.
    """
    codes, treedef = jax.tree.flatten(inputs.codes)
    chosen = [i for i, leaf in enumerate(inputs.leaves) if leaf.sparse]

    def change(now: list[Array]) -> list[Array]:
        before = [local(code > 0) for code in now]
        new, kept = _changed(inputs, weights, before)
        kept = [a & b for a, b in zip(new, before)] if kept is None else kept
        changed = [jnp.where(k, 1, jnp.where(m, 2, 0)) for m, k in zip(new, kept)]
        return [placed_as(c.astype(jnp.uint8), like) for c, like in zip(changed, now)]

    now = [codes[i] for i in chosen]
    after = when(due, change, now) if not known(due) else change(now) if due else now
    for i, code in zip(chosen, after):
        codes[i] = code
    return treedef.unflatten(codes)


def _changed(
    inputs: Inputs, weights: Params, masks: Sequence[Array]
) -> tuple[list[Array], list[Array] | None]:
    method, leaves = inputs.method, inputs.leaves
    chosen = [i for i, leaf in enumerate(leaves) if leaf.sparse]
    pick = lambda tree: [local(x) for x in _pick(tree, chosen)]  # noqa: E731
    params = _pick(inputs.params, chosen)
    uniform = rules.shared_uniform([leaf.shape for leaf in leaves], params[0].dtype)
    state = inputs.method_state or {}
    step = Step(
        leaves=[leaves[i] for i in chosen],
        weights=[jnp.where(m, x, jnp.zeros_like(x)) for m, x in zip(masks, pick(weights))],
        grads=pick(inputs.grads),
        masks=masks,
        links=inputs.links(leaves, params) if method.begins == "dense" else (),
        uniform=[uniform[i] for i in chosen],
        count=inputs.count,
        key=jax.random.fold_in(jax.random.wrap_key_data(inputs.key), inputs.count),
        smoothed=pick(state["smoothed"]) if method.smoothed else None,
        signs=pick(state["signs"]) if method.signs else (),
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
    """A method's state for each sparse leaf; placeholder scalars for the others."""

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
    """Updates a method's state with a new gradient."""
    if not method.smoothed:
        return state
    averages, treedef = jax.tree.flatten(state["smoothed"])
    triples = zip(leaves, averages, jax.tree.leaves(grads))
    new = [rules.smooth(m, g) if leaf.sparse else m for leaf, m, g in triples]
    return {**state, "smoothed": treedef.unflatten(new)}


def _pick(tree: Params, chosen: Sequence[int]) -> list[Array]:
    flat = jax.tree.leaves(tree)
    return [flat[i] for i in chosen]
