"""Behaviour cloning (section 5.3): a sparse actor that imitates a trained expert.

`init`, `act` and `update` of one lane. The actor learns offline from a fixed replay of transitions
with the expert's noise-free actions, without a critic or target networks. Masks evolve as in the
other algorithms.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlx2_jax import networks
from rlx2_jax.agents.algorithm import Algorithm
from rlx2_jax.agents.common import BY_COUNT, Due, evolution_of, make_actor
from rlx2_jax.algorithms import NETWORK_USE
from rlx2_jax.config import Config, Hyper, Lane
from rlx2_jax.networks import BoundNetwork, optimize
from rlx2_jax.networks.evolution import Update
from rlx2_jax.types import Array, Batch, Network


class State(NamedTuple):
    """The state of behaviour cloning.

    Attributes:
      actor: π_φ with its mask and moments; it has no target.
    """

    actor: Network


def init(key: Array, config: Config, lane: Lane) -> State:
    """A sparse actor, with the same weights and mask as in `td3.init` with the same key."""
    actor_key, _ = jax.random.split(key)
    return State(make_actor(actor_key, config, lane, target=False))


def mean_action(actor: BoundNetwork, obs: Array) -> Array:
    """The policy π(s; φ): `[..., obs] -> [..., act]`."""
    return networks.policy(actor, obs)


def policy(state: State, obs: Array) -> Array:
    """The noise-free action of an agent, as in evaluations: `[..., obs] -> [..., act]`."""
    return mean_action(networks.online(state.actor), obs)


def act(state: State, obs: Array, key: Array, config: Config, hyper: Hyper) -> tuple[Array, Array]:
    """π(s; φ) as both the action and its mean, since a clone does not explore: `[..., act]`."""
    del key, config, hyper
    mean = mean_action(networks.online(state.actor), obs)
    return mean, mean


def update(
    state: State,
    batch: Batch,
    key: Array,
    step: Array,
    count: Array,
    config: Config,
    hyper: Hyper,
    *,
    due: Due = BY_COUNT,
    active: Array | bool = True,
) -> tuple[State, dict[str, Array]]:
    """One step on L(φ) = 1/B Σ ‖π(s_i; φ) - a_i‖². Arguments as in `td3.update`; `key` is for
    random growth. Every update updates the actor."""
    del step

    def loss(actor: BoundNetwork) -> tuple[Array, None]:
        gap = mean_action(actor, batch.obs) - batch.action
        return jnp.mean(jnp.sum(gap**2, axis=-1)), None

    actor, value, _, finite = optimize.learn(
        state.actor,
        loss,
        hyper.learning_rate,
        Update(count, hyper.actor, key),
        evolution_of(config),
        evolve=due.evolve_actor,
        active=active,
    )
    return State(actor), {"actor_loss": value, "finite": finite}


ALGORITHM = Algorithm("bc", NETWORK_USE["bc"], init, act, update, mean_action)
