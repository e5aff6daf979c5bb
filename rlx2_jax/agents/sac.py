"""RLx2-SAC (Algorithm 5): `init`, `act` and `update` of one lane, as pure functions."""

from typing import Any, NamedTuple

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
from rlx2_jax.types import Array, Batch, Network, Params


class State(NamedTuple):
    """The state of SAC.

    Attributes:
      actor: π_φ with its mask and moments; it has no target.
      critic: Q_θ1 .. Q_θN with masks, moments and targets; every array is `[critics, ...]`.
      log_alpha: log α, the temperature: f32[].
      alpha_moments: Adam's moments of log α.
      leak: the actor loss's gradient in the critics, for preset `reference`; else None.
    """

    actor: Network
    critic: Network
    log_alpha: Array
    alpha_moments: Any
    leak: Params | None


class Noise(NamedTuple):
    """The standard normal draws of one update.

    Attributes:
      target: for ã_{i+1} .. ã_{i+n} of the target: [n_max, batch, act].
      actor: for the actions of the actor's loss: [batch, act].
    """

    target: Array
    actor: Array


def init(key: Array, config: Config, lane: Lane) -> State:
    """Sparse networks with random parameters and masks, α = 1 (Algorithm 5, lines 1-3)."""
    actor_key, critic_key = jax.random.split(key)
    actor = make_actor(actor_key, config, lane, target=False)
    critic = make_critic(critic_key, config, lane)
    log_alpha = jnp.zeros((), jnp.dtype(config.dtype))
    leak = jax.tree.map(jnp.zeros_like, critic.params) if config.sac_growth == "leaked" else None
    return State(actor, critic, log_alpha, optimize.adam.init(log_alpha), leak)


def mean_action(actor: BoundNetwork, obs: Array) -> Array:
    """The noise-free action tanh(mean): `[..., obs] -> [..., act]`."""
    return networks.squashed_mean(actor, obs)


def policy(state: State, obs: Array) -> Array:
    """The noise-free action of an agent, as in evaluations: `[..., obs] -> [..., act]`."""
    return mean_action(networks.online(state.actor), obs)


def act(state: State, obs: Array, key: Array, config: Config, hyper: Hyper) -> tuple[Array, Array]:
    """a ~ π_φ(s) (line 5), and the noise-free action: `[..., act]` each."""
    del hyper
    actor = networks.online(state.actor)
    mean = mean_action(actor, obs)
    if config.exploration == "mean":
        return mean, mean
    noise = jax.random.normal(key, mean.shape, mean.dtype)
    return networks.squashed_sample(actor, obs, noise)[0], mean


def draw_noise(key: Array, config: Config) -> Noise:
    """All random numbers of one update."""
    target_key, actor_key = jax.random.split(key)
    shape = (config.batch_size, config.action_dim)
    dtype = jnp.dtype(config.dtype)
    return Noise(
        target=normal(target_key, (config.n_max, *shape), dtype),
        actor=normal(actor_key, shape, dtype),
    )


def update(
    state: State,
    batch: Batch,
    key: Array,
    step: Array,
    count: Array,
    config: Config,
    hyper: Hyper,
    *,
    noise: Noise | None = None,
    due: Due = BY_COUNT,
    active: Array | bool = True,
) -> tuple[State, dict[str, Array]]:
    """One gradient update (Algorithm 5, lines 10-23). Arguments as in `td3.update`; `noise`
    overrides the draws from `key`."""
    noise_key, critic_key, actor_key = jax.random.split(key, 3)
    if noise is None:
        noise = draw_noise(noise_key, config)
    alpha, bounds = jnp.exp(state.log_alpha), config.critic_bounds
    n = switched_n(step, count, config, hyper)
    y = _target(state, batch, noise.target, key, alpha, n, config, hyper)

    def critic_loss(critics: BoundNetwork) -> tuple[Array, Array]:
        seeded = critics.seeded(jax.random.fold_in(key, 4))  # a separate stream
        q = networks.q_values(seeded, batch.obs, batch.action, bounds)
        return common.squared_errors(q, y), jnp.mean(q[0])

    critic, loss, q, finite = optimize.learn(
        state.critic,
        critic_loss,
        hyper.learning_rate,
        Update(count, hyper.critic, critic_key),
        evolution_of(config),
        leak=state.leak,
        evolve=due.evolve_critic,
        active=active,
    )

    def actor_loss(actor: BoundNetwork, critics: BoundNetwork) -> tuple[Array, Array]:
        action, log_prob = networks.squashed_sample(actor, batch.obs, noise.actor)
        seeded = critics.seeded(jax.random.fold_in(key, 5))
        q = networks.q_values(seeded, batch.obs, action, bounds, separate_inputs=True)
        # REDQ's actor maximizes the mean of its critics, SAC's the minimum.
        mean = config.critic_subset or NETWORK_USE[config.algo].maximizes_mean
        value = jnp.mean(q, axis=0) if mean else networks.minimum(q)
        return jnp.mean(alpha * log_prob - value), log_prob

    def actor_step(before: tuple[State, Array, Array]) -> tuple[State, Array, Array]:
        state = before[0]
        critics = networks.online(state.critic)
        actor, loss, log_prob, finite = optimize.learn(
            state.actor,
            lambda actor: actor_loss(actor, critics),
            hyper.learning_rate,
            Update(count // config.policy_delay, hyper.actor, actor_key),
            evolution_of(config, config.policy_delay),
            evolve=due.evolve_actor,
            active=active,
        )
        leak = None
        if state.leak is not None:
            policy, critic = networks.online(state.actor), state.critic
            judged = lambda params: actor_loss(policy, networks.bind(critic, params))  # noqa: E731
            leak = jax.grad(judged, has_aux=True)(critic.params)[0]
        rest: Any = (*_temperature(state, log_prob, hyper), leak)
        if active is not True:
            old = (state.log_alpha, state.alpha_moments, state.leak)
            rest = jax.tree.map(lambda a, b: jnp.where(active, a, b), rest, old)
        return State(actor, state.critic, *rest), loss, finite

    new, loss_actor, finite_actor = decide(
        due.actor,
        config.policy_delay,
        count,
        actor_step,
        (state._replace(critic=critic), jnp.zeros_like(loss), jnp.ones_like(finite)),
    )
    critic = decide(
        due.targets,
        config.target_interval,
        count,
        lambda old: optimize.polyak(old, hyper.tau, active),
        new.critic,
    )
    metrics = {
        "critic_loss": loss,
        "actor_loss": loss_actor,
        "q": q,
        "target": jnp.mean(y),
        "alpha": alpha,
        "finite": finite & finite_actor,
    }
    return new._replace(critic=critic), metrics


def _target(
    state: State,
    batch: Batch,
    noise: Array,
    key: Array,
    alpha: Array,
    n: Array,
    config: Config,
    hyper: Hyper,
) -> Array:
    """Lines 10-13: entropy at every s_{i+1} .. s_{i+m}, Q at the last: [batch].

    Needs a forward pass of the online actor at every state of the window."""
    step = jax.vmap(
        lambda r, d, c: returns.n_step(r, d, c, n, hyper.discount, both_ends=config.both_ends)
    )(batch.reward, batch.terminated, batch.truncated)
    actions, log_probs = networks.squashed_sample(
        networks.online(state.actor), batch.next_obs, jnp.swapaxes(noise, 0, 1)
    )
    last = step.last[:, None, None]
    last_obs = jnp.take_along_axis(batch.next_obs, last, axis=1)[:, 0]
    last_action = jnp.take_along_axis(actions, last, axis=1)[:, 0]
    critic = networks.target(state.critic).seeded(jax.random.fold_in(key, 6))
    values = networks.q_values(critic, last_obs, last_action, config.critic_bounds)
    q = common.target_value(values, key, config)
    return jax.vmap(returns.sac_target, (0, 0, 0, None))(step, q, log_probs, alpha)


def _temperature(state: State, log_prob: Array, hyper: Hyper) -> tuple[Array, Any]:
    """α ← α - λ ∇ mean(-α log π - α H̄) (line 23), on log α: new log α and its moments."""
    gradient = jnp.exp(state.log_alpha) * jnp.mean(-log_prob - hyper.target_entropy)
    step, moments = optimize.adam.update(gradient, state.alpha_moments)
    return state.log_alpha - hyper.learning_rate * jnp.asarray(step), moments


ALGORITHM = Algorithm("sac", NETWORK_USE["sac"], init, act, update, mean_action)
