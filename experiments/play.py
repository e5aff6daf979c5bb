"""Plays a published policy: its return over many episodes, and a picture of one.

python -m experiments.play --policy=results/policies/hopper
python -m experiments.play --policy=results/policies/hopper --runtime=c --seed=1000
python -m experiments.play --policy=results/policies/hopper --render=episode.gif

Compares the mean return with the one on record; the exit code is 1 where they do not agree. A
picture (.gif, .mp4, or .png for a strip) is of the first episode.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags, logging

from experiments import crash, render
from rlx2_jax.envs import EnvironmentFailure
from rlx2_jax.envs.base import MAX_SEED
from rlx2_jax.envs.trust import FLAG_HELP
from rlx2_jax.export import PolicyFileError, episodes, folder
from rlx2_jax.export.folder import Published
from rlx2_jax.runtime.run import RunError

_ERRORS = 3  # standard errors that two means may differ by
_ROUNDING = 1e-6  # of a mean


def agreement(played: dict[str, Any], recorded: dict[str, Any]) -> tuple[bool, str]:
    """Whether two means agree within the spread of their episodes, and the sentence to print."""
    gap = played["mean"] - recorded["mean"]
    spread = max(played["sd"], recorded["sd"])
    error = spread * math.sqrt(1 / played["episodes"] + 1 / recorded["episodes"])
    allowed = max(_ERRORS * error, _ROUNDING * abs(recorded["mean"]))
    agrees = abs(gap) <= allowed
    verdict = "agrees" if agrees else "does NOT agree"
    return agrees, (
        f"on record: {recorded['mean']:,.1f} ± {recorded['sd']:,.1f} in {recorded['episodes']} "
        f"episodes, {verdict}: the difference is {gap:+,.2f}, {_ERRORS} standard errors are "
        f"{_ERRORS * error:,.2f}"
    )


def describe(published: Published, runtime: str) -> str:
    """What is played, in one line."""
    about, name = published.about, f"{folder.NAME}.{runtime}"
    size = (published.folder / name).stat().st_size
    sparsity = "/".join(f"{100 * about[f'{net}_sparsity']:.1f}" for net in ("actor", "critic"))
    return (
        f"{about['env']}: {about['algo'].upper()}, {about['method']}, seed {about['seed']}, "
        f"{sparsity} % sparse, {about['live_links']:,} live links; "
        f"{name}, {size:,} bytes"
    )


def play(
    published: Published,
    seeds: Sequence[int],
    runtime: str = "npz",
    *,
    say: Callable[[str], None] = print,
    progress: Callable[[int], None] = lambda finished: None,
) -> bool:
    """Plays one episode per seed; whether the mean agrees with the record."""
    act = folder.runtime(published, runtime)
    say(describe(published, runtime))
    played = episodes.play(published.make_envs, act, seeds, progress).summary()
    say(
        f"{len(seeds)} episodes (seeds {seeds[0]} to {seeds[-1]}): return {played['mean']:,.1f} ± "
        f"{played['sd']:,.1f}, from {played['min']:,.1f} to {played['max']:,.1f}; "
        f"{played['mean_length']:,.1f} steps on average"
    )
    agrees, text = agreement(played, published.about["evaluation"])
    say(text)
    say(
        f"final score of its training: {published.about['final_score']:,.1f} "
        f"({published.about.get('final_score_is', 'no definition on record')})"
    )
    return agrees


def draw(published: Published, seed: int, out: Path, runtime: str = "npz") -> str:
    """A picture of one episode; what was drawn, in a line."""
    about = published.about
    if about["env_backend"] != "gymnasium":
        raise RunError(f"only Gymnasium's tasks can be drawn, this is {about['env_backend']}'s")
    act = folder.runtime(published, runtime)
    shown = render.record(about["env"], about["env_options"], act, seed)
    render.write(shown, out)
    return f"seed {seed}: return {shown.total:,.1f} in {shown.length:,} steps, written to {out}"


class _Progress:
    """A line on a terminal, redrawn at most five times a second."""

    def __init__(self, total: int):
        self._total, self._next = total, 0.0

    def __call__(self, finished: int) -> None:
        if sys.stderr.isatty() and (time.monotonic() >= self._next or finished == self._total):
            self._next = time.monotonic() + 0.2
            end = "\n" if finished == self._total else ""
            print(f"\r{finished}/{self._total} episodes", end=end, file=sys.stderr, flush=True)


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """This command's flags, defined when it runs: other commands have some of the same names."""
    own: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_string("policy", None, "A policy's folder, e.g. results/policies/hopper.", **own)
    flags.DEFINE_integer("episodes", 100, "How many; 0: only --render.", lower_bound=0, **own)
    flags.DEFINE_integer(
        "seed",
        None,
        "Of the first episode; the next ones follow. Default: the one on record.",
        lower_bound=0,
        upper_bound=MAX_SEED,
        **own,
    )
    flags.DEFINE_enum("runtime", "npz", list(folder.RUNTIMES), "Which file is played.", **own)
    flags.DEFINE_string("render", None, "A picture: .gif, .mp4, or .png for a strip.", **own)
    flags.DEFINE_bool("allow_imports", False, FLAG_HELP, **own)


def command(values: flags.FlagValues) -> int:
    """Runs with parsed flags; the exit code."""
    agrees = True
    try:
        if not values.policy:
            raise PolicyFileError("--policy is needed: the folder of a published policy")
        if values.render:
            render.check_name(Path(values.render), "--render")
        published = folder.read(Path(values.policy), allow_imports=values.allow_imports)
        seed = values.seed
        if seed is None:
            seed = int(published.about["evaluation"]["first_seed"])
        if seed + values.episodes > MAX_SEED + 1:
            raise PolicyFileError(f"--seed={seed}: seeds of all episodes must be below 2**31")
        if values.episodes:
            seeds = range(seed, seed + values.episodes)
            progress = _Progress(values.episodes)
            agrees = play(published, seeds, values.runtime, progress=progress)
        if values.render:
            render.use_headless_gl()
            print(draw(published, seed, Path(values.render), values.runtime))
    except (
        PolicyFileError,
        EnvironmentFailure,
        RunError,
        ValueError,
        ImportError,
        OSError,
    ) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if agrees else 1


def main(argv: list[str]) -> int:
    logging.set_verbosity(logging.WARNING)
    if len(argv) > 1:
        raise app.UsageError(f"unexpected {argv[1:]}: all settings are flags, --name=value")
    return crash.guarded(lambda: command(flags.FLAGS))


if __name__ == "__main__":
    define_flags()
    app.run(main)
