"""Mask updates of `sparsify`: a branch that returns one byte per place, and nothing else.

Masks and the links that keep their value are one array of codes (`SparsifyState`), changed in place
by a branch that is rarely taken: a step without a mask update copies nothing and needs no memory
besides its arguments and results.
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
    """Everything that a mask update may read, besides the weights. Trees, and values of them."""

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
    """Zero off the mask, on sparse leaves."""
    flat, treedef = jax.tree.flatten(tree)
    triples = zip(leaves, jax.tree.leaves(codes), flat)
    return treedef.unflatten(
        [jnp.where(c > 0, x, jnp.zeros_like(x)) if leaf.sparse else x for leaf, c, x in triples]
    )


def kept_places(leaves: Sequence[Leaf], codes: Params, due: Array | bool) -> list[Array | None]:
    """Which places of each sparse leaf keep their value in this update: code 1, and code 2 as well
    where no mask update is due. One comparison of bytes, which XLA vectorises."""
    kinds = jnp.where(due, jnp.uint8(1), jnp.uint8(2))
    flat = zip(leaves, jax.tree.leaves(codes))
    return [c - jnp.uint8(1) < kinds if leaf.sparse else None for leaf, c in flat]


def change_codes(inputs: Inputs, due: Array | bool, weights: Params) -> Params:
    """New codes where a mask update is due.

    `weights` need not be on the mask: masked inside the branch, they are not computed without it.
    Under vmap, a mask update is computed when it is due in any of the runs.
    """
    codes, treedef = jax.tree.flatten(inputs.codes)
    chosen = [i for i, leaf in enumerate(inputs.leaves) if leaf.sparse]

    def change(now: list[Array]) -> list[Array]:
        before = [local(code > 0) for code in now]
        new, kept = _changed(inputs, weights, before)
        kept = [a & b for a, b in zip(new, before)] if kept is None else kept
        found = [jnp.where(k, 1, jnp.where(m, 2, 0)) for m, k in zip(new, kept)]
        return [placed_as(c.astype(jnp.uint8), like) for c, like in zip(found, now)]

    now = [codes[i] for i in chosen]
    found = when(due, change, now) if not known(due) else change(now) if due else now
    for i, code in zip(chosen, found):
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
    own = inputs.method_state or {}
    step = Step(
        leaves=[leaves[i] for i in chosen],
        weights=[jnp.where(m, x, jnp.zeros_like(x)) for m, x in zip(masks, pick(weights))],
        grads=pick(inputs.grads),
        masks=masks,
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
