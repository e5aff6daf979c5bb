"""The factory, the shared checks, and what they say when something is wrong."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from rlx2_jax import envs
from rlx2_jax.envs.base import Boxes, check_seeds, fresh_seeds

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
        ValueError, match=r"expected one of \('brax',\); 'envpool' is made by make_h"
    ):
        envs.make_device("hopper", "envpool")
    with pytest.raises(ValueError, match="did you mean rlx2_jax/Truncation-v0"):
        envs.make_device("rlx2_jax/Truncated-v0")


def test_no_environments_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        envs.make_host("Hopper-v5", 0)


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (Box(-1, 1, (3,)), gymnasium.spaces.Discrete(4), r"Discrete\(4\).*continuous-control"),
        (gymnasium.spaces.Discrete(4), Box(-1, 1, (2,)), r"Discrete\(4\).*FlattenObservation"),
        (gymnasium.spaces.Dict(a=Box(-1, 1)), Box(-1, 1), "Dict.*FlattenObservation"),
        (Box(-1, 1, (3,)), Box(-np.inf, 1, (2,)), "-inf.*must be finite.*RescaleAction"),
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
