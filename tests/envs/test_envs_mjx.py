"""Gymnasium's tasks on MJX: steps, starts and ends as Gymnasium has them, restarts, mistakes."""

import importlib.util
import sys
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx2_jax as rlx2
from rlx2_jax import envs
from rlx2_jax.envs import mjx
from rlx2_jax.envs.mjx import Simulation, State
from rlx2_jax.envs.mujoco_tasks import TASKS

# Bounds on the errors of observation and reward over the steps below: velocities are divided by
# small times, and contact forces jump where contacts begin and end.
ERRORS = {"InvertedPendulum": (1e-5, 1e-6), "Hopper": (1e-3, 1e-3), "HalfCheetah": (2e-2, 1e-2)}
ERRORS |= {"Walker2d": (1e-2, 1e-2), "Ant": (0.5, 0.05), "Humanoid": (5.0, 0.1)}
FAST = ("InvertedPendulum-v5", "Hopper-v5")
STEPS, LIMIT = 24, 6


def gym(name: str) -> Any:
    return gymnasium.make(name, disable_env_checker=True).unwrapped


def roll(name: str, task: Simulation) -> Any:
    """Steps of Gymnasium's task under random actions: MJX states, actions, and what came of them;
    and the starts of its episodes."""
    env, rng, rows, starts = gym(name), np.random.default_rng(0), [], []
    low, high = env.action_space.low, env.action_space.high
    start = lambda obs: starts.append((env.data.qpos.copy(), env.data.qvel.copy(), obs))  # noqa: E731
    start(env.reset(seed=1)[0])
    for _ in range(STEPS):
        data = env.data
        com = env.model.body_mass @ data.xipos / env.model.body_mass.sum()
        fields = {"qpos": data.qpos, "torso": data.xpos[1], "com": com}
        place = task.task.place(mjx.Physics(*[fields.get(f) for f in mjx.Physics._fields]))  # pyright: ignore[reportArgumentType]
        before = State(data.qpos.copy(), data.qvel.copy(), data.qacc_warmstart.copy(), place)
        action = rng.uniform(-1, 1, low.shape).astype(np.float32)
        obs, reward, terminated, _, _ = env.step((high + low) / 2 + (high - low) / 2 * action)
        rows.append((before, action, obs, reward, terminated))
        if terminated:
            start(env.reset()[0])
    stack = lambda *x: np.stack([np.asarray(y, np.float32) for y in x])  # noqa: E731
    return jax.tree.map(stack, *rows), jax.tree.map(stack, *starts)


@pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")
@pytest.mark.parametrize(
    "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in TASKS]
)
def test_steps_equal_gymnasiums(name):
    with jax.numpy_rank_promotion("allow"):
        task = Simulation(name, "jax")
        (before, action, obs, reward, terminated), starts = roll(name, task)
        _, found, gained, ended = jax.jit(jax.vmap(task.step))(before, action)
        _, first = jax.jit(jax.vmap(task.begin))(*starts[:2])
    for_obs, for_reward = ERRORS[name.partition("-")[0]]
    np.testing.assert_allclose(found, obs, rtol=1e-3, atol=for_obs)
    np.testing.assert_allclose(gained, reward, rtol=1e-3, atol=for_reward)
    np.testing.assert_array_equal(ended, terminated.astype(bool))
    np.testing.assert_allclose(first, starts[2], rtol=1e-4, atol=1e-5)
    assert (task.obs_dim, task.action_dim) == (obs.shape[1], action.shape[1])


@pytest.mark.parametrize("tilt", [0.0, 20.0, 50.0, 85.0])
def test_friction_of_capsules_at_any_angle(tilt):
    """A capsule slides on a plane; `tilt` is measured from the vertical."""
    mujoco, mjx_ = mjx._import()
    model = mujoco.MjModel.from_xml_string(f"""
        <mujoco><worldbody>
          <geom type="plane" size="1 1 1"/>
          <body pos="0 0 {0.1 + 0.3 * np.cos(np.radians(tilt)) - 0.005}" euler="{tilt} 0 30">
            <freejoint/><geom type="capsule" size="0.1 0.3"/>
          </body>
        </worldbody></mujoco>""")
    data = mujoco.MjData(model)
    data.qvel[:] = [1.0, 0.5, 0.0, 0.0, 0.0, 0.0]
    mujoco.mj_forward(model, data)
    with jax.numpy_rank_promotion("allow"):
        put, start = mjx_.put_model(model, impl="jax"), mjx_.make_data(model, impl="jax")
        with mjx._capsule_frames():
            found = jax.jit(mjx_.forward)(put, start.replace(qvel=jnp.asarray(data.qvel)))
    assert data.ncon >= 1 and np.abs(data.qacc[:2]).max() > 1
    np.testing.assert_allclose(found.qacc, data.qacc, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    "name",
    [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in TASKS if "v5" in n],
)
def test_steps_and_starts_lower_for_accelerators(name):
    """The whole environment: physics, restart and time limit."""
    env = envs.make_device(name, "mjx", impl="jax")
    states = jax.eval_shape(jax.vmap(env.reset), jax.random.split(jax.random.key(0), 2))
    actions = jnp.zeros((2, env.spec.action_dim))
    traced = jax.jit(jax.vmap(env.step)).trace(states, actions)
    for platform in ("cuda", "tpu"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert "stablehlo.while" in text and "lapack" not in text


@pytest.fixture(scope="module")
def run() -> Any:
    """Two pendulums, without and with force, over several episodes: [T, 2, ...]."""
    env = envs.make_device("InvertedPendulum-v5", "mjx", max_episode_steps=LIMIT)
    assert env.spec == (4, 1, LIMIT, (-3.0,), (3.0,))
    push = jnp.array([[0.0], [1.0]])

    @jax.jit
    def rollout(state):
        step = lambda state, _: jax.vmap(env.step)(state, push)  # noqa: E731
        return jax.lax.scan(step, state, None, STEPS)

    half, first = rollout(jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 2)))
    _, second = rollout(half)
    return jax.tree.map(lambda *x: np.concatenate(x), first, second), half, rollout


def test_ends_and_final_observations(run):
    steps, _, _ = run
    late = np.arange(1, 2 * STEPS + 1) % LIMIT == 0
    np.testing.assert_array_equal(steps.truncated[:, 0], late)
    np.testing.assert_array_equal(steps.terminated, np.abs(steps.next_obs[..., 1]) > 0.2)
    assert steps.terminated[:, 1].sum() >= 4 and not steps.terminated[:, 0].any()
    np.testing.assert_array_equal(steps.reward, ~steps.terminated)
    ended = steps.terminated | steps.truncated
    np.testing.assert_array_equal(steps.obs[~ended], steps.next_obs[~ended])
    assert (np.abs(steps.obs[ended]) <= 0.01).all()  # Gymnasium's first states
    assert len(np.unique(steps.obs[ended], axis=0)) == ended.sum()  # fresh each time


def test_state_is_plain_arrays_that_continue_exactly(run, tmp_path):
    steps, half, rollout = run
    leaves, tree = jax.tree.flatten(half)
    np.savez(tmp_path / "state.npz", *map(np.asarray, leaves))
    with np.load(tmp_path / "state.npz", allow_pickle=False) as loaded:
        restored = jax.tree.unflatten(tree, [jnp.asarray(loaded[k]) for k in loaded.files])
    for x, y in zip(rollout(restored)[1], steps):
        np.testing.assert_array_equal(x, y[STEPS:])


def test_a_diverged_simulation_begins_again():
    with jax.numpy_rank_promotion("allow"):
        task = Simulation("InvertedPendulum-v5", "jax")
        state, _ = task.begin(jnp.zeros(2), jnp.array([jnp.nan, 0.0]))
        state, obs, reward, terminated = jax.jit(task.step)(state, jnp.zeros(1))
    np.testing.assert_array_equal(obs, np.zeros(4))
    assert (reward, terminated) == (1, False)
    assert all(np.isfinite(x).all() for x in state)


def test_first_states_have_gymnasiums_distribution():
    env = gym("HalfCheetah-v5")
    starts = np.array([env.reset(seed=i)[0] for i in range(300)])
    with jax.numpy_rank_promotion("allow"):
        task = Simulation("HalfCheetah-v5", "jax")
        keys = jax.random.split(jax.random.key(0), 300)
        found = np.asarray(jax.jit(jax.vmap(lambda key: task.reset(key)[1]))(keys))
    assert (np.abs(found[:, :8]) <= 0.1).all() and (np.abs(found[:, 8:]) > 0.1).any()
    np.testing.assert_allclose(found.std(axis=0), starts.std(axis=0), rtol=0.2)
    np.testing.assert_allclose(found.mean(axis=0), starts.mean(axis=0), atol=0.03)


@pytest.mark.slow
def test_training_as_one_function():
    env = envs.make_device("InvertedPendulum-v5", "mjx", max_episode_steps=20)
    config = rlx2.make_config(env, steps=60, warmup=20, hidden=(8, 8), batch_size=8)
    train = rlx2.make_train(env, config, rlx2.Lane(method="rlx2"), evaluations=2, episodes=2)
    result = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), 2))
    assert result.metrics["return"].shape == (2, 2)
    assert (result.metrics["return"] >= 1).all()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("warp") is None, reason="needs warp-lang")
@pytest.mark.parametrize("name", ["Hopper-v5", "Ant-v5"])
def test_warp_equals_plain_jax(name):
    with jax.numpy_rank_promotion("allow"):
        plain, warp = Simulation(name, "jax"), Simulation(name, "warp")
        (before, action, *_), _ = roll(name, plain)
        _, *expected = jax.jit(jax.vmap(plain.step))(before, action)
        _, *found = jax.jit(jax.vmap(warp.step))(before, action)
    for_obs, for_reward = ERRORS[name.partition("-")[0]]
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-3, atol=for_obs)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-3, atol=for_reward)
    np.testing.assert_array_equal(found[2], expected[2])


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("Hoper-v5", {}, ValueError, "no environment 'Hoper-v5'; did you mean Hopper-v5"),
        ("Swimmer-v5", {}, ValueError, "The MJX backend has no environment"),
        ("Hopper-v5", {"xml_file": "x.xml"}, ValueError, "no option xml_file on MJX; it has ctrl_"),
        ("InvertedPendulum-v4", {"reset_noise_scale": 1}, ValueError, "it has none"),
        ("Hopper-v5", {"impl": "cpp"}, ValueError, "impl is 'cpp': use one of"),
        ("Hopper-v5", {"max_episode_steps": 0}, ValueError, "at least 1, or None"),
    ],
)
def test_mistakes_are_refused_with_advice(name, options, error, message):
    with pytest.raises(error, match=message):
        envs.make_device(name, "mjx", **options)


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco.mjx", None)
    with pytest.raises(ImportError, match=r"pip install 'rlx2_jax\[mjx\]'"):
        envs.make_device("Hopper-v5", "mjx")
    monkeypatch.setitem(sys.modules, "mujoco_playground", None)
    with pytest.raises(ImportError, match=r"pip install 'rlx2_jax\[playground\]'"):
        envs.make_device("HumanoidStand", "playground")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install warp-lang"):
        mjx._implementation("warp")
