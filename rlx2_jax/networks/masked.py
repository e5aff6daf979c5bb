"""The masked form: dense arrays that are zero off a boolean mask.

The form of GPUs, TPUs and dense networks. Has the same functions as `compact`.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rlx2_jax.kernels import adam, dense_mlp, layout
from rlx2_jax.networks import base
from rlx2_jax.sparse import rules
from rlx2_jax.sparse.topology import Schedule, evolution
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
            y = dense_mlp.mlp(params, rows, first=first)
        else:
            y = self._modules(params, rows.astype(network_dtype(params)), first)
        return y.reshape(y.shape[0], *x.shape[:-1], y.shape[-1])

    def _modules(self, params: Params, x: Array, first: int | None) -> Array:
        """The module applied to each member: `[members, batch, out]`."""
        keys = base.member_keys(self.key, self.members)
        found = []
        for i in range(first or self.members or 1):
            own, key = jax.tree.map(lambda leaf, i=i: leaf[i], (params, keys))
            found.append(base.apply(self.module, own, self.stats, key, x))
        return jnp.stack(found)


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
    """A network in the masked form, in this form."""
    del spec
    return network


def unpack(network: Network) -> Network:
    """A network of this form, in the masked form."""
    return network


def dense_masks(masks: Masks, members: int | None = None) -> Masks:
    """The masks as boolean arrays."""
    del members
    return masks


def optimizer_masks(network: Network) -> Masks:
    """What the optimizer step must zero: everything off the mask."""
    return network.masks


def kernels(tree: Params, members: int | None) -> dict[str, Array]:
    """The leaves of a network's tree that are sparse, by name."""
    axes = 2 if members is None else 3
    return {name: leaf for name, leaf in layout.flatten(tree).items() if leaf.ndim >= axes}


def dense_gradients(network: Network, loss: Any, grads: Params, rows: int) -> dict[str, Array]:
    """The gradients of the kernels, absent links included; zeros where not all are finite."""
    del loss, rows
    return kernels(adam.guard(grads)[0], network.members)


def polyak(network: Network, tau: Array) -> Network:
    """θ' ← τ θ + (1 - τ) θ', then θ' ← θ' ⊙ M_θ (Algorithm 4, line 23)."""

    def mix(new: Array, old: Array, mask: Array) -> Array:
        t = tau.astype(old.dtype)
        return jnp.where(mask, t * new + (1.0 - t) * old, 0.0)

    target = jax.tree.map(mix, network.params, network.target, network.masks)
    return network._replace(target=target)


def evolve(
    network: Network,
    loss: Callable[[Params], tuple[Array, Any]] | None,
    differentiated: Network | None,
    grads: Params,
    count: Array,
    schedule: Schedule,
    key: Array,
    *,
    rows: int = 0,
    scores: Params | None = None,
    leak: Params | None = None,
    grow: Sequence[str],
    drop: Sequence[str],
    moments: str,
    regrow: str,
    remask_target: bool,
) -> Network:
    """One drop-and-grow step (Algorithm 1). The gradient is dense: `loss`, `differentiated` and
    `rows` are not needed.

    Args:
      grads: dense gradient of the loss.
      scores: the dense gradient that growth rules see, when not `grads`.
      leak: added to it.
      moments: `zero` those of links dropped or newly grown, or `keep` all.
      remask_target: put the target under the new mask at once.
      others: as in `optimize.learn`.
    """
    del loss, differentiated, rows
    guarded, _ = adam.guard(grads)
    scored = guarded if scores is None else scores
    if leak is not None:
        scored = jax.tree.map(jnp.add, scored, leak)
    inputs = (network.params, guarded, scored, network.moments.mu, network.moments.nu)
    smoothed = network.smoothed or {}
    shapes = [leaf.shape[network.members is not None :] for leaf in jax.tree.leaves(inputs[0])]
    uniform = rules.member_uniform(shapes, network.members or 1, network_dtype(network.params))

    def one(
        member: Array | int, inputs: Any, masks: Masks, target: Params | None, smoothed: Any
    ) -> Any:
        params, grads, scored, mu, nu = inputs
        grow_scores, keep_scores = rules.tree_scores(
            params,
            grads,
            scored,
            lambda x: rules.select([rules.GROW[r](key, x) for r in grow], schedule.grow),
            lambda x: rules.dense(rules.select([rules.DROP[r](x) for r in drop], schedule.drop)),
            [leaf.ndim >= 2 for leaf in jax.tree.leaves(params)],
            (mu, nu),
            uniform=[functools.partial(uniform, member, i) for i in range(len(shapes))],
            smoothed=[smoothed.get(x) for x in layout.flatten(params)] if smoothed else None,
        )
        new = evolution(
            params,
            masks,
            grow_scores,
            schedule.fraction(count),
            keep_scores=keep_scores,
            regrow=regrow,
        )
        inherit = lambda tree: jax.tree.map(  # noqa: E731
            lambda x, keep: jnp.where(keep, x, 0.0), tree, new.inherited
        )
        if moments == "zero":
            mu, nu = inherit(mu), inherit(nu)
        if target is not None and remask_target:
            target = inherit(target)
        return new.params, new.masks, mu, nu, target

    arguments = (inputs, network.masks, network.target, smoothed)
    if network.members is None:
        params, masks, mu, nu, target = one(0, *arguments)
    else:
        members = jnp.arange(network.members)
        params, masks, mu, nu, target = jax.vmap(one)(members, *arguments)
    state = network.moments._replace(mu=mu, nu=nu)
    return network._replace(params=params, masks=masks, moments=state, target=target)


def network_dtype(params: Params) -> jnp.dtype:
    return jax.tree.leaves(params)[0].dtype
