"""Converts networks between masked and compact. Round trips are exact, bit for bit."""

from rlx2_jax.networks import masked
from rlx2_jax.networks.forms import form_of
from rlx2_jax.types import Masks, Network


def to_masked(network: Network) -> Network:
    """A network, masked or compact, as a masked one; without a lane axis."""
    return masked.pack(form_of(network).unpack(network))


def like(network: Network, other: Network) -> Network:
    """Converts a masked `network` to the form of `other`, with the same room for links."""
    return form_of(other).pack(network, getattr(other.masks, "spec", None))


def dense_masks(network: Network) -> Masks:
    """The masks of a network as boolean arrays, `[members, ...]` for ensembles; without a lane
    axis."""
    return form_of(network).dense_masks(network.masks, network.members)
