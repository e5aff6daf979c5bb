"""The two forms of a network, and the way from one to the other.

    masked:   dense pytrees and boolean masks                        (GPU, TPU, dense networks)
    compact:  one vector over the live links and their `Index`       (CPU, sparse networks)

Both hold the same numbers: a network converted and converted back is equal bit for bit.
"""

from typing import Any

import jax
import jax.numpy as jnp

from rlx2_jax import compact
from rlx2_jax.networks import TWINS
from rlx2_jax.types import Masks, Network, Params


def is_compact(network: Network) -> bool:
    """Whether a network is held as its live links only."""
    return isinstance(network.masks, compact.Index)


def to_compact(network: Network, spec: compact.Spec) -> Network:
    """A masked network, or twins, as live links; what lies off the mask is dropped.

    `spec` is static, so that this can be traced; it must have room for all live links.
    """

    def convert(layers: Params) -> compact.Compact:
        if TWINS[0] not in layers:
            return compact.from_masked(layers, network.masks, spec)
        both = [compact.from_masked(layers[twin], network.masks[twin], spec) for twin in TWINS]
        return jax.tree.map(lambda *x: jnp.stack(x), *both)

    mu, nu = convert(network.moments.mu).flat, convert(network.moments.nu).flat
    target = None if network.target is None else convert(network.target).flat
    net = convert(network.params)
    moments = network.moments._replace(mu=mu, nu=nu)
    return network._replace(params=net.flat, masks=net.index, moments=moments, target=target)


def to_masked(network: Network) -> Network:
    """The masked form of a network, or of twins, of either form; without a lane axis."""
    index = network.masks
    if not isinstance(index, compact.Index):
        return network

    def dense(flat: Any) -> Params:
        if flat.ndim == 2:
            return {name: dense_layers(flat[i], _twin(index, i)) for i, name in enumerate(TWINS)}
        return dense_layers(flat, index)

    moments = network.moments._replace(mu=dense(network.moments.mu), nu=dense(network.moments.nu))
    target = None if network.target is None else dense(network.target)
    params, masks = dense(network.params), dense_masks(index)
    return network._replace(params=params, masks=masks, moments=moments, target=target)


def dense_layers(flat: Any, index: compact.Index) -> Params:
    """A vector over the live links as dense layers, zero off the mask."""
    return compact.to_masked(compact.Compact(flat, index))[0]


def dense_masks(masks: Masks | compact.Index) -> Masks:
    """The masks of a network, or of twins, as boolean arrays; without a lane axis."""
    if not isinstance(masks, compact.Index):
        return masks
    if masks.rowptr.ndim == 2:
        return {name: dense_masks(_twin(masks, i)) for i, name in enumerate(TWINS)}
    zeros = jnp.zeros(masks.spec.parameters)
    return compact.to_masked(compact.Compact(zeros, masks))[1]


def _twin(index: compact.Index, i: int) -> compact.Index:
    return jax.tree.map(lambda leaf: leaf[i], index)
