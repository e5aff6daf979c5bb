"""The factory, the shared checks, and their error messages."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from rlx2_jax import envs
from rlx2_jax.envs.base import check_seeds, fresh_seeds
from rlx2_jax.envs.spaces import Boxes

pytestmark = pytest.mark.fast

Box = gymnasium.spaces.Box


def test_importing_the_package_imports_no_backend():
    code = (
        "import sys, rlx2_jax.envs; "
        "loaded = {'gymnasium', 'mujoco', 'envpool', 'brax'} & set(sys.modules); "
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("package", "make"),
    [
        ("envpool", lambda: envs.make_host("Hopper-v5", 1, backend="envpool")),
        ("brax", lambda: envs.make_device("hopper")),
    ],
)
def test_a_missing_package_names_the_extra_to_install(monkeypatch, package, make):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"rlx2_jax.envs.{package}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install 'rlx2_jax\[{package}\]'"):
        make()


@pytest.mark.parametrize(
    ("env_id", "backend", "message"),
    [
        ("Hopper-v3", "gymnasium", "Hopper-v5, Hopper-v4.*--env_backend=envpool for -v3"),
        ("InvertedPendulum-v2", "gymnasium", "InvertedPendulum-v5.*--env_backend=envpool"),
        ("Hoper-v5", "gymnasium", "did you mean Hopper-v5"),
        ("hopper", "gymnasium", "did you mean Hopper-v"),
        ("Hopper", "gymnasium", "did you mean Hopper-v5, Hopper-v4"),
        ("nothing/LikeIt-v0", "gymnasium", "Gymnasium has no environment 'nothing/LikeIt-v0'"),
        ("rlx2_jax/Truncated-v0", "gymnasium", "rlx2_jax/Truncation-v0"),
        ("Hopper-v2", "envpool", "EnvPool has no .*Hopper-v5, Hopper-v4, Hopper-v3"),
        ("CartPole-v1", "gymnasium", r"Discrete\(2\).*continuous"),
        ("CartPole-v1", "envpool", "Discrete.*continuous"),
        ("Hopper-v5", "brax", r"'gymnasium', 'envpool'\); 'brax' is made by make_device"),
        ("Hopper-v5", "gym", r"unknown env_backend 'gym', expected one of \('gymnasium', 'envpool"),
    ],
)
def test_a_wrong_id_or_backend_is_refused_with_advice(env_id, backend, message):
    with pytest.raises(ValueError, match=message):
        envs.make_host(env_id, 1, backend)


def test_wrong_device_names_are_refused_with_advice():
    with pytest.raises(ValueError, match="Brax has no environment 'hoper'; did you mean hopper"):
        envs.make_device("hoper")
    with pytest.raises(
        ValueError, match=r"expected one of \('brax', 'mjx'.*; 'envpool' is made by make_h"
    ):
        envs.make_device("hopper", "envpool")
    with pytest.raises(ValueError, match="did you mean rlx2_jax/Truncation-v0"):
        envs.make_device("rlx2_jax/Truncated-v0")


def test_no_environments_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        envs.make_host("Hopper-v5", 0)


def with_bounds(low, high):
    """A box that becomes invalid only after Gymnasium has checked it."""
    box = Box(-1, 1, (2,))
    box.low, box.high = np.full(2, low, np.float32), np.full(2, high, np.float32)
    return box


def of_dtype(dtype):
    """A box with a dtype that Gymnasium or its types reject."""
    box = Box(-1, 1, (2,))
    box.dtype = np.dtype(dtype)
    return box


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (Box(-1, 1, (3,)), gymnasium.spaces.Discrete(4), r"Discrete\(4\).*continuous-control"),
        (gymnasium.spaces.Discrete(4), Box(-1, 1, (2,)), r"Discrete\(4\).*FlattenObservation"),
        (gymnasium.spaces.Dict(a=gymnasium.spaces.Discrete(2)), Box(-1, 1), "Discrete.*Flatten"),
        (Box(-1, 1, (3,)), Box(-np.inf, 1, (2,)), "-inf.*must be finite.*RescaleAction"),
        (Box(-1, 1, (3,)), with_bounds(np.nan, 1), "nan.*must be finite"),
        (Box(-1, 1, (3,)), with_bounds(1, -1), "low must not be above high"),
        (Box(-1, 1, (3,)), Box(1, 1, (2,)), "only one action is possible"),
        (Box(-1, 1, (3,)), Box(-5, 5, (2,), np.int64), "dtype int64.*TransformAction.*rounds"),
        (Box(-1, 1, (3,)), Box(0, 255, (2,), np.uint8), "dtype uint8.*TransformAction"),
        (Box(-1, 1, (3,)), of_dtype(bool), "dtype bool.*TransformAction"),
        (Box(-1, 1, (3,)), Box(-1, 1, (0,)), "an action of size 0"),
        (Box(-1, 1, (3, 0)), Box(-1, 1, (2,)), "an observation of size 0"),
        (of_dtype(object), Box(-1, 1, (2,)), "dtype object.*real numbers.*TransformObservation"),
        (of_dtype(complex), Box(-1, 1, (2,)), "dtype complex128.*real numbers"),
        (Box(-1, 1, (3,)), of_dtype(object), "dtype object.*TransformAction"),
        (Box(-1, 1, (3,)), gymnasium.spaces.MultiBinary(3), "MultiBinary.*continuous-control"),
        (Box(-1, 1, (3,)), gymnasium.spaces.Tuple([Box(-1, 1)]), "Tuple.*continuous-control"),
    ],
)
def test_spaces_that_do_not_suit_are_refused_with_advice(observation, action, message):
    with pytest.raises(ValueError, match=message):
        Boxes("Some-v0", observation, action)


def test_actions_are_scaled_to_the_bounds():
    low, high = np.array([-1, -0.4, 0], np.float32), np.array([1, 0.4, 10], np.float32)
    boxes = Boxes("Some-v0", Box(-1, 1, (2, 3)), Box(low, high))
    assert (boxes.obs_dim, boxes.action_dim) == (6, 3)
    actions = np.array([[-1, -1, -1], [0, 0, 0], [1, 1, 1], [0.1, 0.5, -0.5]], np.float32)
    expected = [[-1, -0.4, 0], [0, 0, 5], [1, 0.4, 10], [0.1, 0.2, 2.5]]
    scaled = boxes.scale(actions)
    assert scaled.dtype == np.float32
    np.testing.assert_array_equal(scaled, np.array(expected, np.float32))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_actions_have_the_dtype_of_their_box_and_stay_within(dtype):
    rng = np.random.default_rng(0)
    ends = np.sort(rng.normal(size=(2, 500)), axis=0).astype(dtype)
    ends[1, 0] = ends[0, 0]  # one fixed component
    space = Box(ends[0], ends[1], dtype=dtype)
    scaled = Boxes("Some-v0", Box(-1, 1), space).scale(
        np.array([[-1.0], [0.3], [1.0]]) * np.ones(500)
    )
    assert scaled.dtype == dtype and all(space.contains(row) for row in scaled)
    assert (scaled[:, 0] == ends[0, 0]).all()
    np.testing.assert_allclose(scaled[2], ends[1], rtol=4 * np.finfo(dtype).eps, atol=1e-3)


def test_the_widest_bounds_are_scaled_without_overflow():
    space = Box(-1.7e308, 1.7e308, (1,), np.float64)
    scaled = Boxes("Some-v0", Box(-1, 1), space).scale(np.array([[-1.0], [0.5], [1.0]]))
    np.testing.assert_array_equal(scaled, [[-1.7e308], [0.85e308], [1.7e308]])


@pytest.mark.parametrize("limit", [0, -1, 2.5, "10", True])
def test_a_wrong_time_limit_is_refused(limit):
    for backend in envs.HOST_BACKENDS:
        with pytest.raises(ValueError, match=r"max_episode_steps is .*at least 1, or None"):
            envs.make_host("Hopper-v5", 1, backend, max_episode_steps=limit)
    with pytest.raises(ValueError, match=r"episode_length is .*at least 1, or None"):
        envs.make_device("inverted_pendulum", episode_length=limit)


def test_actions_of_a_wrong_shape_are_refused():
    boxes = Boxes("Some-v0", Box(-1, 1, (3,)), Box(-1, 1, (2,)))
    with pytest.raises(ValueError, match=r"must be \[E, 2\], got \(4, 3\)"):
        boxes.scale(np.zeros((4, 3)))


def test_seeds_are_checked():
    assert check_seeds([0, 2**31 - 1], 2) == [0, 2**31 - 1]
    with pytest.raises(ValueError, match="got 1 seeds for 2 environments"):
        check_seeds([3], 2)
    with pytest.raises(ValueError, match=r"in \[0, 2\*\*31\), got \[-1, 2147483648\]"):
        check_seeds([-1, 5, 2**31], 3)


def test_fresh_seeds_depend_on_seed_and_steps_alone():
    seeds = fresh_seeds([1, 2, 1, 1], [10, 10, 10, 11])
    assert seeds[0] == seeds[2]
    assert len(set(seeds)) == 3
    assert check_seeds(seeds, 4) == seeds


@pytest.mark.fast
def test_long_messages_of_tasks_are_cut():
    text = envs.describe(ValueError("x" * 10**6))
    assert text.startswith("ValueError: xxx") and text.endswith("x ...") and len(text) < 2100
