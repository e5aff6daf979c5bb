"""All architectures by name."""

import functools

from rlx2_jax.networks.base import Architecture, Sizes
from rlx2_jax.networks.mlp import MLP
from rlx2_jax.networks.simba import SimBa

ARCHITECTURES: dict[str, type[Architecture]] = {"mlp": MLP, "simba": SimBa}


def register_architecture(name: str, architecture: type[Architecture]) -> None:
    """Adds an architecture under a name that configurations and `--architecture` can use."""
    if not name.isidentifier():
        raise ValueError(f"architecture name {name!r}: use letters, digits and underscores")
    if ARCHITECTURES.get(name, architecture) is not architecture:
        raise ValueError(f"there is already an architecture {name!r}: choose another name")
    ARCHITECTURES[name] = architecture


@functools.lru_cache(maxsize=256)
def build(name: str, sizes: Sizes) -> Architecture:
    """The module of one network of a configuration."""
    return ARCHITECTURES[name].build(sizes)
