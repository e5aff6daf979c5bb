"""Masked networks: dense arrays that are zero off a boolean mask.

Used on GPUs and TPUs and for dense networks. Has the same functions as `compact`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rlx2_jax.control_flow import over_members
from rlx2_jax.kernels import adam, dense_mlp, layout
from rlx2_jax.networks import base
from rlx2_jax.networks.evolution import Evolution, Gradient, Update
from rlx2_jax.sparse import rules
from rlx2_jax.sparse.groups import Step
from rlx2_jax.sparse.lane_topology import kernel_leaf
from rlx2_jax.sparse.masks import check_same_tree
from rlx2_jax.types import Array, Masks, Network, Params


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["params", "stats", "key"],
    meta_fields=["members", "module"],
)
@dataclasses.dataclass(frozen=True)
class Bound:
    """A network as a callable. `members`, `module` and `stats` as in `Network`."""

    params: Params
    members: int | None = None
    module: Any = None
    stats: Params | None = None
    key: Array | None = None  # for modules that draw random numbers

    def __call__(self, x: Array) -> Array:
        """`[..., in] -> [..., out]`, or `[members, ..., out]` for an ensemble."""
        if self.members is None:
            return self._apply(jax.tree.map(lambda leaf: leaf[None], self.params), x)[0]
        return self._apply(self.params, x)

    def first(self, x: Array) -> Array:
        """Output of the first member: `[..., out]`."""
        return self._apply(self.params, x, first=1)[0]

    each = __call__

    def seeded(self, key: Array) -> "Bound":
        """The same network with random numbers, for a loss."""
        return dataclasses.replace(self, key=key)

    def _apply(self, params: Params, x: Array, first: int | None = None) -> Array:
        rows = x.reshape(-1, x.shape[-1])
        if base.is_chain(self.module):
            precision = getattr(self.module, "precision", "float32")
            y = dense_mlp.mlp(params, rows, first=first, precision=precision)
        else:
            y = self._modules(params, rows.astype(network_dtype(params)), first)
        return y.reshape(y.shape[0], *x.shape[:-1], y.shape[-1])

    def _modules(self, params: Params, x: Array, first: int | None) -> Array:
        """Applies the module to each member: `[members, batch, out]`."""
        keys = base.member_keys(self.key, self.members)
        one = lambda member, key: base.apply(self.module, member, self.stats, key, x)  # noqa: E731
        return over_members(one, params, keys, members=first or self.members or 1)


def bind(
    params: Params,
    masks: Masks = None,
    members: int | None = None,
    module: Any = None,
    stats: Params | None = None,
) -> Bound:
    """Parameters (trained or target) as a callable."""
    del masks
    return Bound(params, members, module, stats)


def pack(network: Network, spec: Any = None) -> Network:
    """The counterpart of `compact.pack`: the network is already masked."""
    del spec
    return network


def unpack(network: Network) -> Network:
    """The counterpart of `compact.unpack`: the network is already masked."""
    return network


def dense_masks(masks: Masks, members: int | None = None) -> Masks:
    """The masks as boolean arrays."""
    del members
    return masks


def optimizer_masks(network: Network) -> Masks:
    """Masks for the optimizer step, which zeroes everything off the mask."""
    return network.masks


def kernels(tree: Params, members: int | None) -> dict[str, Array]:
    """The sparse leaves of a network's tree, by name."""
    axes = 2 if members is None else 3
    return {name: leaf for name, leaf in layout.flatten(tree).items() if leaf.ndim >= axes}


def dense_gradients(network: Network, loss: Any, grads: Params, rows: int) -> dict[str, Array]:
    """The gradients of the kernels, including absent links; zeros if any is not finite."""
    del loss, rows
    return kernels(adam.guard(grads)[0], network.members)


def polyak(network: Network, tau: Array) -> Network:
    """θ' ← τ θ + (1 - τ) θ', then θ' ← θ' ⊙ M_θ (Algorithm 4, line 23)."""

    def mix(new: Array, old: Array, mask: Array) -> Array:
        t = tau.astype(old.dtype)
        return jnp.where(mask, t * new + (1.0 - t) * old, 0.0)

    target = jax.tree.map(mix, network.params, network.target, network.masks)
    return network._replace(target=target)


def evolve(network: Network, gradient: Gradient, update: Update, evolution: Evolution) -> Network:
    """One mask update by the method of `evolution` (default: Algorithm 1), for each ensemble member
    separately."""
    count, schedule, key = update
    scored = guarded = adam.guard(gradient.grads)[0]
    if gradient.leak is not None:
        scored = jax.tree.map(jnp.add, guarded, gradient.leak)
    check_same_tree(network.params, network.masks, "params", "masks")
    check_same_tree(network.params, scored, "params", "scores")
    method = evolution.build(schedule)
    hessian = None
    if method.hessian:
        hessian = _hessian_product(gradient.at, gradient.loss, guarded)
    members = network.members
    of = functools.partial(kernels, members=members)
    masks, due = of(network.masks), evolution.topology.due(schedule, count)
    leaves = [kernel_leaf(name, x.shape[members is not None :]) for name, x in masks.items()]
    indices = [list(layout.flatten(network.params)).index(leaf.path) for leaf in leaves]
    shapes = [leaf.shape[members is not None :] for leaf in jax.tree.leaves(network.params)]
    uniform = rules.member_uniform(shapes, members or 1, network_dtype(network.params))
    trees = (network.params, guarded, scored, network.moments.mu, network.moments.nu, hessian)
    inputs = [None if tree is None else of(tree) for tree in trees]

    is_dict = lambda x: isinstance(x, dict)  # noqa: E731

    def one(
        member: Array | int, masks: dict[str, Array], inputs: Any, smoothed: Any, signs: Any
    ) -> tuple[list[Array], list[Array]]:
        lists = jax.tree.map(lambda tree: [tree[x.path] for x in leaves], inputs, is_leaf=is_dict)
        weights, grads, scored, mu, nu, product = lists
        step = Step(
            leaves,
            weights,
            grads,
            [masks[x.path] for x in leaves],
            [schedule.links[x.path] for x in leaves] if schedule.links else (),
            [functools.partial(uniform, member, i) for i in indices],
            count,
            key,
            smoothed=smoothed and [smoothed[x.path] for x in leaves],
            signs=[signs[x.path] for x in leaves] if signs else (),
            hessian_gradient=None if product is None else lambda: product,
            scored=scored,
            moments=(mu, nu),
        )
        if method.change is None:  # ζ_0 is statically 0
            return list(step.masks), list(step.masks)
        new, kept = method.change(step)
        if kept is None:
            kept = [a & b for a, b in zip(new, step.masks)]
        if_due = lambda masks: [jnp.where(due, a, b) for a, b in zip(masks, step.masks)]  # noqa: E731
        return if_due(new), if_due(kept)

    arguments = (masks, inputs, network.smoothed, network.signs)
    if members is None:
        new, kept = one(0, *arguments)
    else:
        new, kept = jax.vmap(one)(jnp.arange(members), *arguments)
    inherited = dict(zip(masks, kept))

    def inherit(tree: Params) -> Params:
        flat = layout.flatten(tree)
        flat |= {name: jnp.where(keep, flat[name], 0.0) for name, keep in inherited.items()}
        return layout.unflatten(flat)

    mu, nu, target = network.moments.mu, network.moments.nu, network.target
    if evolution.moments == "zero":
        mu, nu = inherit(mu), inherit(nu)
    if target is not None and evolution.remask_target:
        target = inherit(target)
    return network._replace(
        params=inherit(network.params),
        masks=layout.unflatten(layout.flatten(network.masks) | dict(zip(masks, new))),
        moments=network.moments._replace(mu=mu, nu=nu),
        target=target,
    )


def _hessian_product(
    network: Network, loss: Callable[[Params], tuple[Array, Any]], vector: Params
) -> Params:
    """H v of the loss, forward over reverse, in plain XLA, since the kernels support only first
    derivatives."""
    bound = functools.partial(
        Bound, members=network.members, module=network.module, stats=network.stats
    )
    gradient = jax.grad(lambda params: loss(bound(params))[0])
    with dense_mlp.plain_xla():
        return jax.jvp(gradient, (network.params,), (vector,))[1]


def network_dtype(params: Params) -> jnp.dtype:
    return jax.tree.leaves(params)[0].dtype
