"""From one form of a network to the other.

Both forms hold the same numbers: a network converted and converted back is equal bit for bit.
"""

from rlx2_jax.networks import masked
from rlx2_jax.networks.forms import form_of
from rlx2_jax.types import Masks, Network


def to_masked(network: Network) -> Network:
    """The masked form of a network of either form; without a lane axis."""
    return masked.pack(form_of(network).unpack(network))


def like(network: Network, other: Network) -> Network:
    """A masked `network` in the form of `other`, with the same room for links."""
    return form_of(other).pack(network, getattr(other.masks, "spec", None))


def dense_masks(network: Network) -> Masks:
    """The masks of a network as boolean arrays, `[members, ...]` for ensembles; without a lane
    axis."""
    return form_of(network).dense_masks(network.masks, network.members)
