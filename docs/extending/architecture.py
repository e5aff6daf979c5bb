"""An architecture: an MLP with layer normalization."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import rlx2_jax as rlx2
from rlx2_jax import networks


class NormMLP(networks.Architecture):
    """relu(LayerNorm(W x + b)) in every hidden layer."""

    features: tuple[int, ...]

    defaults: ClassVar = {"hidden": (256, 256)}  # its size settings

    @classmethod
    def build(cls, sizes):
        return cls((*(sizes.hidden or ()), sizes.outputs))

    @nn.compact
    def __call__(self, x):
        *hidden, outputs = self.features
        for size in hidden:
            x = nn.relu(nn.LayerNorm()(networks.Linear(size)(x)))  # Linear layers become sparse
        return networks.Linear(outputs)(x)

    @nn.nowrap
    def steps(self, params, stats=None):
        """The network as operations, for `rlx2 export` (optional)."""
        ops = []
        for i in range(len(self.features) - 1):
            scale, bias = (np.asarray(params[f"LayerNorm_{i}"][k]) for k in ("scale", "bias"))
            ops += [("linear", f"Linear_{i}"), ("layer_norm", scale, bias, 1e-6), ("relu",)]
        return [*ops, ("linear", f"Linear_{len(self.features) - 1}")]


rlx2.register_architecture("norm_mlp", NormMLP)

if __name__ == "__main__":
    lane = rlx2.Lane(actor_sparsity=0.9, critic_sparsity=0.9)
    for execution in ("masked", "compact"):
        fields = {"architecture": "norm_mlp", "hidden": (32,), "execution": execution}
        config = rlx2.Config("td3", 3, 1, **fields)
        agent = rlx2.td3.init(jax.random.key(0), config, lane)
        action = rlx2.td3.mean_action(networks.online(agent.actor), jnp.ones((5, 3)))
        print(execution, action.shape, float(action[0, 0]))
