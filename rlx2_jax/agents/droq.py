"""DroQ (Hiraoka et al., "Dropout Q-Functions for Doubly Efficient Reinforcement Learning", 2022).

SAC with many critic updates per environment step. Dropout and layer normalization in every hidden
layer of the critics replace REDQ's large ensemble. Dropout is active in losses and targets, and the
actor maximizes the mean of the critics instead of their minimum.

    rlx2 train --algo=droq --utd=20 --policy_delay=20        # the paper's setting
"""

from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp

from rlx2_jax.agents import sac
from rlx2_jax.agents.algorithm import Algorithm
from rlx2_jax.algorithms import NETWORK_USE
from rlx2_jax.networks import Architecture, Linear, Sizes, register_architecture
from rlx2_jax.types import Array

RATE = 0.01  # of dropout


class DroQCritic(Architecture):
    """Hidden layers relu(LayerNorm(dropout(W x + b))), then a linear layer.

    Attributes:
      features: outputs of each layer.
      scheme: weight initialization, see `Linear`.
      dtype: of the parameters.
      precision: of matrix products.
    """

    features: tuple[int, ...]
    scheme: str = "orthogonal"
    dtype: str = "float32"
    precision: str = "float32"

    defaults: ClassVar = {"hidden": (256, 256)}

    @classmethod
    def build(cls, sizes: Sizes) -> "DroQCritic":
        if sizes.hidden is None:
            raise ValueError("DroQ's critics are sized by hidden: use architecture='mlp'")
        features = (*sizes.hidden, sizes.outputs)
        return cls(features, sizes.scheme, sizes.dtype, sizes.precision)

    @nn.compact
    def __call__(self, x: Array) -> Array:
        *hidden, outputs = self.features
        for size in hidden:
            x = Linear(size, self.scheme, self.dtype, self.precision)(x)
            # Deterministic without a key (evaluation, value error).
            x = nn.Dropout(RATE, deterministic=not self.has_rng("dropout"))(x)
            x = nn.relu(nn.LayerNorm(param_dtype=jnp.dtype(self.dtype))(x))
        return Linear(outputs, self.scheme, self.dtype, self.precision)(x)


register_architecture("droq", DroQCritic)
_USE = NETWORK_USE["sac"]._replace(critic="droq", maximizes_mean=True)
ALGORITHM = Algorithm("droq", _USE, sac.init, sac.act, sac.update, sac.mean_action)
