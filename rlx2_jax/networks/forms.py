"""The two representations of networks, by name. Both modules have the same functions:

masked:   dense arrays and boolean masks                         (GPU, TPU, dense networks)
compact:  one vector over the live links and their `Index`       (CPU, sparse networks)
"""

from types import ModuleType

from rlx2_jax.networks import compact, masked
from rlx2_jax.networks.base import BoundNetwork
from rlx2_jax.types import Network, Params

FORMS: dict[str, ModuleType] = {"masked": masked, "compact": compact}


def form_of(network: Network) -> ModuleType:
    """The module (`masked` or `compact`) of a network."""
    return FORMS[network.form]


def online(network: Network) -> BoundNetwork:
    """The trained parameters θ as a callable."""
    return bind(network, network.params)


def target(network: Network) -> BoundNetwork:
    """The target parameters θ' as a callable."""
    return bind(network, network.target)


def bind(network: Network, params: Params) -> BoundNetwork:
    """Given parameters of a network as a callable."""
    return form_of(network).bind(
        params, network.masks, network.members, network.module, network.stats
    )
