"""Brax's inverted pendulum with this package's restarts (tables: test_envs_probes)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx2_jax import envs
from rlx2_jax.envs.device import EnvState
from rlx2_jax.types import TimeStep

LIMIT, STEPS = 8, 48


class Run(NamedTuple):
    """Two lanes of two pendulums, [T, 2, 2, ...]: lane 0 gets no force, lane 1 a large one."""

    acted: np.ndarray
    steps: TimeStep
    half: EnvState  # after STEPS / 2
    rest: Callable[[EnvState], Any]  # from there to the end


@pytest.fixture(scope="module")
def run() -> Run:
    env = envs.make_device("inverted_pendulum", episode_length=LIMIT)
    assert env.spec == (4, 1, LIMIT, (-3.0,), (3.0,))
    push = jnp.array([[[0.0], [0.0]], [[1.0], [-1.0]]])

    @jax.jit
    def rollout(state):
        def body(state, _):
            after, step = jax.vmap(jax.vmap(env.step))(state, push)
            return after, (state.obs, step)

        return jax.lax.scan(body, state, None, STEPS // 2)

    start = jax.jit(jax.vmap(jax.vmap(env.reset)))
    half, first = rollout(start(jax.random.split(jax.random.PRNGKey(0), (2, 2))))
    _, second = rollout(half)
    acted, steps = jax.tree.map(lambda *x: np.concatenate(x), first, second)
    return Run(acted, steps, half, rollout)


def test_truncation_and_termination_are_distinguished(run):
    steps = run.steps
    quiet = np.arange(1, STEPS + 1) % LIMIT == 0
    np.testing.assert_array_equal(steps.truncated[:, 0], np.stack([quiet, quiet], 1))
    assert not steps.terminated[:, 0].any()
    np.testing.assert_array_equal(steps.terminated, np.abs(steps.next_obs[..., 1]) > 0.2)
    assert steps.terminated[:, 1].sum() >= 4
    assert steps.reward.dtype == np.float32


def test_final_observations_are_the_real_ones(run):
    acted, steps = run.acted, run.steps
    ended = steps.terminated | steps.truncated
    np.testing.assert_array_equal(steps.obs[~ended], steps.next_obs[~ended])
    assert (np.abs(steps.obs[ended]) <= 0.01).all()  # a start is within ±0.01
    # Without force, the pole keeps falling through the last step; a reset would be a jump.
    angle, before = np.abs(steps.next_obs[..., 1]), np.abs(acted[..., 1])
    assert (angle[steps.terminated] > before[steps.terminated]).all()
    assert not np.isclose(steps.next_obs[ended], steps.obs[ended], atol=1e-5).all(-1).any()


def test_starts_are_fresh(run):
    acted, steps = run.acted, run.steps
    starts = np.concatenate(
        [acted[0].reshape(-1, 4), steps.obs[steps.terminated | steps.truncated]]
    )
    assert len(np.unique(starts, axis=0)) == len(starts) > 20


def test_state_is_plain_arrays_that_continue_exactly(run, tmp_path):
    assert run.half.key.shape == (2, 2, 2) and run.half.key.dtype == jnp.uint32
    leaves, tree = jax.tree.flatten(run.half)
    np.savez(tmp_path / "state.npz", *map(np.asarray, leaves))
    with np.load(tmp_path / "state.npz", allow_pickle=False) as loaded:
        restored = jax.tree.unflatten(tree, [jnp.asarray(loaded[k]) for k in loaded.files])
    _, (acted, steps) = run.rest(restored)
    np.testing.assert_array_equal(acted, run.acted[STEPS // 2 :])
    for x, y in zip(steps, run.steps):
        np.testing.assert_array_equal(x, y[STEPS // 2 :])


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("InvertedPendulum-v5", (4, 1)),
        pytest.param("HalfCheetah-v5", (17, 6), marks=pytest.mark.slow),
        pytest.param("hopper", (11, 3), marks=pytest.mark.slow),
        pytest.param("walker2d", (17, 6), marks=pytest.mark.slow),
        pytest.param("ant", (27, 8), marks=pytest.mark.slow),
        pytest.param("Humanoid-v5", (244, 17), marks=pytest.mark.slow),
    ],
)
def test_names_and_gymnasium_ids(name, sizes):
    env = envs.make_device(name)
    assert env.spec[:3] == (*sizes, 1000)
    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    state = jax.eval_shape(env.reset, key)
    action = jax.ShapeDtypeStruct((sizes[1],), jnp.float32)
    after, step = jax.eval_shape(env.step, state, action)
    describe = lambda x: (x.shape, x.dtype)  # noqa: E731
    assert jax.tree.map(describe, after) == jax.tree.map(describe, state)
    assert step.next_obs.shape == step.obs.shape == (sizes[0],)
