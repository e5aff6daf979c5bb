"""Observations of several arrays: order in the vector, episode ends, and rejected spaces."""

from collections import OrderedDict
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from rlx2_jax import envs
from rlx2_jax.envs.observations import Layout

pytestmark = pytest.mark.fast

NESTED = Dict(
    OrderedDict[str, Any](
        wheel=Box(-1, 1, (2, 2)),
        arm=Tuple([Box(0, 9, (), np.int64), Dict(b=Box(-1, 1, (1,)), a=Box(-1, 1, (3,)))]),
    )
)
SEEN = {
    "wheel": np.array([[5, 6], [7, 8]], np.float32),
    "arm": (0, {"b": np.array([4.0]), "a": np.array([1.0, 2.0, 3.0])}),
}


class Parts(gymnasium.Wrapper):
    """Hopper's observation in parts whose documented order gives Hopper's own vector."""

    def __init__(self, env: Any):
        super().__init__(env)
        inner = Dict(z=Box(-np.inf, np.inf, (3,)), b=Box(-np.inf, np.inf, (2, 2)))
        self.observation_space = Dict(x=Tuple([Box(-np.inf, np.inf, ()), inner]), y=self.tail)

    tail = Box(-np.inf, np.inf, (3,))

    def observation(self, obs):
        inner = {"z": obs[5:8], "b": obs[1:5].reshape(2, 2)}
        return {"y": obs[8:], "x": (obs[0], inner)}

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        return self.observation(obs), info

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self.observation(obs), reward, terminated, truncated, info


def hopper_in_parts(**kwargs):
    return Parts(gymnasium.make("Hopper-v5", **kwargs).unwrapped)


def test_the_order_is_that_of_sorted_keys_depth_first():
    layout = Layout("Some-v0", NESTED)
    paths = [leaf.path for leaf in layout.leaves]
    assert paths == [("arm", 0), ("arm", 1, "a"), ("arm", 1, "b"), ("wheel",)]
    row = np.zeros(layout.size, np.float32)
    layout.write(SEEN, row)
    np.testing.assert_array_equal(row, np.arange(9))


def test_the_order_is_gymnasiums_where_that_sorts():
    space = Dict(
        {"b": Box(-1, 1, (2, 3)), "a": Tuple([Box(-1, 1, (2,)), Box(-1, 1)]), "c": Box(0, 1)}
    )
    space.seed(0)
    layout = Layout("Some-v0", space)
    row = np.zeros(layout.size, np.float32)
    for _ in range(3):
        seen = space.sample()
        layout.write(seen, row)
        np.testing.assert_array_equal(row, gymnasium.spaces.flatten(space, seen))


def test_batches_are_laid_out_as_single_observations():
    layout = Layout("Some-v0", NESTED)
    batch = {
        "wheel": np.stack([SEEN["wheel"], SEEN["wheel"] + 10]),
        "arm": (
            np.array([0, 10]),
            {k: np.stack([v, v + 10]) for k, v in SEEN["arm"][1].items()},
        ),
    }
    rows = np.full((4, layout.size), -1, np.float32)
    layout.write_rows(batch, rows, np.array([3, 1]))
    np.testing.assert_array_equal(rows[[3, 1]], [np.arange(9), np.arange(9) + 10])
    assert (rows[[0, 2]] == -1).all()


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (SEEN | {"wheel": np.zeros(4)}, r"observation\['wheel'\] has shape \(4,\).*\(2, 2\)"),
        ({"arm": SEEN["arm"]}, r"the observation has keys \['arm'\] and lacks 'wheel'"),
        (SEEN | {"arm": (0,)}, r"observation\['arm'\] has <class 'tuple'> and lacks 1"),
        (np.zeros(9), "lacks 'arm'"),
    ],
)
def test_what_does_not_fit_the_space_is_refused(seen, message):
    layout = Layout("Some-v0", NESTED)
    with pytest.raises(ValueError, match=message):
        layout.write(seen, np.zeros(layout.size, np.float32))


def test_the_part_that_does_not_suit_is_named():
    space = Dict(a=Box(-1, 1), b=Dict(c=Discrete(3)))
    with pytest.raises(ValueError, match=r"Discrete\(3\) at the observation\['b'\]\['c'\]"):
        Layout("Some-v0", space)


def test_episodes_of_a_dictionary_task_are_those_of_the_flat_one(monkeypatch):
    """All of a time step, final observations and both kinds of ends included: what replay and its
    n-step windows see is the same."""
    spec = EnvSpec("tests/Parts-v0", entry_point=hopper_in_parts)
    monkeypatch.setitem(gymnasium.registry, "tests/Parts-v0", spec)
    parts = envs.make_host("tests/Parts-v0", 2, max_episode_steps=25)
    flat = envs.make_host("Hopper-v5", 2, max_episode_steps=25)
    assert parts.spec == flat.spec
    np.testing.assert_array_equal(parts.reset([3, 4]), flat.reset([3, 4]))
    rng, ends = np.random.default_rng(0), []
    for _ in range(150):
        action = rng.uniform(-1, 1, (2, 3)).astype(np.float32)
        step, same = parts.step(action), flat.step(action)
        for x, y in zip(step, same):
            np.testing.assert_array_equal(x, y)
        ended = step.terminated | step.truncated
        assert (step.obs[ended] != step.next_obs[ended]).any(axis=1).all()
        ends += [step.terminated.sum(), step.truncated.sum()]
    assert min(sum(ends[::2]), sum(ends[1::2])) >= 2


def test_deepmind_control_tasks_of_envpool():
    envpool: Any = pytest.importorskip("envpool")
    limit = 5
    tasks = envs.make_host("HumanoidStand-v1", 2, "envpool", max_episode_steps=limit)
    raw = envpool.make_gymnasium(
        "HumanoidStand-v1", num_envs=2, env_seed=[7, 8], max_episode_steps=limit
    )
    assert tasks.spec[:3] == (95, 21, limit)

    def flat(seen):
        return np.concatenate(
            [np.reshape(seen[k], (2, -1)) for k in sorted(seen)], axis=1, dtype=np.float32
        )

    np.testing.assert_array_equal(tasks.reset([7, 8]), flat(raw.reset()[0]))
    rng, step = np.random.default_rng(0), None
    for t in range(limit):
        action = rng.uniform(-1, 1, (2, 21)).astype(np.float32)
        step, (seen, reward, *_) = tasks.step(action), raw.step(action.astype(np.float64))
        np.testing.assert_allclose(step.next_obs, flat(seen), rtol=1e-6)
        np.testing.assert_allclose(step.reward, reward, rtol=1e-6)
        assert step.truncated.all() == (t == limit - 1) and not step.terminated.any()
    assert step is not None
    assert not np.isclose(step.obs, step.next_obs).all(axis=1).any()
    tasks.close()
    raw.close()
