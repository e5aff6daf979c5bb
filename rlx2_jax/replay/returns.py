"""n-step returns (section 4.2 and appendix B) of one window; callers `vmap`."""

from typing import NamedTuple

import chex
import jax.numpy as jnp

from rlx2_jax.types import Array


class NStep(NamedTuple):
    """The network-independent part of an n-step target.

    The target of TD3 is `reward + discount * Q(s_{t+m}, ã)`, with s_{t+m} = next_obs[last].

    Attributes:
      reward: Σ_{k<m} γ^k r_{t+k}: f32[].
      discount: γ^m, or 0 if step m terminated: f32[].
      last: m - 1, the index of the window's last real step: i32[].
      entropy: γ^{k+1} where s_{t+k+1} is in the window and not terminal, else 0: f32[n].
    """

    reward: Array
    discount: Array
    last: Array
    entropy: Array


def n_step(
    rewards: Array,
    terminated: Array,
    truncated: Array,
    n: Array | int,
    discount: Array | float,
    *,
    both_ends: str = "terminated",
) -> NStep:
    """The n-step return of one window, cut at the episode's end.

        m = min(n, steps up to and including the first terminated or truncated one)
        T_n = Σ_{k<m} γ^k r_{t+k} + γ^m Q(s_{t+m}, ã)      (without Q if step m terminated)

    Args:
      rewards, terminated, truncated: `[n_max]`, of consecutive transitions.
      n: how many of them to use, 1 <= n <= n_max; traced, so that the delayed switch from 1 to n
        (section 4.2.1) and lanes with different n share one program.
      discount: γ.
      both_ends: how to count a step that is both terminated and truncated.
    """
    chex.assert_rank([rewards, terminated, truncated], 1)
    if both_ends == "truncated":
        terminated = terminated & ~truncated
    steps = jnp.arange(rewards.shape[0])
    ends = (terminated | truncated).astype(jnp.int32)
    inside = (jnp.cumsum(ends) - ends == 0) & (steps < n)  # no end before this step
    gammas = jnp.asarray(discount, rewards.dtype) ** steps.astype(rewards.dtype)
    last = inside.sum() - 1
    alive = jnp.where(inside & ~terminated, gammas * discount, 0.0)  # γ^{k+1}
    return NStep(
        reward=jnp.sum(jnp.where(inside, gammas * rewards, 0.0)),
        discount=alive[last],
        last=last,
        entropy=alive,
    )


def td3_target(step: NStep, q_next: Array) -> Array:
    """y = Σ γ^k r_{t+k} + γ^m Q'(s_{t+m}, ã)   (Algorithm 4, line 13).

    Args:
      q_next: [], Q' = min_j Q_{θ'_j}(s_{t+m}, ã), the minimum over target critics.
    """
    return step.reward + step.discount * q_next


def sac_target(step: NStep, q_next: Array, log_probs: Array, alpha: Array) -> Array:
    """y = Σ γ^k r_{t+k} + γ^m Q'(s_{t+m}, ã_{t+m}) - α Σ γ^{k+1} log π(ã_{t+k+1})

    (Algorithm 5, line 13).

    Args:
      q_next: [], Q' = min_j Q_{θ'_j}(s_{t+m}, ã_{t+m}), the minimum over target critics.
      log_probs: [n], of actions at s_{t+1} .. s_{t+n}; terminal states and those outside the window
        have no weight.
      alpha: [], the temperature α.
    """
    return step.reward + step.discount * q_next - alpha * jnp.sum(step.entropy * log_probs)
