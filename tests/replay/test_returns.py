"""n-step returns against hand-written loops and hand-worked numbers."""

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx2_jax.replay import returns

pytestmark = pytest.mark.fast
GAMMA = 0.9
n_step = jax.jit(returns.n_step)
KINDS = ((False, False), (True, False), (False, True), (True, True))  # (terminated, truncated)


def loop(
    rewards: Sequence[float], ends: Sequence[tuple[bool, bool]], n: int, both_ends: str
) -> tuple[float, float, int, list[float]]:
    """Walks a window step by step; the fields of `NStep`."""
    total, entropy = 0.0, [0.0] * len(rewards)
    for k in range(n):
        terminated, truncated = ends[k]
        total += GAMMA**k * rewards[k]
        if terminated and truncated:
            terminated, truncated = both_ends == "terminated", both_ends == "truncated"
        if terminated:
            return total, 0.0, k, entropy
        entropy[k] = GAMMA ** (k + 1)
        if truncated:
            return total, GAMMA ** (k + 1), k, entropy
    return total, GAMMA**n, n - 1, entropy


@pytest.mark.parametrize("both_ends", ["terminated", "truncated"])
@pytest.mark.parametrize("n_max", [1, 2, 3, 4])
def test_all_patterns_of_ends(n_max, both_ends):
    patterns = list(itertools.product(KINDS, repeat=n_max))
    rewards = np.random.default_rng(0).normal(size=(len(patterns), n_max)).astype(np.float32)
    terminated, truncated = np.moveaxis(np.array(patterns), -1, 0)
    together = jax.jit(  # n is traced: one program for all of them
        jax.vmap(
            lambda r, d, c, n: returns.n_step(r, d, c, n, GAMMA, both_ends=both_ends),
            (0, 0, 0, None),
        )
    )
    for n in range(1, n_max + 1):
        got = together(rewards, terminated, truncated, jnp.int32(n))
        found = [loop(list(r), p, n, both_ends) for r, p in zip(rewards, patterns)]
        for field, expected in zip(returns.NStep._fields, zip(*found)):
            np.testing.assert_allclose(getattr(got, field), expected, atol=1e-6, err_msg=field)


def test_traced_static_and_plain_n_agree():
    rewards, no = jnp.array([1.0, 2.0, 3.0]), jnp.zeros(3, bool)
    traced = jax.jit(lambda n: returns.n_step(rewards, no, no, n, GAMMA))
    for n in (1, 2, 3):
        plain = returns.n_step(rewards, no, no, n, GAMMA)
        jax.tree.map(np.testing.assert_array_equal, traced(n), plain)


def test_lanes_of_several_n_and_discount_share_a_program():
    rewards, no = jnp.array([1.0, 2.0, 3.0]), jnp.zeros(3, bool)
    n, gamma = jnp.array([1, 2, 3]), jnp.array([1.0, 0.5, 0.0])
    got = jax.vmap(lambda n, g: returns.n_step(rewards, no, no, n, g))(n, gamma)
    np.testing.assert_allclose(got.reward, [1.0, 1.0 + 0.5 * 2.0, 1.0])
    np.testing.assert_allclose(got.discount, [1.0, 0.25, 0.0])


def step_of(ends: tuple[tuple[bool, bool], ...], n: int = 3) -> returns.NStep:
    """Rewards 1, 10, 100 with the given ends, γ = 1/2."""
    terminated, truncated = jnp.array(ends).T
    return n_step(jnp.array([1.0, 10.0, 100.0]), terminated, truncated, n, 0.5)


LIVE, DEAD, CUT, BOTH = KINDS


@pytest.mark.parametrize(
    ("ends", "n", "td3", "sac"),
    [
        # y = 1 + 10/2 + 100/4 + 8/8; SAC: 2 (1/2 · 0.1 + 1/4 · 0.2 + 1/8 · 0.4) less
        ((LIVE, LIVE, LIVE), 3, 32.0, 32.0 - 0.3),
        ((LIVE, LIVE, LIVE), 2, 6.0 + 8.0 / 4, 8.0 - 2 * 0.1),
        ((LIVE, LIVE, LIVE), 1, 1.0 + 8.0 / 2, 5.0 - 2 * 0.05),
        ((LIVE, DEAD, LIVE), 3, 6.0, 6.0 - 2 * 0.05),  # no entropy at the terminal state
        ((LIVE, CUT, LIVE), 3, 6.0 + 8.0 / 4, 8.0 - 2 * 0.1),
        ((LIVE, BOTH, LIVE), 3, 6.0, 6.0 - 2 * 0.05),
        ((DEAD, LIVE, LIVE), 3, 1.0, 1.0),
        ((LIVE, LIVE, DEAD), 3, 31.0, 31.0 - 2 * 0.1),
        ((LIVE, LIVE, DEAD), 2, 8.0, 8.0 - 2 * 0.1),  # the end lies outside the window
    ],
)
def test_targets_by_hand(ends, n, td3, sac):
    step, q_next = step_of(ends, n), jnp.asarray(8.0)
    log_probs, alpha = jnp.array([0.1, 0.2, 0.4]), jnp.asarray(2.0)
    assert float(returns.td3_target(step, q_next)) == pytest.approx(td3)
    assert float(returns.sac_target(step, q_next, log_probs, alpha)) == pytest.approx(sac)


def test_targets_against_loops():
    rng = np.random.default_rng(1)
    for _ in range(30):
        rewards, log_probs = rng.normal(size=(2, 4)).astype(np.float32)
        ends = [KINDS[i] for i in rng.integers(0, 4, 4) * (rng.random(4) < 0.3)]
        n, q, alpha = int(rng.integers(1, 5)), float(rng.normal()), float(rng.random())
        total, discount, last, entropy = loop(list(rewards), ends, n, "terminated")
        terminated, truncated = jnp.array(ends).T
        step = n_step(jnp.asarray(rewards), terminated, truncated, n, GAMMA)
        td3 = total + discount * q
        sac = td3 - alpha * sum(w * p for w, p in zip(entropy, log_probs))
        q, alpha = jnp.float32(q), jnp.float32(alpha)
        assert int(step.last) == last
        assert float(returns.td3_target(step, q)) == pytest.approx(td3, abs=1e-5)
        got = returns.sac_target(step, q, jnp.asarray(log_probs), alpha)
        assert float(got) == pytest.approx(sac, abs=1e-5)


def test_one_window_at_a_time():
    with pytest.raises(AssertionError):
        returns.n_step(jnp.zeros((2, 3)), jnp.zeros((2, 3), bool), jnp.zeros((2, 3), bool), 1, 1.0)
