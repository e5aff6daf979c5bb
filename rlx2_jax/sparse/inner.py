"""The wrapped optimizer's step, without a conditional around it.

On a mask update the optimizer does not step: its state must not change, except for links that
moved. Selecting between the old and the new state after the step would make XLA compute the new
moments twice, once for the step and once for the state, and copy donated buffers. Instead,
`advance` selects inside the update, where each part of the new state is computed, and the step
reads the selected value. On a mask update that value is wrong for the step, but the step is unused.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from rlx2_jax.sparse.leaves import names
from rlx2_jax.types import Array, Params


def owners(inner: Any, params: Params) -> list[int]:
    """For each leaf of an optimizer's state, the index of the parameter it belongs to, or -1.

    A leaf belongs to a parameter if its path ends with the parameter's path and its trailing axes
    have the parameter's shape. The longest matching path wins.
    """
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    numbers = {_parts(path): i for i, (path, _) in enumerate(flat)}
    indices = []
    for path, value in jax.tree_util.tree_flatten_with_path(inner)[0]:
        parts = _parts(path)
        ends = (numbers.get(parts[start:], -1) for start in range(len(parts) + 1))
        indices.append(next((i for i in ends if i >= 0 and _covers(value, flat[i][1])), -1))
    return indices


def _parts(path: jax.tree_util.KeyPath) -> tuple[str, ...]:
    name = names(path)
    return tuple(name.split("/")) if name else ()


def _covers(value: Any, param: Any) -> bool:
    shape = np.shape(param)
    return np.shape(value)[np.ndim(value) - len(shape) :] == shape


def advance(
    update: Callable[[Params, Any, Params], tuple[Params, Any]],
    arguments: tuple[Params, Any, Params],
    replace: Callable[[int, Array], Array],
) -> tuple[Params, Any]:
    """`update(*arguments)`, with leaf i of the new state replaced by `replace(i, leaf)` as soon as
    it is computed."""
    closed, shapes = jax.make_jaxpr(update, return_shape=True)(*arguments)
    jaxpr = closed.jaxpr
    first = len(jax.tree.leaves(shapes[0]))
    state_vars: dict[Any, list[int]] = {}
    for i, var in enumerate(jaxpr.outvars[first:]):
        if not isinstance(var, core.Literal):
            state_vars.setdefault(var, []).append(i)
    values: dict[Any, Array] = {}
    values.update(zip(jaxpr.constvars, closed.consts))
    values.update(zip(jaxpr.invars, jax.tree.leaves(arguments)))
    replaced: dict[int, Array] = {}

    def read(var: Any) -> Any:
        return var.val if isinstance(var, core.Literal) else values[var]

    for eqn in jaxpr.eqns:
        with eqn.ctx.manager:
            parameters = eqn.primitive.get_bind_params(eqn.params)
            out = eqn.primitive.bind(*map(read, eqn.invars), **parameters)
        for var, value in zip(eqn.outvars, out if eqn.primitive.multiple_results else [out]):
            values[var] = value
            if len(state_vars.get(var, ())) == 1:
                (i,) = state_vars[var]
                values[var] = replaced[i] = replace(i, value)
    outputs: list[Any] = [read(var) for var in jaxpr.outvars]
    for i, value in enumerate(outputs[first:]):
        outputs[first + i] = replaced[i] if i in replaced else replace(i, value)
    return jax.tree.unflatten(jax.tree.structure(shapes), outputs)


def initial_like(inner: Any, initial: Any) -> list[Array]:
    """The leaves of the state `initial` in the order of those of `inner`; zeros for leaves that
    `inner` has gained since."""
    known = {names(path): x for path, x in jax.tree_util.tree_flatten_with_path(initial)[0]}
    return [
        jnp.asarray(known[name], x.dtype) if (name := names(path)) in known else jnp.zeros_like(x)
        for path, x in jax.tree_util.tree_flatten_with_path(inner)[0]
    ]


def restored(
    old: Sequence[Array],
    start: Sequence[Array],
    due: Array,
    keep: Callable[[int], Array | None],
) -> Any:
    """`replace` for `advance`: the old state if `due`, with the initial state `start` where links
    do not keep their value.

    `keep(i)`: a mask of the places of state leaf i that keep their value; None keeps all.
    """

    def replace(i: int, new: Array) -> Array:
        return jnp.where(due, reset(old[i], start[i], keep(i)), new)

    return replace


def reset(value: Array, start: Array, keep: Array | None) -> Array:
    """`value`, but `start` where `keep` is false; both may have more leading axes than `keep`."""
    if keep is None:
        return value
    return jnp.where(jnp.broadcast_to(keep, value.shape), value, start)
