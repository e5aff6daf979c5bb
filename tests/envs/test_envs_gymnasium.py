"""The Gymnasium backend against plain `gymnasium.make`: seeds, failures, saved states."""

import signal
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box

from rlx2_jax import envs
from rlx2_jax.envs import snapshot
from rlx2_jax.envs.gymnasium import GymnasiumEnvs

MUJOCO = [
    "Hopper-v5",
    "Walker2d-v5",
    "HalfCheetah-v5",
    "Ant-v5",
    "Humanoid-v5",
    "InvertedPendulum-v5",
    "Hopper-v4",
    "Ant-v4",
]
MORE = ["Humanoid-v4", "Walker2d-v4", "HalfCheetah-v4", "InvertedPendulum-v4", "Swimmer-v5"]
MORE += ["Reacher-v5", "Reacher-v4", "Pusher-v5", "InvertedDoublePendulum-v5"]
MORE += ["HumanoidStandup-v5"]
CLASSIC = ["Pendulum-v1", "MountainCarContinuous-v0", "rlx2_jax/Termination-v0"]


class Faulty(gymnasium.Env):
    """Observes a random number and its square; raises in step or reset on request."""

    observation_space = Box(-10, 10, (2, 1))
    action_space = Box(0, 4, (1,))

    def __init__(self, length: int = 5):
        self.length = length
        self.fail_in: str | BaseException = ""
        self.replaced: dict[int, Any] = {}  # what `step` returns instead, by position

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.fail_in == "reset":
            raise RuntimeError("no new episode")
        self.left = self.length
        return self._observe(), {}

    def step(self, action):
        if self.fail_in == "step":
            raise RuntimeError("the simulator is unstable")
        if isinstance(self.fail_in, BaseException):
            raise self.fail_in
        self.left -= 1
        found = [self._observe(), float(action[0]), self.left == 0, False, {}]
        for i, value in self.replaced.items():
            found[i] = value
        return tuple(found)

    def close(self):
        if self.fail_in == "close":
            raise RuntimeError("no window to close")

    def _observe(self):
        x = self.np_random.uniform(-1, 1)
        return np.array([[x], [x**2]], np.float64)


@pytest.fixture(autouse=True, scope="module")
def faulty_id():
    gymnasium.register("tests/Faulty-v0", entry_point=lambda **kwargs: Faulty(**kwargs))
    yield
    del gymnasium.registry["tests/Faulty-v0"]


def actions(tasks, t):
    shape = (tasks.num_envs, tasks.spec.action_dim)
    return np.random.default_rng(t).uniform(-1, 1, shape).astype(np.float32)


def roll(tasks, begin, end):
    return [tasks.step(actions(tasks, t)) for t in range(begin, end)]


def assert_same(steps, others):
    for t, (step, other) in enumerate(zip(steps, others, strict=True)):
        for name, x, y in zip(step._fields, step, other):
            np.testing.assert_array_equal(x, y, f"{name} at step {t}")


def ends(steps):
    return sum(int((s.terminated | s.truncated).sum()) for s in steps)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("env_id", "limit"), [("Hopper-v5", 1000), ("Swimmer-v5", 40), ("Humanoid-v5", 1000)]
)
def test_equals_a_plain_gymnasium_loop(env_id, limit):
    tasks = envs.make_host(env_id, 2, max_episode_steps=limit)
    plain = [gymnasium.make(env_id, max_episode_steps=limit) for _ in range(2)]
    observation, action = plain[0].observation_space, plain[0].action_space
    assert isinstance(observation, Box) and isinstance(action, Box)
    assert tasks.spec[:3] == (*observation.shape, *action.shape, limit)
    np.testing.assert_array_equal(tasks.spec.action_low, action.low)
    np.testing.assert_array_equal(tasks.spec.action_high, action.high)
    first = np.stack([env.reset(seed=seed)[0] for env, seed in zip(plain, [5, 6])])
    np.testing.assert_array_equal(tasks.reset([5, 6]), first.astype(np.float32))
    seen = 0
    for t in range(150):
        step = tasks.step(actions(tasks, t))
        for i, env in enumerate(plain):
            obs, reward, terminated, truncated, _ = env.step(actions(tasks, t)[i] * action.high)
            np.testing.assert_array_equal(step.next_obs[i], obs.astype(np.float32))
            assert step.reward[i] == np.float32(reward)
            assert (step.terminated[i], step.truncated[i]) == (terminated, truncated)
            if terminated or truncated:
                seen += 1
                obs, _ = env.reset()
            np.testing.assert_array_equal(step.obs[i], obs.astype(np.float32))
    assert seen >= 4


@pytest.mark.fast
def test_making_tasks_is_quiet(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    envs.make_host("HalfCheetah-v5", 2)
    envs.make_host("HalfCheetah-v4", 2)
    assert not list(tmp_path.iterdir())  # MuJoCo would leave a log here
    assert capfd.readouterr() == ("", "")


@pytest.mark.fast
def test_time_limit_of_the_registry_is_kept():
    tasks = envs.make_host("Reacher-v5", 1)
    assert tasks.spec.max_episode_steps == 50
    tasks.reset([0])
    truncated = [bool(s.truncated[0]) for s in roll(tasks, 0, 100)]
    assert [t for t, cut in enumerate(truncated) if cut] == [49, 99]
    assert envs.make_host("Hopper-v5", 1, max_episode_steps=None).spec.max_episode_steps is None


@pytest.mark.fast
def test_a_lane_depends_on_its_seed_alone():
    tasks, others = envs.make_host("Hopper-v5", 3), envs.make_host("Hopper-v5", 2)
    one, two = tasks.reset([7, 8, 7]), others.reset([8, 7])
    np.testing.assert_array_equal(one[[1, 0]], two)
    assert not np.array_equal(one[0], one[1])
    for t in range(120):
        same = np.repeat(actions(others, t)[:1], 3, axis=0)
        step, other = tasks.step(same), others.step(same[:2])
        np.testing.assert_array_equal(step.obs[0], step.obs[2])
        for x, y in zip(step, other):
            np.testing.assert_array_equal(x[[1, 0]], y)
    np.testing.assert_array_equal(tasks.reset([7, 8, 7]), one)


@pytest.mark.fast
def test_later_episodes_have_different_starts():
    tasks = envs.make_host("InvertedPendulum-v5", 1)
    starts = [tasks.reset([0])[0]]
    starts += [s.obs[0] for s in roll(tasks, 0, 200) if s.terminated[0]]
    assert len(starts) > 5
    assert len(np.unique(starts, axis=0)) == len(starts)


@pytest.mark.fast
def test_inactive_environments_stay_as_they_are():
    tasks, all_active = (envs.make_host("Hopper-v5", 2) for _ in range(2))
    first = tasks.reset([1, 2])
    all_active.reset([1, 2])
    for t in range(60):
        step = tasks.step(actions(tasks, t), active=np.array([True, False]))
        assert step.reward[1] == 0
        np.testing.assert_array_equal(step.obs[1], first[1])
    late = tasks.step(actions(tasks, 0), active=np.array([False, True]))
    early = all_active.step(actions(tasks, 0))
    np.testing.assert_array_equal(late.obs[1], early.obs[1])


@pytest.mark.fast
def test_what_was_handed_out_never_changes():
    tasks = envs.make_host("InvertedPendulum-v5", 2)
    handed = [tasks.reset([3, 4])]
    kept = [handed[0].copy()]
    for step in roll(tasks, 0, 100):
        handed += step
        kept += [field.copy() for field in step]
    for x, y in zip(handed, kept):
        np.testing.assert_array_equal(x, y)
    for obs in (handed[0], *roll(tasks, 0, 1)[0][:2], tasks.restore(tasks.state())):
        with pytest.raises(ValueError, match="read-only"):
            obs[:] = 0


def check_exact(env_id, before, after, tmp_path, **options):
    """Runs, saves through a file without pickle, and continues in a new object bit for bit."""
    tasks = envs.make_host(env_id, 2, **options)
    assert tasks.exact_restore
    tasks.reset([11, 12])
    roll(tasks, 0, before)
    state: Any = tasks.state()
    assert all(len(array) == 2 and array.dtype != object for array in state.values())
    np.savez(tmp_path / "state.npz", **state)
    expected = roll(tasks, before, before + after)
    with np.load(tmp_path / "state.npz", allow_pickle=False) as loaded:
        others = envs.make_host(env_id, 2, **options)
        np.testing.assert_array_equal(others.restore(dict(loaded)), state["obs"])
    assert_same(roll(others, before, before + after), expected)
    for name, array in tasks.state().items():
        np.testing.assert_array_equal(others.state()[name], array, name)
    assert ends(expected) >= 2
    tasks.close()
    others.close()


class Pixels(gymnasium.Env):
    """Observes an image of one dtype, whose shape may differ from its space's."""

    action_space = Box(-1, 1, (1,))

    def __init__(self, dtype: Any = np.uint8, shape: tuple[int, ...] = (2, 3)):
        self.observation_space = Box(0, 1, (2, 3), dtype)
        self.shape = shape

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones((2, 3), self.observation_space.dtype), {}

    def step(self, action):
        return np.ones(self.shape, self.observation_space.dtype), 0.0, False, False, {}


@pytest.mark.fast
@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.bool_, np.float16, np.float64])
def test_observations_of_any_dtype_are_read_as_float32(dtype, monkeypatch):
    spec = EnvSpec("tests/Pixels-v0", entry_point=lambda **k: Pixels(**k))
    monkeypatch.setitem(gymnasium.registry, "tests/Pixels-v0", spec)
    tasks = envs.make_host("tests/Pixels-v0", 1, dtype=dtype)
    assert tasks.spec.obs_dim == 6
    for obs in (tasks.reset([0]), tasks.step(np.zeros((1, 1))).obs):
        assert obs.dtype == np.float32
        np.testing.assert_array_equal(obs, np.ones((1, 6)))


@pytest.mark.fast
@pytest.mark.parametrize("shape", [(), (1, 3), (3,), (6,), (2, 1)])
def test_an_observation_of_another_shape_is_a_failure_and_not_broadcast(shape, monkeypatch):
    spec = EnvSpec("tests/Pixels-v0", entry_point=lambda **k: Pixels(**k))
    monkeypatch.setitem(gymnasium.registry, "tests/Pixels-v0", spec)
    tasks = envs.make_host("tests/Pixels-v0", 1, shape=shape)
    tasks.reset([0])
    with pytest.raises(envs.EnvironmentFailure, match=r"its space has \(2, 3\): make the task"):
        tasks.step(np.zeros((1, 1)))


@pytest.mark.fast
@pytest.mark.parametrize("env_id", MUJOCO)
def test_mujoco_continues_bit_for_bit(env_id, tmp_path):
    check_exact(env_id, 70, 250, tmp_path, max_episode_steps=90)


@pytest.mark.fast
@pytest.mark.parametrize("env_id", CLASSIC)
def test_other_exact_tasks_continue_bit_for_bit(env_id, tmp_path):
    options = {} if env_id.startswith("rlx2_jax/") else {"max_episode_steps": 40}
    check_exact(env_id, 50, 100, tmp_path, **options)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", MUJOCO + MORE)
@pytest.mark.parametrize("before", [1, 1000])
def test_every_mujoco_task_continues_bit_for_bit(env_id, before, tmp_path):
    check_exact(env_id, before, 1100, tmp_path)


@pytest.mark.fast
def test_a_state_can_be_restored_over_a_running_environment():
    tasks = envs.make_host("Ant-v5", 1)
    tasks.reset([0])
    roll(tasks, 0, 30)
    state = tasks.state()
    expected = roll(tasks, 30, 60)
    tasks.restore(state)
    assert_same(roll(tasks, 30, 60), expected)


@pytest.mark.fast
def test_a_state_of_another_size_is_refused():
    state = envs.make_host("Hopper-v5", 2).state()
    with pytest.raises(ValueError, match="state has 2 environments, expected 3"):
        envs.make_host("Hopper-v5", 3).restore(state)


@pytest.mark.fast
def test_random_streams_survive_as_words():
    rng = np.random.default_rng(5)
    rng.integers(0, 9, dtype=np.uint32)  # leaves half a word over
    again = snapshot.load_rng(snapshot.save_rng(rng))
    assert again.bit_generator.state == rng.bit_generator.state
    assert snapshot.save_rng(rng).dtype == np.uint64


@pytest.mark.fast
def test_unknown_tasks_begin_new_episodes_on_restore():
    tasks = envs.make_host("tests/Faulty-v0", 2)
    assert not tasks.exact_restore
    assert tasks.spec[:3] == (2, 1, None)
    first = tasks.reset([0, 1])
    assert first.shape == (2, 2)
    step = roll(tasks, 0, 3)[-1]
    state = tasks.state()
    others = envs.make_host("tests/Faulty-v0", 2)
    obs = others.restore(state)
    assert not np.isin(obs, [first, step.obs]).any()
    lengths = [t for t, s in enumerate(roll(others, 0, 10)) if s.terminated.all()]
    assert lengths == [4, 9]
    np.testing.assert_array_equal(envs.make_host("tests/Faulty-v0", 2).restore(state), obs)
    assert not np.isin(envs.make_host("tests/Faulty-v0", 2).restore(others.state()), obs).any()


@pytest.mark.fast
def test_a_wrapped_task_does_not_claim_to_be_exact():
    class Opaque(gymnasium.ObservationWrapper):
        def observation(self, observation):
            return observation

    spec = gymnasium.spec("Hopper-v5")
    gymnasium.register(
        "tests/Wrapped-v0", entry_point=lambda **_: Opaque(gymnasium.make(spec).unwrapped)
    )
    try:
        assert not envs.make_host("tests/Wrapped-v0", 1).exact_restore
    finally:
        del gymnasium.registry["tests/Wrapped-v0"]


@pytest.mark.fast
@pytest.mark.parametrize("where", ["step", "reset"])
def test_a_failure_names_the_environment_and_spares_the_others(where):
    tasks = GymnasiumEnvs("tests/Faulty-v0", 3, length=1)
    tasks.reset([0, 1, 2])
    task = tasks.envs[1].unwrapped
    assert isinstance(task, Faulty)
    task.fail_in = where
    with pytest.raises(envs.EnvironmentFailure) as caught:
        tasks.step(np.full((3, 1), 0.5, np.float32))
    failure = caught.value
    assert failure.index == 1
    assert isinstance(failure.__cause__, RuntimeError)
    message = {"step": "the simulator is unstable", "reset": "no new episode"}[where]
    assert str(failure) == f"environment 1 (tests/Faulty-v0) raised RuntimeError: {message}"
    assert tasks.state()["elapsed"].tolist() == [0, -1, 0]
    assert tasks.state()["steps"].tolist() == [1, 1 if where == "reset" else 0, 1]


class Unprintable(BaseException):
    def __str__(self):
        raise ValueError("no text")


@pytest.mark.fast
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SystemExit(5), "SystemExit: 5"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
        (GeneratorExit("odd"), "GeneratorExit: odd"),
        (Unprintable(), "Unprintable"),
    ],
)
def test_a_task_can_neither_end_the_process_nor_fail_when_it_is_closed(error, text):
    tasks = GymnasiumEnvs("tests/Faulty-v0", 2)
    tasks.reset([0, 1])
    task = tasks.envs[1].unwrapped
    assert isinstance(task, Faulty)
    task.fail_in = error
    before = signal.signal(signal.SIGINT, lambda *_: None)  # as in a run, which stops in order
    try:
        with pytest.raises(envs.EnvironmentFailure, match=rf"environment 1 .* raised {text}$"):
            tasks.step(np.zeros((2, 1), np.float32))
    finally:
        signal.signal(signal.SIGINT, before)
    task.fail_in = "close"
    tasks.close()


@pytest.mark.fast
def test_the_user_interrupts_where_python_handles_the_signal():
    tasks = GymnasiumEnvs("tests/Faulty-v0", 1)
    tasks.reset([0])
    task = tasks.envs[0].unwrapped
    assert isinstance(task, Faulty)
    task.fail_in = KeyboardInterrupt()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            tasks.step(np.zeros((1, 1), np.float32))
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.fast
def test_numbers_beyond_float32_are_infinite_without_a_warning(monkeypatch):
    tasks = GymnasiumEnvs("tests/Faulty-v0", 1)
    tasks.reset([0])
    huge = np.full((2, 1), -1e300)
    monkeypatch.setattr(tasks.envs[0], "step", lambda action: (huge, 1e300, False, False, {}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = tasks.step(np.zeros((1, 1), np.float32))
    assert step.reward.tolist() == [np.inf] and step.obs.tolist() == [[-np.inf, -np.inf]]


@pytest.mark.fast
def test_a_failed_environment_begins_anew_after_restore(monkeypatch):
    tasks, others, whole = (GymnasiumEnvs("Hopper-v5", 2) for _ in range(3))
    tasks.reset([0, 1])
    whole.reset([0, 1])
    roll(tasks, 0, 10)
    monkeypatch.setattr(tasks.envs[0], "step", lambda action: 1 / 0)
    with pytest.raises(envs.EnvironmentFailure, match="ZeroDivisionError"):
        roll(tasks, 10, 11)
    obs = others.restore(tasks.state())
    np.testing.assert_array_equal(obs[1], roll(whole, 0, 11)[-1].obs[1])
    assert abs(obs[0, 0] - 1.25) < 0.006  # Hopper's start, height 1.25 ± 0.005
    assert others.state()["elapsed"].tolist() == [0, 11]


@pytest.mark.fast
@pytest.mark.parametrize("error", [RuntimeError("no licence"), SystemExit(3), StopIteration()])
def test_whatever_a_constructor_raises_is_a_failure_of_the_environment(error):
    def make(**_):
        raise error

    gymnasium.register("tests/Closed-v0", entry_point=make)
    try:
        with pytest.raises(envs.EnvironmentFailure, match=type(error).__name__) as caught:
            envs.make_host("tests/Closed-v0", 1)
    finally:
        del gymnasium.registry["tests/Closed-v0"]
    assert caught.value.error is error


@pytest.mark.fast
@pytest.mark.parametrize(
    ("position", "value", "text"),
    [
        (1, None, "TypeError"),
        (1, np.ones(1), r"the reward has shape \(1,\)"),
        (1, 1j, "TypeError"),
        (2, np.array([True, False]), "ValueError"),
        (2, "False", "terminated or truncated is 'False': make the task return a boolean"),
        (3, float("nan"), "terminated or truncated is nan"),
        (0, None, r"the observation has shape \(\)"),
        (0, np.ones((2, 1), np.complex64), "the observation is complex"),
    ],
)
def test_steps_that_return_something_else_are_failures(position, value, text):
    tasks = GymnasiumEnvs("tests/Faulty-v0", 1)
    tasks.reset([0])
    task = tasks.envs[0].unwrapped
    assert isinstance(task, Faulty)
    task.replaced = {position: value}
    with pytest.raises(envs.EnvironmentFailure, match=text):
        tasks.step(np.zeros((1, 1), np.float32))
