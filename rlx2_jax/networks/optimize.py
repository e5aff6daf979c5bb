"""One step of a network: an optimizer step or, when due, a mask update.

All algorithms call `learn` for each of their networks, with its loss. Masked networks have the
dense gradient at every step; compact networks have that of the live links and compute growth scores
only on mask updates.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rlx2_jax.control_flow import decide, when
from rlx2_jax.kernels import adam
from rlx2_jax.networks import convert, masked
from rlx2_jax.networks.base import BoundNetwork
from rlx2_jax.networks.evolution import Evolution, Gradient, Update
from rlx2_jax.networks.forms import bind, form_of
from rlx2_jax.sparse import rules
from rlx2_jax.sparse.lane_topology import RIGL, Topology
from rlx2_jax.types import Array, Masks, Network, Params


def init(
    params: Params,
    masks: Masks,
    *,
    target: Params | None = None,
    grow: Sequence[str] = (),
    topology: Topology = RIGL,
    dense: Params | None = None,
    **fields: Any,
) -> Network:
    """A masked network with fresh moments. `params` and `target` are used unchanged; `fields` are
    `members`, `module` and `stats` of `Network`. `grow` and `topology` are those of its program,
    `dense` the weights before masking."""
    moved = jnp.zeros((), jnp.int32)
    network = Network(params, masks, adam.init(params), target, moved, **fields)
    kernels, traits = masked.kernels(params, network.members), topology.traits
    if traits.smoothed or any(rules.needs_smoothed(rules.GROW[rule]) for rule in grow):
        network = network._replace(smoothed=jax.tree.map(jnp.zeros_like, kernels))
    if traits.signs:
        places = masked.kernels(params if dense is None else dense, network.members)
        network = network._replace(signs=jax.tree.map(lambda x: x > 0, places))
    return network


def learn(
    network: Network,
    loss: Callable[[BoundNetwork], tuple[Array, Any]],
    learning_rate: Array,
    update: Update,
    evolution: Evolution,
    *,
    leak: Params | None = None,
    evolve: bool | None = None,
    active: Array | bool = True,
) -> tuple[Network, Array, Any, Array]:
    """One optimizer step on `loss` or, when due, one mask update, of a masked or compact network.

    Args:
      network: its parameters must be zero off the mask.
      loss, leak: as in `Gradient`.
      evolve: static; whether this is a mask update of any lane, `count % interval == 0`. True and
        False compile only one of the two; None branches on the count.
      active: if False, nothing changes; needs `evolve=False`.

    Returns:
      The network, the loss, `aux`, and whether the gradient was finite. Gradients that are not
      finite are replaced by zeros.
    """
    bound = lambda params: loss(bind(network, params))  # noqa: E731
    (value, aux), grads = jax.value_and_grad(bound, has_aux=True)(network.params)
    network = _smooth(network, loss, grads, evolution.rows, active)
    if evolve is False:
        new, finite = _descend(network, grads, learning_rate, active)
        return new, value, aux, finite
    if active is not True:
        raise ValueError("mask updates cannot be deactivated: `active` needs evolve=False")
    due = evolution.topology.due(update.schedule, update.number)

    def evolved(before: Network) -> Network:
        # `grads` is the gradient at the network before its optimizer step.
        gradient = Gradient(loss, network if evolution.after else before, grads, leak)
        new = form_of(network).evolve(before, gradient, update, evolution)
        if before.moved is None:
            return new
        return new._replace(moved=jnp.where(due, _moved(before, new), before.moved))

    # Unless `after`, the mask update runs before the step that it replaces, so that neither needs
    # the network from before the other, and both can work in place.
    decided = functools.partial(_decide, evolution, evolve, update.number, evolved)
    if evolution.after:
        stepped, finite = _descend(network, grads, learning_rate, True)
        return decided(stepped), value, aux, finite
    new, finite = _descend(decided(network), grads, learning_rate, ~due)
    return new, value, aux, finite


def _decide(
    evolution: Evolution,
    due: bool | None,
    count: Array,
    change: Callable[[Network], Network],
    network: Network,
) -> Network:
    """`change(network)` if a mask update of any lane is due. `due`: as `evolve` in `learn`."""
    at = evolution.topology.traits.at
    if due is None and at is not None:
        return when(count == at, change, network)
    return decide(due, evolution.interval, count, change, network)


def _descend(
    network: Network, grads: Params, learning_rate: Array, active: Array | bool
) -> tuple[Network, Array]:
    """An optimizer step if `active`; returns the network and whether `grads` were finite."""
    masks = form_of(network).optimizer_masks(network)
    params, moments, finite = adam.guarded_step(
        network.params, network.moments, grads, learning_rate, masks, active
    )
    return network._replace(params=params, moments=moments), finite


def _smooth(network: Network, loss: Any, grads: Params, rows: int, active: Array | bool) -> Network:
    """Updates `network.smoothed`, if it has one, with a new gradient."""
    if network.smoothed is None:
        return network
    dense = form_of(network).dense_gradients(network, loss, grads, rows)
    new = jax.tree.map(rules.smooth, network.smoothed, dense)
    if active is not True:
        new = jax.tree.map(lambda a, b: jnp.where(active, a, b), new, network.smoothed)
    return network._replace(smoothed=new)


def _moved(before: Network, after: Network) -> Array:
    """The number of links that are live only after the mask update: i32[]."""
    pairs = zip(*(jax.tree.leaves(convert.dense_masks(network)) for network in (after, before)))
    return jnp.stack([jnp.sum(a & ~b, dtype=jnp.int32) for a, b in pairs]).sum(dtype=jnp.int32)


def polyak(network: Network, tau: Array, active: Array | bool = True) -> Network:
    """θ' ← τ θ + (1 - τ) θ', masked (Algorithm 4, line 23), if `active`."""
    new = form_of(network).polyak(network, tau)
    if active is True:
        return new
    target = jax.tree.map(lambda a, b: jnp.where(active, a, b), new.target, network.target)
    return network._replace(target=target)
