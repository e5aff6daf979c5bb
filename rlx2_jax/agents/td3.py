"""RLx2-TD3 (Algorithm 4): `init`, `act` and `update` of one lane, as pure functions."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlx2_jax import networks
from rlx2_jax.agents import common
from rlx2_jax.agents.algorithm import Algorithm
from rlx2_jax.agents.common import (
    BY_COUNT,
    Due,
    evolution_of,
    make_actor,
    make_critic,
    switched_n,
)
from rlx2_jax.algorithms import NETWORK_USE
from rlx2_jax.config import Config, Hyper, Lane
from rlx2_jax.control_flow import decide
from rlx2_jax.networks import BoundNetwork, optimize
from rlx2_jax.networks.evolution import Update
from rlx2_jax.prng import normal
from rlx2_jax.replay import returns
from rlx2_jax.types import Array, Batch, Network


class State(NamedTuple):
    """The state of TD3: networks with masks, moments and targets.

    Attributes:
      actor: π_φ and its target π_φ'.
      critic: Q_θ1 .. Q_θN and their targets; every array is `[critics, ...]`.
    """

    actor: Network
    critic: Network


def init(key: Array, config: Config, lane: Lane) -> State:
    """Sparse networks with random parameters and masks (Algorithm 4, lines 1-3)."""
    actor_key, critic_key = jax.random.split(key)
    return State(make_actor(actor_key, config, lane), make_critic(critic_key, config, lane))


def mean_action(actor: BoundNetwork, obs: Array) -> Array:
    """The noise-free policy π(s; φ): `[..., obs] -> [..., act]`."""
    return networks.policy(actor, obs)


def policy(state: State, obs: Array) -> Array:
    """The noise-free action of an agent, as in evaluations: `[..., obs] -> [..., act]`."""
    return mean_action(networks.online(state.actor), obs)


def act(state: State, obs: Array, key: Array, config: Config, hyper: Hyper) -> tuple[Array, Array]:
    """a = π(s; φ) + ε, ε ~ N(0, σ), clipped to [-1, 1] (line 5), and π(s; φ): `[..., act]`."""
    del config
    mean = mean_action(networks.online(state.actor), obs)
    noise = hyper.exploration_noise * jax.random.normal(key, mean.shape, mean.dtype)
    return jnp.clip(mean + noise, -1.0, 1.0), mean


def update(
    state: State,
    batch: Batch,
    key: Array,
    step: Array,
    count: Array,
    config: Config,
    hyper: Hyper,
    *,
    expert: BoundNetwork | None = None,
    due: Due = BY_COUNT,
    active: Array | bool = True,
) -> tuple[State, dict[str, Array]]:
    """One gradient update (Algorithm 4, lines 10-24).

    Args:
      batch: windows of `config.n_max` steps.
      key: for target smoothing and random growth.
      step, count: environment steps and gradient updates, including this one (from 1); must not be
        batched over lanes, so that policy delay and mask updates stay real branches.
      expert: the critics of a trained dense expert (RigL+Q*); its Q replaces the learned one
        in the actor's loss and is the critic's regression target.
      due: static; the parts to run. The default branches on `count` and is correct at every update;
        a loop that knows the count avoids the branches.
      active: if False, nothing changes; needs a `due` without mask updates.
    """
    noise_key, critic_key, actor_key = jax.random.split(key, 3)
    shape, dtype, bounds = batch.action.shape, jnp.dtype(config.dtype), config.critic_bounds
    noise = normal(noise_key, shape, dtype)
    n = switched_n(step, count, config, hyper)
    y = _target(state, batch, noise, key, n, config, hyper)
    if expert is not None:
        y = networks.q_value(expert, batch.obs, batch.action, bounds)

    def critic_loss(critics: BoundNetwork) -> tuple[Array, Array]:
        q = networks.q_values(critics, batch.obs, batch.action, bounds)
        return common.squared_errors(q, y), jnp.mean(q[0])

    critic, loss, q, finite = optimize.learn(
        state.critic,
        critic_loss,
        hyper.learning_rate,
        Update(count, hyper.critic, critic_key),
        evolution_of(config),
        evolve=due.evolve_critic,
        active=active,
    )
    critics = networks.online(critic) if expert is None else expert

    def actor_loss(actor: BoundNetwork) -> tuple[Array, None]:
        action = networks.policy(actor, batch.obs)
        return -jnp.mean(networks.q_value(critics, batch.obs, action, bounds)), None

    def actor_step(before: tuple[Network, Array, Array]) -> tuple[Network, Array, Array]:
        actor, loss, _, finite = optimize.learn(
            before[0],
            actor_loss,
            hyper.learning_rate,
            Update(count // config.policy_delay, hyper.actor, actor_key),
            evolution_of(config, config.policy_delay),
            evolve=due.evolve_actor,
            active=active,
        )
        return actor, loss, finite

    actor, loss_actor, finite_actor = decide(
        due.actor,
        config.policy_delay,
        count,
        actor_step,
        (state.actor, jnp.zeros_like(loss), jnp.ones_like(finite)),
    )
    new = decide(
        due.targets,
        config.target_interval,
        count,
        lambda old: State(*(optimize.polyak(network, hyper.tau, active) for network in old)),
        State(actor, critic),
    )
    metrics = {
        "critic_loss": loss,
        "actor_loss": loss_actor,
        "q": q,
        "target": jnp.mean(y),
        "finite": finite & finite_actor,
    }
    return new, metrics


def _target(
    state: State, batch: Batch, noise: Array, key: Array, n: Array, config: Config, hyper: Hyper
) -> Array:
    """y = Σ γ^k r_{i+k} + γ^m min_j Q_{θ'_j}(s_{i+m}, ã), ã = π_{φ'}(s_{i+m}) + clip(ε): [batch]
    (lines 10-13)."""
    step = jax.vmap(
        lambda r, d, c: returns.n_step(r, d, c, n, hyper.discount, both_ends=config.both_ends)
    )(batch.reward, batch.terminated, batch.truncated)
    last_obs = jnp.take_along_axis(batch.next_obs, step.last[:, None, None], axis=1)[:, 0]
    action = networks.policy(networks.target(state.actor), last_obs)
    noise = jnp.clip(hyper.target_noise * noise, -hyper.target_noise_clip, hyper.target_noise_clip)
    action = jnp.clip(action + noise, -1.0, 1.0)
    critic, bounds = networks.target(state.critic), config.critic_bounds
    q = networks.q_values(critic, last_obs, action, bounds)
    return returns.td3_target(step, common.target_value(q, key, config))


ALGORITHM = Algorithm("td3", NETWORK_USE["td3"], init, act, update, mean_action)
