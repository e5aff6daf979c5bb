"""Pictures of an episode: what is written, what is refused."""

import imageio.v3 as images
import numpy as np
import pytest

from experiments import render
from rlx2_jax.runtime.run import RunError

pytestmark = pytest.mark.fast


@pytest.fixture
def frames():
    """Twenty pictures, each of one shade."""
    return np.arange(20, dtype=np.uint8)[:, None, None, None] * np.ones((1, 16, 16, 3), np.uint8)


def test_a_strip_spans_the_episode(frames, tmp_path):
    render.write(frames, tmp_path / "deep" / "strip.png")
    strip = images.imread(tmp_path / "deep" / "strip.png")
    assert strip.shape == (16, 8 * 16, 3)
    assert strip[0, 0, 0] == 0 and strip[0, -1, 0] == 19


def test_a_video_has_all_frames(frames, tmp_path):
    render.write(10 * frames, tmp_path / "episode.gif")
    assert len(images.imread(tmp_path / "episode.gif")) == 20


def test_other_names_and_directories_are_refused(frames, tmp_path):
    with pytest.raises(RunError, match=r"ends in \.gif"):
        render.write(frames, tmp_path / "episode.bmp")
    with pytest.raises(RunError, match="there is no run"):
        render.episode(tmp_path, 0)


def test_a_machine_that_cannot_draw_says_what_to_do():
    class Blind:
        def render(self):
            raise RuntimeError("no context")

    with pytest.raises(RunError, match="MUJOCO_GL=egl"):
        render._draw(Blind())
