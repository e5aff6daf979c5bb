"""The EnvPool backend, on real tasks because EnvPool has no others."""

from typing import Any

import envpool
import numpy as np
import pytest

from rlx2_jax import envs

pytestmark = pytest.mark.fast


def make(env_id: str, num_envs: int, **options: Any) -> Any:
    return envs.make_host(env_id, num_envs, backend="envpool", **options)


def actions(tasks, t):
    shape = (tasks.num_envs, tasks.spec.action_dim)
    return np.random.default_rng(t).uniform(-1, 1, shape).astype(np.float32)


def roll(tasks, begin, end):
    return [tasks.step(actions(tasks, t)) for t in range(begin, end)]


@pytest.mark.parametrize(
    ("env_id", "sizes"),
    [("Hopper-v3", (11, 3)), ("Ant-v3", (111, 8)), ("Hopper-v4", (11, 3)), ("Ant-v5", (105, 8))],
)
def test_tasks_of_every_version(env_id, sizes):
    tasks = make(env_id, 2)
    assert tasks.spec[:3] == (*sizes, 1000)
    assert tasks.spec[3:] == ((-1.0,) * sizes[1], (1.0,) * sizes[1])
    assert tasks.reset([0, 1]).shape == (2, sizes[0])
    step = roll(tasks, 0, 1)[0]
    assert [field.dtype for field in step] == ["f4", "f4", "f4", "?", "?"]
    tasks.close()


def test_truncation_gives_the_final_observation_and_no_fake_step():
    limit = 20
    tasks, uncut = make("HalfCheetah-v5", 2, max_episode_steps=limit), make("HalfCheetah-v5", 2)
    raw = envpool.make_gymnasium(
        "HalfCheetah-v5", num_envs=2, env_seed=[3, 4], max_episode_steps=limit
    )
    raw.reset()
    np.testing.assert_array_equal(tasks.reset([3, 4]), uncut.reset([3, 4]))
    step = None
    for t in range(limit):
        step, long = tasks.step(actions(tasks, t)), uncut.step(actions(tasks, t))
        raw.step(actions(tasks, t).astype(np.float64))
        np.testing.assert_array_equal(step.next_obs, long.next_obs)
        assert step.truncated.all() == (t == limit - 1)
        assert not step.terminated.any()
    # EnvPool's next step ignores the action and returns the start that is already in `obs`.
    fake = raw.step(np.ones((2, 6)))
    assert step is not None
    np.testing.assert_array_equal(step.obs, fake[0].astype(np.float32))
    assert not np.array_equal(step.obs, step.next_obs)
    for t in range(5):
        step = tasks.step(actions(tasks, t))
        real = raw.step(actions(tasks, t).astype(np.float64))
        np.testing.assert_array_equal(step.next_obs, real[0].astype(np.float32))
        np.testing.assert_array_equal(step.reward, real[1])


def test_termination_gives_the_final_observation():
    tasks = make("InvertedPendulum-v5", 3)
    tasks.reset([0, 1, 2])
    ended = 0
    for t in range(200):
        step = tasks.step(actions(tasks, t))
        angle = np.abs(step.next_obs[:, 1])
        np.testing.assert_array_equal(step.terminated, angle > 0.2)
        assert not step.truncated.any()
        assert (np.abs(step.obs[step.terminated]) <= 0.01).all()  # a start is within ±0.01
        running = ~step.terminated
        np.testing.assert_array_equal(step.obs[running], step.next_obs[running])
        ended += step.terminated.sum()
    assert ended > 10


def test_simultaneous_ends_are_distinguished_from_truncation():
    tasks = make("InvertedPendulum-v5", 1)
    tasks.reset([0])
    length = 1 + [bool(s.terminated[0]) for s in roll(tasks, 0, 100)].index(True)
    tasks = make("InvertedPendulum-v5", 1, max_episode_steps=length)
    tasks.reset([0])
    step = roll(tasks, 0, length)[-1]
    assert step.terminated[0] and step.truncated[0]


def test_actions_are_scaled_to_the_bounds():
    tasks = make("InvertedPendulum-v5", 1)  # its force is in [-3, 3]
    raw = envpool.make_gymnasium("InvertedPendulum-v5", num_envs=1, env_seed=[9])
    raw.reset()
    tasks.reset([9])
    step = tasks.step(np.array([[0.5]], np.float32))
    np.testing.assert_array_equal(step.next_obs, raw.step(np.array([[1.5]]))[0].astype("f4"))


def test_a_lane_depends_on_its_seed_alone():
    tasks, others = make("Hopper-v5", 3), make("Hopper-v5", 2)
    one, two = tasks.reset([7, 8, 7]), others.reset([8, 7])
    np.testing.assert_array_equal(one[[1, 0]], two)
    assert not np.array_equal(one[0], one[1])
    starts = {tuple(one[0])}
    for t in range(150):
        same = np.repeat(actions(others, t)[:1], 3, axis=0)
        step, other = tasks.step(same), others.step(same[:2])
        np.testing.assert_array_equal(step.obs[0], step.obs[2])
        for x, y in zip(step, other):
            np.testing.assert_array_equal(x[[1, 0]], y)
        if step.terminated[0]:
            starts.add(tuple(step.obs[0]))
    assert len(starts) > 3
    np.testing.assert_array_equal(tasks.reset([7, 8, 7]), one)


def test_inactive_environments_stay_as_they_are():
    tasks, all_active = make("Hopper-v5", 2), make("Hopper-v5", 2)
    first = tasks.reset([1, 2])
    all_active.reset([1, 2])
    for t in range(30):
        step = tasks.step(actions(tasks, t), active=np.array([True, False]))
        assert step.reward[1] == 0
        np.testing.assert_array_equal(step.obs[1], first[1])
    late = tasks.step(actions(tasks, 0), active=np.array([False, True]))
    np.testing.assert_array_equal(late.obs[1], all_active.step(actions(tasks, 0)).obs[1])


def test_restore_begins_new_episodes(tmp_path):
    tasks = make("Hopper-v5", 2)
    assert not tasks.exact_restore
    first = tasks.reset([0, 1])
    roll(tasks, 0, 30)
    np.savez(tmp_path / "state.npz", **tasks.state())
    with np.load(tmp_path / "state.npz", allow_pickle=False) as loaded:
        state = dict(loaded)
    obs = make("Hopper-v5", 2).restore(state)
    assert not np.array_equal(obs, first)
    np.testing.assert_array_equal(make("Hopper-v5", 2).restore(state), obs)
    assert (np.abs(obs[:, 0] - 1.25) < 0.006).all()  # Hopper's start, height 1.25 ± 0.005
    state["steps"] += 1
    assert not np.array_equal(make("Hopper-v5", 2).restore(state), obs)


def test_a_failure_carries_the_message():
    tasks = make("Hopper-v5", 2)
    tasks.reset([0, 1])
    tasks._pool.step = lambda *_: 1 / 0
    with pytest.raises(envs.EnvironmentFailure, match=r"environment \(Hopper-v5\) raised ZeroDiv"):
        roll(tasks, 0, 1)
