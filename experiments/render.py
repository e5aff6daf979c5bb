"""Shows one noise-free episode of a trained lane, as a video or as a strip of pictures.

python -m experiments.render --logdir=runs/hopper --lane=0 --out=episode.gif
python -m experiments.render --logdir=runs/hopper --lane=0 --out=episode.png

Needs OpenGL; without a screen EGL is tried first (MUJOCO_GL=osmesa is the other choice).
"""

import os
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from absl import app, flags, logging

from experiments.export import reference
from rlx2_jax.envs.trust import FLAG_HELP
from rlx2_jax.export import actor
from rlx2_jax.lane import Stream
from rlx2_jax.runtime.evaluate import seeds
from rlx2_jax.runtime.run import RunError

STRIP = 8  # pictures in a strip
LONGEST = 100_000  # steps of an episode
VIDEOS = (".gif", ".mp4")


def episode(
    logdir: Path, lane: int, every: int = 2, *, allow_imports: bool = False
) -> tuple[np.ndarray, float, int]:
    """Every `every`-th frame of a lane's first evaluation episode, its return and length."""
    run = actor.read_run(logdir, allow_imports=allow_imports)
    found = actor.actor_of(run, logdir, lane)
    if run.backend != "gymnasium":
        raise RunError(f"only Gymnasium's tasks can be drawn, this run has {run.backend}")
    env: Any = gymnasium.make(run.env, render_mode="rgb_array", **run.env_options)
    try:
        obs, _ = env.reset(seed=seeds(run.lanes[lane].seed, Stream.EVALUATION, 1)[0])
        low, high = env.action_space.low, env.action_space.high
        frames, total, length, ended = [_draw(env)], 0.0, 0, False
        while not ended:
            row = np.asarray(obs, np.float32).reshape(1, -1)
            action = reference(found, run.config.algo, row)[0]
            action = low + (action.reshape(low.shape) + 1.0) / 2.0 * (high - low)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, length, ended = total + float(reward), length + 1, terminated or truncated
            if length % every == 0 or ended:
                frames.append(_draw(env))
            if length >= LONGEST:
                raise RunError(f"{run.env} did not end an episode in {LONGEST:,} steps: not drawn")
    finally:
        env.close()
    return np.array(frames), total, length


def _draw(env: Any) -> np.ndarray:
    try:
        return env.render()
    except Exception as error:
        raise RunError(
            f"this machine cannot draw ({type(error).__name__}: {error}): install OpenGL and set "
            f"MUJOCO_GL=egl or MUJOCO_GL=osmesa (now {os.environ.get('MUJOCO_GL', 'unset')})"
        ) from error


def write(frames: np.ndarray, out: Path) -> None:
    """A video, or a strip of pictures spread over the episode."""
    import imageio.v3 as images

    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix in VIDEOS:
        options: dict[str, Any] = (
            {"loop": 0, "duration": 33} if out.suffix == ".gif" else {"fps": 30}
        )
        images.imwrite(out, frames, **options)
    elif out.suffix == ".png":
        chosen = np.linspace(0, len(frames) - 1, min(STRIP, len(frames))).round().astype(int)
        images.imwrite(out, np.concatenate(frames[chosen], axis=1))
    else:
        raise RunError(f"--out={out}: use a name that ends in {', '.join(VIDEOS)} or .png")


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """This command's flags, defined when it runs: other commands have some of the same names."""
    own: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_string("logdir", None, "Run directory to read.", **own)
    flags.DEFINE_integer("lane", 0, "Which of the run's lanes.", **own)
    flags.DEFINE_string("out", "episode.gif", "Where to: .gif, .mp4, or .png for a strip.", **own)
    flags.DEFINE_bool("allow_imports", False, FLAG_HELP, **own)


def main(argv: list[str]) -> int:
    logging.set_verbosity(logging.WARNING)
    if len(argv) > 1:
        raise app.UsageError(f"unexpected {argv[1:]}: all settings are flags, --name=value")
    given = flags.FLAGS
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")
    try:
        if not given.logdir:
            raise RunError("--logdir is needed: the directory of a run")
        if Path(given.out).suffix not in (*VIDEOS, ".png"):
            write(np.zeros((0,)), Path(given.out))  # refuses before anything is drawn
        frames, total, length = episode(
            Path(given.logdir), given.lane, allow_imports=given.allow_imports
        )
        write(frames, Path(given.out))
    except (RunError, ValueError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"return {total:.1f} in {length} steps, written to {given.out}")
    return 0


if __name__ == "__main__":
    define_flags()
    app.run(main)
