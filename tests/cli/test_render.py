"""Rendering of episodes: output files and rejected arguments."""

import gymnasium
import imageio.v3 as images
import numpy as np
import pytest

from rlx2_jax.cli import render
from rlx2_jax.envs import EnvironmentFailure
from rlx2_jax.training.run import RunError

pytestmark = pytest.mark.fast


@pytest.fixture
def shown():
    """Twenty frames of a white column that moves to the right."""
    frames = np.zeros((20, 16, 20, 3), np.uint8)
    frames[np.arange(20), :, np.arange(20)] = 255
    return render.Shown(frames, 25.0, 1.0, 20)


def test_a_strip_spans_the_episode(shown, tmp_path):
    render.write(shown, tmp_path / "deep" / "strip.png")
    strip = images.imread(tmp_path / "deep" / "strip.png")
    assert strip.shape == (16, 8 * 20, 3)
    np.testing.assert_array_equal(strip[:, :20], shown.frames[0])
    np.testing.assert_array_equal(strip[:, -20:], shown.frames[-1])


def test_a_video_has_all_frames_at_their_speed(shown, tmp_path):
    path = tmp_path / "episode.gif"
    render.write(shown, path)
    np.testing.assert_array_equal(images.imread(path), shown.frames)
    assert images.immeta(path)["duration"] == 40


def test_long_videos_are_cut(shown, tmp_path):
    frames = np.tile(shown.frames, (20, 1, 1, 1))
    render.write(shown._replace(frames=frames), tmp_path / "episode.gif")
    assert len(images.imread(tmp_path / "episode.gif")) == 300


def test_other_names_and_directories_are_refused(shown, tmp_path):
    with pytest.raises(RunError, match=r"ends in \.gif"):
        render.write(shown, tmp_path / "episode.bmp")
    with pytest.raises(RunError, match="there is no run"):
        render.episode(tmp_path, 0)
    with pytest.raises(RunError, match="Nonsense-v5 cannot be created"):
        render.record("Nonsense-v5", {}, lambda obs: obs, 0)


@pytest.mark.parametrize(
    ("env", "options", "name"),
    [
        ("Hopper-v5", {}, "track"),
        ("Hopper-v5", {"camera_id": -1}, None),
        ("InvertedPendulum-v5", {}, None),
    ],
)
def test_the_camera_follows_robots_that_leave(env, options, name):
    task = render._make(env, options)
    camera = task.unwrapped.mujoco_renderer.camera_id
    assert (camera == -1) if name is None else (task.unwrapped.model.camera(camera).name == name)
    task.close()


class Screen:
    def __init__(self, picture):
        self.picture = picture

    def render(self):
        if self.picture is None:
            raise RuntimeError("no context")
        return self.picture


def test_without_rendering_the_error_gives_a_remedy():
    with pytest.raises(RunError, match="MUJOCO_GL=egl"):
        render._draw(Screen(None))


@pytest.mark.parametrize(("size", "reduced"), [(320, 320), (480, 240), (961, 240)])
def test_wide_frames_are_reduced(size, reduced):
    picture = np.zeros((size, size, 3), np.uint8)
    picture[: size // 2] = 200
    frame = render._draw(Screen(picture))
    assert frame.shape == (reduced, reduced, 3) and frame.dtype == np.uint8
    assert (frame[: reduced // 2 - 1] == 200).all() and (frame[reduced // 2 + 1 :] == 0).all()


class Broken(gymnasium.Env):
    """Can be drawn, not stepped."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012
    render_mode = "rgb_array"

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        raise SystemExit("a joint broke")

    def render(self):
        return np.zeros((8, 8, 3), np.uint8)


def test_errors_of_the_environment_are_reported():
    make = lambda **_: Broken()  # noqa: E731
    gymnasium.register("tests/Broken-v0", entry_point=make, disable_env_checker=True)
    try:
        with pytest.raises(EnvironmentFailure, match="SystemExit: a joint broke"):
            render.record("tests/Broken-v0", {}, lambda obs: np.zeros((1, 1), np.float32), 0)
    finally:
        del gymnasium.registry["tests/Broken-v0"]
