"""MuJoCo Playground's tasks, if it is installed."""

import subprocess
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx2_jax import envs

pytestmark = pytest.mark.slow
playground: Any = pytest.importorskip("mujoco_playground")


@pytest.mark.parametrize(
    ("name", "sizes"), [("CartpoleBalance", (5, 1)), ("HumanoidStand", (67, 21))]
)
def test_tasks_that_come_with_the_package(name, sizes):
    assert envs.make_device(name, "playground").spec[:3] == (*sizes, 1000)


def test_steps_are_playgrounds_and_starts_are_fresh():
    env = envs.make_device("CartpoleBalance", "playground", max_episode_steps=3)
    own = playground.registry.load("CartpoleBalance", config_overrides={"impl": "jax"})
    _, start = jax.random.split(jax.random.PRNGKey(0))
    state, step = env.reset(jax.random.PRNGKey(0)), jax.jit(env.step)
    with jax.numpy_rank_promotion("allow"):
        own_step, expected = jax.jit(own.step), jax.jit(own.reset)(start)
        own_step = own_step.lower(expected, jnp.ones(1)).compile()
    np.testing.assert_allclose(state.obs, expected.obs, rtol=1e-6)
    ends, starts = [], [np.asarray(state.obs)]
    for t in range(9):
        state, found = step(state, jnp.ones(1))
        if t < 3:
            expected = own_step(expected, jnp.ones(1))
            np.testing.assert_allclose(found.next_obs, expected.obs, rtol=1e-5)
            np.testing.assert_allclose(found.reward, expected.reward, rtol=1e-5)
        ends.append(bool(found.truncated))
        if found.truncated:
            assert not np.allclose(found.obs, found.next_obs)
            starts.append(np.asarray(found.obs))
    assert ends == [False, False, True] * 3 and len(np.unique(starts, axis=0)) == 4


def test_mistakes_are_refused_with_advice(monkeypatch):
    with pytest.raises(ValueError, match="no environment 'CartPoleBalance'; did you mean Cart"):
        envs.make_device("CartPoleBalance", "playground")
    with pytest.raises(ValueError, match="no option speed in Playground; it has action_repeat"):
        envs.make_device("CartpoleBalance", "playground", speed=2)
    with pytest.raises(ValueError, match="impl is 'warp': only 'jax'"):
        envs.make_device("CartpoleBalance", "playground", impl="warp")

    def offline(*args: Any, **kwargs: Any) -> None:
        raise subprocess.CalledProcessError(128, ["git", "clone"])

    monkeypatch.setattr(playground.registry, "load", offline)
    with pytest.raises(ImportError, match="could not fetch the models that Go1JoystickFlatTerrain"):
        envs.make_device("Go1JoystickFlatTerrain", "playground")
