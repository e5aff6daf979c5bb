"""Networks: multilayer perceptrons, policy and value heads, and their two execution forms."""

from rlx2_jax.networks.forms import bind, lagged, online
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
from rlx2_jax.networks.mlp import MLP, init

__all__ = [
    "LOG_STD_MAX",
    "LOG_STD_MIN",
    "MLP",
    "bind",
    "critic_input",
    "gaussian",
    "init",
    "lagged",
    "minimum",
    "online",
    "policy",
    "q_value",
    "q_values",
    "squashed_mean",
    "squashed_sample",
]
