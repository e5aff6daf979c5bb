"""An algorithm: TD3 with clipped rewards.

`rlx2_jax/agents/droq.py` is a larger example: a different critic architecture, dropout in losses,
and a different actor objective.
"""

import jax.numpy as jnp

import rlx2_jax as rlx2
from rlx2_jax import agents
from rlx2_jax.algorithms import NETWORK_USE


def update(state, batch, *args, **options):
    """`td3.update` with rewards clipped to [-1, 1]."""
    return rlx2.td3.update(
        state, batch._replace(reward=jnp.clip(batch.reward, -1, 1)), *args, **options
    )


clipped = agents.Algorithm(
    name="td3_clipped",
    networks=NETWORK_USE["td3"],  # the same use of networks
    init=rlx2.td3.init,
    act=rlx2.td3.act,
    update=update,
    mean_action=rlx2.td3.mean_action,
)
rlx2.register_algorithm(clipped, like="td3")  # inherits TD3's defaults

if __name__ == "__main__":
    config = rlx2.Config("td3_clipped", obs_dim=3, action_dim=1)
    print(config.algo, config.policy_delay, config.actor_layers)
