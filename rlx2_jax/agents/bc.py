"""Behaviour cloning (section 5.3): a sparse actor that imitates a trained expert.

`init`, `act` and `update` of one lane, as pure functions of the same shapes as TD3's and SAC's.
The actor learns from a fixed set of the expert's noise-free actions instead of from a critic, so
nothing is bootstrapped and there is no target network; masks evolve as everywhere else.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rlx2_jax import networks
from rlx2_jax.agents.common import make_actor, topology_options
from rlx2_jax.algorithms import NETWORK_USE
from rlx2_jax.config import Config, Hyper, Lane
from rlx2_jax.networks import optimize
from rlx2_jax.types import Array, Network, Params


class State(NamedTuple):
    """π_φ with its mask and moments."""

    actor: Network


class Demonstrations(NamedTuple):
    """What an expert did: a fixed set, or a batch of it."""

    obs: Array  # [..., obs]
    action: Array  # [..., act], noise-free, in [-1, 1]


def init(key: Array, config: Config, lane: Lane) -> State:
    """A sparse actor; its weights and mask are those of `td3.init` with the same key."""
    if NETWORK_USE[config.algo].actor_heads != 1:
        raise ValueError(
            f"algo={config.algo!r}: behaviour cloning trains TD3's deterministic actor, "
            "whoever the expert was: use a Config with algo='td3'"
        )
    actor_key, _ = jax.random.split(key)
    return State(make_actor(actor_key, config, lane, target=False))


def mean_action(actor: Params, obs: Array) -> Array:
    """The policy π(s; φ): `[..., obs] -> [..., act]`."""
    return networks.policy(actor, obs)


def act(state: State, obs: Array, key: Array, config: Config, hyper: Hyper) -> tuple[Array, Array]:
    """π(s; φ) twice, as the action and as its mean: a clone does not explore. `[..., act]`."""
    del key, config, hyper
    mean = mean_action(networks.online(state.actor), obs)
    return mean, mean


def sample(data: Demonstrations, key: Array, batch_size: int) -> Demonstrations:
    """`batch_size` rows of the fixed set, drawn uniformly with replacement."""
    rows = jax.random.randint(key, (batch_size,), 0, data.obs.shape[0])
    return Demonstrations(data.obs[rows], data.action[rows])


def update(
    state: State,
    batch: Demonstrations,
    key: Array,
    step: Array,
    count: Array,
    config: Config,
    hyper: Hyper,
) -> tuple[State, dict[str, Array]]:
    """One step on L(φ) = 1/B Σ ‖π(s_i; φ) - a_i‖². Arguments as in `td3.update`; `key` is for
    random growth.

    The actor takes every update here, not every d-th, so its schedule is the one that counts all
    updates (TD3's critic's).
    """
    del step

    def loss(params: Params) -> tuple[Array, None]:
        gap = mean_action(params, batch.obs) - batch.action
        return jnp.mean(jnp.sum(gap**2, axis=-1)), None

    options: dict[str, Any] = {**topology_options(config), "rows": batch.obs.shape[0]}
    actor, value, _, _ = optimize.learn(
        state.actor, loss, hyper.learning_rate, count, hyper.critic, key, **options
    )
    return State(actor), {"actor_loss": value}
