"""The table of Gymnasium's tasks against Gymnasium itself, on MuJoCo's own physics."""

import inspect
import warnings
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

from rlx2_jax.envs.mujoco_tasks import TASKS, Physics, Step

pytestmark = pytest.mark.fast

OPTIONS = [
    ("Hopper-v5", {"terminate_when_unhealthy": False, "healthy_reward": 2.0}),
    ("Hopper-v4", {"terminate_when_unhealthy": False}),
    ("Walker2d-v4", {"exclude_current_positions_from_observation": False}),
    ("HalfCheetah-v5", {"ctrl_cost_weight": 1.0, "forward_reward_weight": 2.0}),
    ("Ant-v4", {"use_contact_forces": True, "contact_force_range": (-0.5, 0.5)}),
    ("Ant-v5", {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.1}),
    ("Humanoid-v5", {"include_cvel_in_observation": False, "contact_cost_weight": 1e-3}),
    ("Humanoid-v5", {"include_cfrc_ext_in_observation": False, "contact_cost_range": (0.0, 0.1)}),
]


def gym(name: str, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return gymnasium.make(name, **options).unwrapped


def physics(env: Any) -> Physics:
    data, mass = env.data, env.model.body_mass
    com = mass @ data.xipos / mass.sum()
    arrays = (data.qpos, data.qvel, data.ctrl, data.qfrc_actuator, data.xpos[1], com)
    arrays += (data.cinert, data.cvel, data.cfrc_ext)
    return Physics(*(jnp.asarray(x, jnp.float32) for x in arrays))


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in TASKS), *OPTIONS])
def test_equals_gymnasium(name, options):
    task, env = TASKS[name], gym(name, **options)
    settings = {**task.settings, **options}
    rng, ends = np.random.default_rng(0), 0
    obs, _ = env.reset(seed=0)
    for _ in range(40):
        np.testing.assert_allclose(
            task.observation(physics(env), settings), obs, rtol=1e-5, atol=1e-5
        )
        place = float(task.place(physics(env)))
        action = rng.uniform(env.action_space.low, env.action_space.high)
        obs, reward, terminated, _, _ = env.step(action.astype(np.float32))
        after = physics(env)
        velocity = (task.place(after) - place) / env.dt
        healthy = jnp.asarray(task.healthy(after, settings))
        found = task.reward(Step(after, velocity, healthy, settings))
        np.testing.assert_allclose(found, reward, rtol=1e-4, atol=1e-3)
        assert bool(~healthy & settings.get("terminate_when_unhealthy", True)) == terminated
        ends += terminated
        if terminated:
            np.testing.assert_allclose(task.observation(after, settings), obs, rtol=1e-5, atol=1e-5)
            obs, _ = env.reset()
    if task.settings.get("terminate_when_unhealthy") is None and "Pendulum" not in name:
        assert ends == 0  # HalfCheetah


@pytest.mark.parametrize("name", TASKS)
def test_settings_and_models_are_gymnasiums(name):
    task, env = TASKS[name], gym(name)
    known = inspect.signature(type(env).__init__).parameters
    for setting, value in task.settings.items():
        assert known[setting].default == value, setting
    assert env.frame_skip == task.frame_skip
    assert env.fullpath.endswith(f"/{task.xml}")
    assert gymnasium.spec(name).max_episode_steps == 1000


@pytest.mark.parametrize(
    ("name", "changed", "healthy"),
    [
        ("Hopper-v5", {"qpos": [0, 0.7, 0, 0, 0, 0]}, False),  # bounds are open
        ("Hopper-v5", {"qpos": [0, 0.71, 0.19, 0, 0, 0]}, True),
        ("Hopper-v5", {"qpos": [0, 1.2, -0.2, 0, 0, 0]}, False),
        ("Hopper-v5", {"qvel": [0, 0, 0, 0, 0, 100.0]}, False),
        ("Hopper-v5", {"qpos": [500.0, 1.2, 0, 0, 0, 0]}, True),  # x is not looked at
        ("Walker2d-v5", {"qpos": [0, 2.0, *[0] * 7]}, False),
        ("Walker2d-v5", {"qpos": [0, 1.9, 0.99, *[0] * 6]}, True),
        ("Ant-v5", {"qpos": [0, 0, 1.0, 1, *[0] * 11]}, True),  # bounds are closed
        ("Ant-v5", {"qpos": [0, 0, 1.001, 1, *[0] * 11]}, False),
        ("Ant-v5", {"qvel": [np.nan, *[0] * 13]}, False),
        ("Humanoid-v5", {"qpos": [0, 0, 2.0, *[0] * 21]}, False),
        ("Humanoid-v5", {"qpos": [0, 0, 1.01, *[0] * 21]}, True),
        ("InvertedPendulum-v5", {"qpos": [0, 0.2]}, True),
        ("InvertedPendulum-v5", {"qpos": [0, -0.201]}, False),
        ("InvertedPendulum-v5", {"qvel": [np.inf, 0]}, False),
    ],
)
def test_health_at_its_bounds(name, changed, healthy):
    task, env = TASKS[name], gym(name)
    env.reset(seed=0)
    arrays = {k: jnp.asarray(v, jnp.float32) for k, v in changed.items()}
    assert bool(task.healthy(physics(env)._replace(**arrays), task.settings)) == healthy
