"""Policy and value heads.

Every function takes a bound network: `online(network)`, `target(network)` or
`bind(network, params)`.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax.control_flow import reduce_members
from rlx2_jax.networks.base import BoundNetwork
from rlx2_jax.types import Array, Bounds

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
_LOG_2 = math.log(2.0)


def policy(actor: BoundNetwork, obs: Array) -> Array:
    """TD3's deterministic policy π(s; φ) = tanh(f(s)), in [-1, 1]: `[..., act]`."""
    return jnp.tanh(actor(obs))


def q_values(
    critics: BoundNetwork,
    obs: Array,
    action: Array,
    bounds: Bounds | None = None,
    *,
    separate_inputs: bool = False,
) -> Array:
    """All critics Q_θj(s, a): `[critics, ...]`. `bounds` as in `critic_input`.

    With `separate_inputs` (for actor losses), each critic gets a copy of the input, because XLA
    sums input gradients over an ensemble slowly on CPUs.
    """
    x = critic_input(obs, action, bounds)
    return (critics.each(x) if separate_inputs else critics(x))[..., 0]


def q_value(
    critics: BoundNetwork, obs: Array, action: Array, bounds: Bounds | None = None
) -> Array:
    """The first critic alone, Q_θ1(s, a): `[...]`. `bounds` as in `critic_input`."""
    return critics.first(critic_input(obs, action, bounds))[..., 0]


def minimum(q: Array) -> Array:
    """The minimum over `[critics, ...]`: `[...]`."""
    return reduce_members(jnp.minimum, q)


def critic_input(obs: Array, action: Array, bounds: Bounds | None) -> Array:
    """The input of critics, (s, a): `[..., obs + act]`.

    `action` is in [-1, 1]. It is rescaled to `bounds` = (low, high) of each component, if given.
    """
    if bounds is not None:
        # Halve first, as in `envs.spaces`, so that high - low cannot overflow.
        low, high = (np.asarray(bound, np.float64) / 2 for bound in bounds)
        centre, half = (
            jnp.broadcast_to(jnp.asarray(x, action.dtype), action.shape)
            for x in (high + low, high - low)
        )
        action = centre + half * action
    return jnp.concatenate([obs, action], axis=-1)


def gaussian(actor: BoundNetwork, obs: Array) -> tuple[Array, Array]:
    """SAC's policy before squashing: mean and log σ, log σ = -5 + 3.5 (tanh + 1)."""
    mean, raw = jnp.split(actor(obs), 2, axis=-1)
    half = 0.5 * (LOG_STD_MAX - LOG_STD_MIN)
    return mean, LOG_STD_MIN + half * (jnp.tanh(raw) + 1.0)


def squashed_mean(actor: BoundNetwork, obs: Array) -> Array:
    """SAC's noise-free action tanh(mean): `[..., act]`."""
    return jnp.tanh(gaussian(actor, obs)[0])


def squashed_sample(actor: BoundNetwork, obs: Array, noise: Array) -> tuple[Array, Array]:
    """a = tanh(u), u = mean + σ ε, and log π(a|s) = log N(u) - Σ log(1 - tanh² u).

    `noise` ε is standard normal, `[..., act]`; the log probability is `[...]`.
    """
    mean, log_std = gaussian(actor, obs)
    u = mean + jnp.exp(log_std) * noise
    log_normal = -0.5 * noise**2 - log_std - 0.5 * math.log(2.0 * math.pi)
    log_slope = 2.0 * (_LOG_2 - u - jax.nn.softplus(-2.0 * u))  # log(1 - tanh² u), stable
    # Unrolled: small XLA reductions are slow on CPUs.
    log_prob = functools.reduce(jnp.add, jnp.unstack(log_normal - log_slope, axis=-1))
    return jnp.tanh(u), log_prob
