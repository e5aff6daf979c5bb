"""Environments named as module:Class, on the host and on the device."""

import sys
import types
from typing import Any, cast

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box

from rlx2_jax import envs
from rlx2_jax.envs.device import device_env

pytestmark = pytest.mark.fast


class Slide:
    """A point on a line that the action moves."""

    action_dim, max_episode_steps = 1, 50

    def __init__(self, speed: float = 0.1):
        self.speed = speed

    def reset(self, key):
        x = jax.random.uniform(key, (1,), minval=-1.0, maxval=1.0)
        return x, x

    def step(self, x, action):
        x = jnp.clip(x + self.speed * action, -1.0, 1.0)
        return x, x, -abs(x[0]), jnp.bool_(False)


class OnHost(gymnasium.Env):
    max_episode_steps = 7
    observation_space = Box(-1, 1, (2,))
    action_space = Box(-2, 2, (1,))

    def __init__(self, reward: float = 1.0):
        self.reward = reward

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), self.reward, False, False, {}


@pytest.fixture(autouse=True)
def module(monkeypatch):
    found = types.ModuleType("my_tasks")
    finished = lambda: device_env(cast(Any, Slide()))  # noqa: E731
    vars(found).update(Slide=Slide, OnHost=OnHost, finished=finished, number=3)
    monkeypatch.setitem(sys.modules, "my_tasks", found)


def test_a_class_on_the_device():
    env = envs.make_device("my_tasks:Slide", "jax", speed=0.5)
    assert env.spec[:3] == (1, 1, 50)
    state = env.reset(jax.random.key(0))
    _, step = env.step(state._replace(task=jnp.zeros(1)), jnp.ones(1))
    assert step.next_obs == 0.5
    assert envs.make_device("my_tasks:Slide", "jax", max_episode_steps=9).spec[2] == 9
    assert envs.make_device("my_tasks:Slide", "jax", max_episode_steps=None).spec[2] is None
    assert envs.make_device("my_tasks:finished", "jax").spec[2] == 50


def test_a_class_on_the_host():
    tasks = envs.make_host("my_tasks:OnHost", 2, reward=3.0)
    assert tasks.spec == (2, 1, 7, (-2.0,), (2.0,))
    tasks.reset([0, 1])
    steps = [tasks.step(np.zeros((2, 1))) for _ in range(7)]
    assert [bool(s.truncated.all()) for s in steps] == [False] * 6 + [True]
    assert (steps[0].reward == 3).all()
    assert envs.make_host("my_tasks:OnHost", 1, max_episode_steps=4).spec[2] == 4


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("Slide", {}, ValueError, "give yours as module:Class"),
        ("my_tasks:Nothing", {}, ValueError, "module 'my_tasks' has no such class or function"),
        ("my_tasks:number", {}, ValueError, "has no such class"),
        ("no_such_module:Slide", {}, ImportError, "importing 'no_such_module' failed"),
        ("my_tasks:OnHost", {}, TypeError, "OnHost has no action_dim: an environment has reset"),
        ("my_tasks:finished", {"max_episode_steps": 3}, ValueError, "sets its time limit itself"),
        ("my_tasks:Slide", {"max_episode_steps": 0}, ValueError, "at least 1, or None"),
    ],
)
def test_what_cannot_be_made_is_refused_with_advice(name, options, error, message):
    with pytest.raises(error, match=message):
        envs.make_device(name, "jax", **options)


def test_directories_that_name_a_class_need_consent():
    with pytest.raises(ValueError, match="imports the module 'my_tasks': add --allow_imports"):
        envs.check_import("my_tasks:Slide", allow=False)
    envs.check_import("my_tasks:Slide", allow=True)
