"""Adam (Kingma and Ba, 2015) on all arrays of a network at once, guarded against non-finite grads.

    m ← β₁ m + (1 - β₁) g,  v ← β₂ v + (1 - β₂) g²,  θ ← θ - λ m̂ / (√v̂ + ε)

The state is optax's. On a CPU with the kernel library the whole step, including the guard and the
masks, is one in-place call; elsewhere it is optax's Adam.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rlx2_jax.kernels import native
from rlx2_jax.types import Array, Masks, Params

B1, B2, EPS = 0.9, 0.999, 1e-8
_adam = optax.scale_by_adam(B1, B2, EPS)
init: Callable[[Params], Any] = _adam.init
update: Callable[[Params, Any], tuple[Any, Any]] = _adam.update
# Below this number of parameters a kernel call costs more than it saves.
_LEAST_SIZE = 1_000


def guarded_step(
    params: Params,
    moments: Any,
    grads: Params,
    learning_rate: Array,
    masks: Masks | None = None,
    active: Array | bool = True,
) -> tuple[Params, Any, Array]:
    """One step if `active`; returns parameters, moments and whether `grads` were finite: bool[].

    If any gradient is not finite, all are replaced by zeros. With `masks`, gradients and new
    parameters are zero off the mask.
    """
    alike = {leaf.dtype for leaf in jax.tree.leaves((params, grads, moments.mu, moments.nu))}
    args = (params, moments, grads, learning_rate, masks, jnp.asarray(active))
    if (
        sum(leaf.size for leaf in jax.tree.leaves(params)) < _LEAST_SIZE
        or alike not in ({jnp.dtype("float32")}, {jnp.dtype("float64")})
        or native.execution() != "native"
    ):
        return _plain(*args)
    return jax.lax.platform_dependent(*args, cpu=_kernel, default=_plain)


def _plain(params, moments, grads, learning_rate, masks, active):
    grads, finite = guard(grads)
    if masks is not None:
        grads = jax.tree.map(lambda g, m: jnp.where(m, g, 0.0), grads, masks)
    updates, new_moments = update(grads, moments)
    new = jax.tree.map(lambda p, u: p - learning_rate.astype(p.dtype) * u, params, updates)
    if masks is not None:
        new = jax.tree.map(lambda p, m: jnp.where(m, p, 0.0), new, masks)
    new, new_moments = jax.tree.map(
        lambda a, b: jnp.where(active, a, b), (new, new_moments), (params, moments)
    )
    return new, new_moments, finite


def _kernel(params, moments, grads, learning_rate, masks, active):
    leaves, treedef = jax.tree.flatten(params)
    dtype = leaves[0].dtype
    trees = [params, moments.mu, moments.nu, grads, *([] if masks is None else [masks])]
    operands = [leaf for group in zip(*map(jax.tree.leaves, trees)) for leaf in group]
    count = optax.safe_increment(moments.count)
    scales = [1.0 / (1.0 - jnp.asarray(b, dtype) ** count) for b in (B1, B2)]
    scalars = jnp.stack([learning_rate.astype(dtype), *scales, active.astype(dtype)])
    out = [jax.ShapeDtypeStruct((), jnp.bool_)]
    out += [jax.ShapeDtypeStruct(leaf.shape, dtype) for leaf in leaves for _ in range(3)]
    width = len(trees)
    aliases = {1 + i * width + j: 1 + 3 * i + j for i in range(len(leaves)) for j in range(3)}
    call = jax.ffi.ffi_call(
        "rlx2_adam", out, vmap_method="broadcast_all", input_output_aliases=aliases
    )
    options = {"masked": masks is not None, "b1": B1, "b2": B2, "eps": EPS}
    finite, *new = call(
        scalars, *operands, **{k: v if k == "masked" else np.float64(v) for k, v in options.items()}
    )
    params, mu, nu = (jax.tree.unflatten(treedef, new[j::3]) for j in range(3))
    moments = moments._replace(count=jnp.where(active, count, moments.count), mu=mu, nu=nu)
    return params, moments, finite


def guard(grads: Params) -> tuple[Params, Array]:
    """`grads`, or zeros if any of them is not finite, and whether all were finite: bool[].

    This keeps non-finite numbers out of networks; the caller decides how to treat the lane.
    """
    finite = jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()
    return jax.tree.map(lambda g: jnp.where(finite, g, 0.0), grads), finite
