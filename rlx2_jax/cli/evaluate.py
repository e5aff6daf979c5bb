"""Plays a trained policy for many noise-free episodes: mean return, spread, extremes, length.

rlx2 evaluate runs/hopper --lane=0
rlx2 evaluate results/policies/hopper --runtime=c --seed=1000
rlx2 evaluate results/policies/hopper --render=episode.gif
rlx2 evaluate policy.npz --env=Hopper-v5

Takes a run directory, the folder of a published policy or an exported .npz file. For a published
policy, the exit code is 1 if the mean return does not agree with its recorded score. --render draws
the first episode (.gif, .mp4, or .png for a strip).
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from rlx2_jax import envs
from rlx2_jax.cli import render
from rlx2_jax.cli.train import define_time_limit
from rlx2_jax.envs import EnvironmentFailure
from rlx2_jax.envs.base import MAX_SEED
from rlx2_jax.envs.trust import FLAG_HELP
from rlx2_jax.export import PolicyFileError, SparsePolicy, actor, compare, episodes, folder, npz
from rlx2_jax.export import manifest as manifests
from rlx2_jax.export.episodes import Act, Episodes
from rlx2_jax.export.folder import Published
from rlx2_jax.training.run import RunError, has_run

POSITIONAL = "policy"
_ERRORS = 3  # standard errors that two means may differ by
_ROUNDING = 1e-6  # relative rounding error of a mean


class Subject(NamedTuple):
    """A policy and the task to play it on."""

    title: str
    env: str
    backend: str
    options: dict[str, Any]
    policy: SparsePolicy
    act: Act
    published: Published | None = None

    def make_envs(self, count: int) -> envs.HostEnvs:
        """Environments of the task; raises if they do not fit the policy."""
        if self.published is not None:
            return self.published.make_envs(count)
        made = envs.make_host(self.env, count, self.backend, **self.options)
        sizes = made.spec.obs_dim, made.spec.action_dim
        if sizes != (self.policy.obs_dim, self.policy.action_dim):
            made.close()
            raise PolicyFileError(
                f"{self.env} has {sizes[0]} observations and {sizes[1]} actions, the policy has "
                f"{self.policy.obs_dim} and {self.policy.action_dim}: give another --env"
            )
        return made

    def limited(self, steps: int) -> "Subject":
        """The subject with a time limit of `steps`, for tasks without one."""
        if self.published is not None:
            raise PolicyFileError(
                "--max_episode_steps: a published policy is played on its recorded task"
            )
        return self._replace(options={**self.options, **envs.time_limit(self.backend, steps)})

    def play(self, seeds: Sequence[int], progress: Callable[[int], None]) -> Episodes:
        """Plays one episode per seed; on a device, all at once."""
        if self.backend in envs.DEVICE_BACKENDS:
            task = compare.Task(self.env, self.backend, self.options)
            return compare.device_episodes(task, self.policy, seeds[0], len(seeds))
        return episodes.play(self.make_envs, self.act, seeds, progress)


def find(
    path: Path,
    *,
    lane: int = 0,
    runtime: str = "npz",
    env: str | None = None,
    backend: str = "gymnasium",
    allow_imports: bool = False,
) -> Subject:
    """The subject at a path: a published policy, a run or an exported file.

    Raises:
      PolicyFileError, RunError: there is none, or it is unreadable.
      ValueError: its environment needs `allow_imports`.
    """
    if path.name == f"{folder.NAME}.npz" and path.with_name(folder.RECORD).exists():
        path = path.parent
    if (path / folder.RECORD).exists() or not (path.is_file() or has_run(path)):
        return of_published(folder.read(path, allow_imports=allow_imports), runtime)
    if runtime != "npz":
        raise PolicyFileError(f"--runtime={runtime}: only published policies have other runtimes")
    if path.is_file():
        return _of_file(path, env, backend, allow_imports)
    run = actor.read_run(path, allow_imports=allow_imports)
    trained = actor.actor_of(run, path, lane)
    policy = actor.policy_of(trained, run.config)
    method, seed = run.lanes[lane].method, run.lanes[lane].seed
    title = (
        f"{run.env}: {run.config.algo.upper()}, {method}, seed {seed}, lane {lane} at step "
        f"{trained.step:,}, {policy.links:,} live links"
    )
    return Subject(title, run.env, run.backend, dict(run.env_options), policy, policy.act)


def of_published(published: Published, runtime: str = "npz") -> Subject:
    """A published policy in one of its runtimes."""
    about, act = published.about, folder.runtime(published, runtime)
    task = about["env"], about["env_backend"], about["env_options"]
    return Subject(describe(published, runtime), *task, published.policy, act, published)


def _of_file(path: Path, env: str | None, backend: str, allow_imports: bool) -> Subject:
    """A .npz file; its task is --env or comes from the manifest of its export."""
    policy, options = npz.load(path), {}
    if env is None and (path.parent / manifests.NAME).exists():
        about = manifests.read(path.parent)
        env, options = about.get("env"), about.get("env_options") or {}
        backend = about.get("env_backend") or backend
        if not isinstance(env, str) or not isinstance(options, dict):
            raise PolicyFileError(f"{path.parent / manifests.NAME} names no task: give --env")
        envs.check_import(env, options, allow=allow_imports, source=manifests.NAME)
    if env is None:
        raise PolicyFileError(f"{path} does not name its task: give --env")
    if backend not in envs.BACKENDS:
        raise PolicyFileError(f"{path}: there is no backend {backend!r:.40}: give --env")
    title = f"{env}: {path.name}, {policy.links:,} live links"
    return Subject(title, env, backend, options, policy, policy.act)


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
    """A one-line description of a published policy."""
    about, name = published.about, f"{folder.NAME}.{runtime}"
    size = (published.folder / name).stat().st_size
    sparsity = "/".join(f"{100 * about[f'{net}_sparsity']:.1f}" for net in ("actor", "critic"))
    return (
        f"{about['env']}: {about['algo'].upper()}, {about['method']}, seed {about['seed']}, "
        f"{sparsity} % sparse, {about['live_links']:,} live links; "
        f"{name}, {size:,} bytes"
    )


def play(
    subject: Subject,
    seeds: Sequence[int],
    *,
    say: Callable[[str], None] = print,
    progress: Callable[[int], None] = lambda finished: None,
) -> bool:
    """Plays one episode per seed; returns whether the mean agrees with the record, if any."""
    say(subject.title)
    played = subject.play(seeds, progress).summary()
    say(
        f"{len(seeds)} episodes (seeds {seeds[0]} to {seeds[-1]}): return {played['mean']:,.1f} ± "
        f"{played['sd']:,.1f}, from {played['min']:,.1f} to {played['max']:,.1f}; "
        f"{played['mean_length']:,.1f} steps on average"
    )
    if subject.published is None:
        return True
    about = subject.published.about
    agrees, text = agreement(played, about["evaluation"])
    say(text)
    say(
        f"final score of its training: {about['final_score']:,.1f} "
        f"({about.get('final_score_is', 'no definition on record')})"
    )
    return agrees


def draw(subject: Subject, seed: int, out: Path) -> str:
    """Draws one episode; returns the line to print."""
    if subject.backend != "gymnasium":
        raise RunError(f"only Gymnasium tasks can be drawn, this one uses {subject.backend}")
    shown = render.record(subject.env, subject.options, subject.act, seed)
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


def define_flags(values: flags.FlagValues) -> None:
    """The flags of `rlx2 evaluate`."""
    into: dict[str, Any] = {"flag_values": values}
    text = "A run directory, a published policy's folder or an exported .npz file."
    flags.DEFINE_string("policy", None, text, **into)
    flags.DEFINE_string("logdir", None, "A run directory, as in other commands.", **into)
    flags.DEFINE_integer("lane", 0, "Lane of a run.", **into)
    flags.DEFINE_integer("episodes", 100, "Number of episodes; 0: only --render.", 0, **into)
    text = "Seed of the first episode; the others follow. Default: the recorded one, or 0."
    flags.DEFINE_integer("seed", None, text, 0, MAX_SEED, **into)
    text = "The file of a published policy to play."
    flags.DEFINE_enum("runtime", "npz", list(folder.RUNTIMES), text, **into)
    flags.DEFINE_string("env", None, "Task of an .npz file; default: its manifest's.", **into)
    text = "The package that simulates --env."
    flags.DEFINE_enum("env_backend", "gymnasium", envs.BACKENDS, text, **into)
    define_time_limit(values, "Time limit of episodes; default: the environment's.")
    text = "Draw the first episode to this file: .gif, .mp4, or .png for a strip."
    flags.DEFINE_string("render", None, text, **into)
    flags.DEFINE_bool("allow_imports", False, FLAG_HELP, **into)


_KNOWN = (PolicyFileError, EnvironmentFailure, RunError, ValueError, ImportError, OSError)


def command(values: flags.FlagValues) -> int:
    """Runs with parsed flags; returns the exit code."""
    agrees = True
    try:
        path = values.policy or values.logdir
        if not path:
            raise PolicyFileError("--policy is needed: a run directory or a policy's folder")
        out = Path(values.render or "").absolute()  # a task may change the working directory
        if values.render:
            render.check_name(out, "--render")
        subject = find(
            Path(path).absolute(),
            lane=values.lane,
            runtime=values.runtime,
            env=values.env,
            backend=values.env_backend,
            allow_imports=values.allow_imports,
        )
        if values.max_episode_steps is not None:
            subject = subject.limited(values.max_episode_steps)
        seed = values.seed
        if seed is None:
            record = subject.published
            seed = int(record.about["evaluation"]["first_seed"]) if record else 0
        if seed + values.episodes > MAX_SEED + 1:
            raise PolicyFileError(
                f"--seed={seed} and --episodes={values.episodes}: seeds of all episodes must be "
                f"below 2**31"
            )
        if not values.episodes and not values.render:
            raise PolicyFileError("--episodes=0 plays nothing: use at least 1, or add --render")
        if values.episodes:
            seeds = range(seed, seed + values.episodes)
            agrees = play(subject, seeds, progress=_Progress(values.episodes))
        if values.render:
            render.use_headless_gl()
            print(draw(subject, seed, out))
    except _KNOWN as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if agrees else 1
