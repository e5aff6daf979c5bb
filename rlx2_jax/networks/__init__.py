"""Networks: architectures, policy and value heads, masked and compact execution."""

from rlx2_jax.networks.architectures import ARCHITECTURES, build, register_architecture
from rlx2_jax.networks.base import Architecture, BoundNetwork, Layers, Sizes, init, observe, spec
from rlx2_jax.networks.forms import bind, online, target
from rlx2_jax.networks.heads import (
    LOG_STD_MAX,
    LOG_STD_MIN,
    critic_input,
    gaussian,
    minimum,
    policy,
    q_value,
    q_values,
    squashed_mean,
    squashed_sample,
)
from rlx2_jax.networks.linear import Linear
from rlx2_jax.networks.mlp import MLP
from rlx2_jax.networks.simba import SimBa

__all__ = [
    "ARCHITECTURES",
    "LOG_STD_MAX",
    "LOG_STD_MIN",
    "MLP",
    "Architecture",
    "BoundNetwork",
    "Layers",
    "Linear",
    "SimBa",
    "Sizes",
    "bind",
    "build",
    "critic_input",
    "gaussian",
    "init",
    "minimum",
    "observe",
    "online",
    "policy",
    "q_value",
    "q_values",
    "register_architecture",
    "spec",
    "squashed_mean",
    "squashed_sample",
    "target",
]
