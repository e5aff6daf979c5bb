"""Draws one noise-free episode of a trained lane as a video or a strip of frames.

rlx2 render runs/hopper --lane=0 --out=episode.gif
rlx2 render runs/hopper --lane=0 --out=episode.png

A video shows the first 300 frames at the task's speed; a strip spans the episode. Needs OpenGL;
without a display, uses EGL unless MUJOCO_GL is set (the alternative is MUJOCO_GL=osmesa).
"""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from absl import flags

from rlx2_jax.envs.base import EnvironmentFailure, failures_of, quiet_mujoco
from rlx2_jax.envs.gymnasium import find
from rlx2_jax.envs.rollout import LONGEST
from rlx2_jax.envs.spaces import Boxes
from rlx2_jax.envs.trust import FLAG_HELP
from rlx2_jax.export import actor
from rlx2_jax.prng import Stream
from rlx2_jax.training.evaluate import seeds
from rlx2_jax.training.run import RunError

POSITIONAL = "logdir"
STRIP = 8  # pictures in a strip
WIDEST = 320  # maximum width of a frame in pixels
FPS = 30  # maximum
MOST_FRAMES = 300  # in a video
COLOURS = 64  # in a GIF
VIDEOS = (".gif", ".mp4")


class Shown(NamedTuple):
    """One episode."""

    frames: np.ndarray  # u8[frames, height, width, 3]
    fps: float  # at the task's speed
    total: float  # return
    length: int  # steps


def episode(logdir: Path, lane: int, *, allow_imports: bool = False) -> Shown:
    """A lane's first evaluation episode."""
    run = actor.read_run(logdir, allow_imports=allow_imports)
    trained = actor.actor_of(run, logdir, lane)
    if run.backend != "gymnasium":
        raise RunError(f"only Gymnasium tasks can be drawn, this run uses {run.backend}")
    seed = seeds(run.lanes[lane].seed, Stream.EVALUATION, 1)[0]
    act = lambda obs: actor.actions(trained, run.config, obs)  # noqa: E731
    return record(run.env, run.env_options, act, seed)


def record(
    env_id: str,
    options: Mapping[str, Any],
    act: Callable[[np.ndarray], np.ndarray],
    seed: int,
) -> Shown:
    """Records the noise-free episode of `act` ([1, obs] -> [1, act] in [-1, 1]) with `seed`."""
    env = _make(env_id, options)
    with failures_of(env_id, RunError, ValueError), contextlib.closing(env):
        boxes = Boxes(env_id, env.observation_space, env.action_space)
        fps = float(env.metadata.get("render_fps") or FPS)
        every = max(1, round(fps / FPS))
        obs, _ = env.reset(seed=seed)
        row = np.zeros((1, boxes.obs_dim), np.float32)
        frames, total, length, ended = [_draw(env)], 0.0, 0, False
        while not ended:
            boxes.layout.write(obs, row[0])
            action = act(row)
            obs, reward, terminated, truncated, _ = env.step(boxes.scale(action)[0])
            total, length, ended = total + float(reward), length + 1, terminated or truncated
            if length % every == 0 or ended:
                frames.append(_draw(env))
            if length >= LONGEST:
                raise RunError(f"{env_id} did not end its episode in {LONGEST:,} steps: not drawn")
    return Shown(np.array(frames), fps / every, total, length)


def _make(env_id: str, options: Mapping[str, Any]) -> Any:
    try:
        spec = find(env_id)
    except (ValueError, ImportError) as error:
        raise RunError(f"{env_id} cannot be created: {error}") from error
    try:
        with quiet_mujoco():
            env = gymnasium.make(spec, **{**options, "render_mode": "rgb_array"})
    except gymnasium.error.Error as error:
        raise RunError(f"{env_id} cannot be created: {error}") from error
    except Exception as error:  # MuJoCo loads OpenGL when it is imported
        raise _cannot_draw(error) from error
    if not options.keys() & {"camera_id", "camera_name"}:
        _follow(env)
    return env


def _follow(env: Any) -> None:
    """Selects the camera that follows the robot, where a MuJoCo model has one. Gymnasium's default
    camera stays at the start, which most robots leave."""
    renderer = getattr(env.unwrapped, "mujoco_renderer", None)
    if renderer is not None:
        with contextlib.suppress(KeyError):  # no such camera
            renderer.camera_id = renderer.model.camera("track").id


def _draw(env: Any) -> np.ndarray:
    """A frame, reduced to at most `WIDEST` pixels."""
    try:
        frame = np.asarray(env.render())
    except Exception as error:
        raise _cannot_draw(error) from error
    k = -(-frame.shape[1] // WIDEST)
    height, width = (n // k * k for n in frame.shape[:2])
    blocks = frame[:height, :width].reshape(height // k, k, width // k, k, -1)
    return blocks.mean(axis=(1, 3)).round().astype(np.uint8)


def _cannot_draw(error: Exception) -> RunError:
    return RunError(
        f"this machine cannot draw ({type(error).__name__}: {error}): install OpenGL and set "
        f"MUJOCO_GL=egl or MUJOCO_GL=osmesa (now {os.environ.get('MUJOCO_GL', 'unset')})"
    )


def use_headless_gl() -> None:
    """Selects EGL if there is no display and MUJOCO_GL is not set."""
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")


def check_name(out: Path, flag: str = "--out") -> None:
    """Raises unless the file name has a supported suffix."""
    if out.suffix not in (*VIDEOS, ".png"):
        raise RunError(f"{flag}={out}: use a name that ends in {', '.join(VIDEOS)} or .png")


def write(shown: Shown, out: Path) -> None:
    """Writes a video, or a strip of pictures spread over the episode."""
    import imageio.v3 as images  # installed with Gymnasium's MuJoCo tasks, like Pillow

    check_name(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    frames = shown.frames
    if out.suffix == ".png":
        chosen = np.linspace(0, len(frames) - 1, min(STRIP, len(frames))).round().astype(int)
        images.imwrite(out, np.concatenate(frames[chosen], axis=1))
        return
    if out.suffix == ".gif":
        _write_gif(frames[:MOST_FRAMES], shown.fps, out)
    else:
        images.imwrite(out, frames[:MOST_FRAMES], fps=shown.fps)


def _write_gif(frames: np.ndarray, fps: float, out: Path) -> None:
    """Writes a GIF with one palette for all frames: a seventh of the size, on Hopper."""
    from PIL import Image

    sample = frames[:: max(1, len(frames) // STRIP)]
    palette = Image.fromarray(np.concatenate(sample, axis=1)).quantize(COLOURS)
    first, *others = (
        Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE)
        for frame in frames
    )
    first.save(out, save_all=True, append_images=others, loop=0, duration=round(1000 / fps))


def define_flags(values: flags.FlagValues) -> None:
    """The flags of `rlx2 render`."""
    into: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_string("logdir", None, "Run directory to read.", **into)
    flags.DEFINE_integer("lane", 0, "Lane of the run.", **into)
    flags.DEFINE_string("out", "episode.gif", "File: .gif, .mp4, or .png for a strip.", **into)
    flags.DEFINE_bool("allow_imports", False, FLAG_HELP, **into)


def command(given: flags.FlagValues) -> int:
    """Runs with parsed flags; returns the exit code."""
    use_headless_gl()
    try:
        if not given.logdir:
            raise RunError("--logdir is needed: rlx2 render RUN")
        out = Path(given.out).absolute()  # the environment may change the working directory
        check_name(out)
        shown = episode(Path(given.logdir), given.lane, allow_imports=given.allow_imports)
        write(shown, out)
    except (EnvironmentFailure, RunError, ValueError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"return {shown.total:.1f} in {shown.length} steps, written to {given.out}")
    return 0
