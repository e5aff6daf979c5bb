"""Publishes the best sparse policy of each task: .npz, C and ONNX files with their scores.

python -m experiments.publish --logdir=runs/hopper
python -m experiments.publish --logdir=runs/tier1,runs/tier2 --out=results/policies

Reads run directories, suites or directories of sweeps. Candidates are the lanes of finished runs
that were trained sparse from scratch; the highest final score wins, then the lowest seed. The
output is deterministic; `rlx2 evaluate` plays the policies.
"""

import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import app, flags, logging

from rlx2_jax import envs, files
from rlx2_jax.algorithms import NETWORK_USE
from rlx2_jax.cli import crash
from rlx2_jax.config import Lane
from rlx2_jax.envs.trust import FLAG_HELP
from rlx2_jax.export import PolicyFileError, episodes, folder, onnx
from rlx2_jax.export.actor import Actor, action_bounds, actions, policy_of
from rlx2_jax.export.bundle import CheckFailed
from rlx2_jax.presets import task_name
from rlx2_jax.training import weights
from rlx2_jax.training.claim import SUMMARY
from rlx2_jax.training.evaluate import SCORED
from rlx2_jax.training.run import Run, RunError, read_run

EPISODES = 100
FIRST_SEED = 0

Say = Callable[[str], None]


class PublishError(Exception):
    """There is nothing to publish; the message gives the reason and a remedy."""


class Candidate(NamedTuple):
    """A sparse lane of a finished run."""

    unit: str  # <suite>/<unit>, or the name of the run directory
    directory: Path
    run: Run
    lane: int
    row: dict[str, Any]  # its row in summary.json
    summary: dict[str, Any]

    @property
    def rank(self) -> tuple[Any, ...]:
        """Sort key; the smallest is the best."""
        return -self.row["final_score"], self.run.lanes[self.lane].seed, self.unit, self.lane


def candidates(logdir: Path, say: Say, *, allow_imports: bool = False) -> list[Candidate]:
    """All sparse lanes of finished runs in `logdir`, up to two levels deep."""
    if not logdir.is_dir():
        raise PublishError(f"{logdir} is not a directory: give --logdir a run or sweeps")
    found = []
    for path in sorted({p for depth in ("", "*/", "*/*/") for p in logdir.glob(depth + SUMMARY)}):
        unit = "/".join(path.parent.relative_to(logdir).parts) or logdir.resolve().name
        try:
            run = read_run(path.parent, say, allow_imports=allow_imports)
            if NETWORK_USE[run.config.algo].offline:
                continue  # imitates an expert
            summary = files.read_json(path)
            rows = {row["lane"]: row for row in summary["lanes"]}
            for i, lane in enumerate(run.lanes):
                if _counts(run, lane, rows[i]):
                    found.append(Candidate(unit, path.parent, run, i, rows[i], summary))
        except (files.Damaged, RunError, ValueError, KeyError, TypeError) as error:
            say(f"warning: {unit} is left out: {error}")
    return found


def _counts(run: Run, lane: Lane, row: dict[str, Any]) -> bool:
    """Whether a lane was trained sparse from scratch and can be played."""
    sparse = not lane.tiny and row["actor_sparsity"] > 0
    scratch = lane.weights is None and lane.masks is None and lane.expert is None
    sound = row["alive"] and math.isfinite(row["final_score"])
    return sparse and scratch and sound and run.backend in envs.HOST_BACKENDS


def best(found: Sequence[Candidate]) -> dict[str, Candidate]:
    """The best candidate of each task, by the name of its folder."""
    chosen = {}
    for candidate in sorted(found, key=lambda x: x.rank):
        chosen.setdefault(slug(candidate.run.env), candidate)
    return dict(sorted(chosen.items()))


def slug(env: str) -> str:
    """A task's folder name: `hopper` for `Hopper-v5`."""
    name = task_name(env.rpartition(":")[2]).lower()
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-") or "task"


def publish(candidate: Candidate, out: Path, *, count: int = EPISODES, say: Say = print) -> None:
    """Writes one policy's folder, `policy.json` last."""
    run, lane, row = candidate.run, candidate.run.lanes[candidate.lane], candidate.row
    networks = weights.load(candidate.directory / "final" / f"lane-{candidate.lane}.npz")
    actor = Actor(*networks["actor"][:2], run.config.steps, networks["actor"].stats)
    low, high = action_bounds(run)
    policy = policy_of(actor, run.config, low=low, high=high)
    written = folder.write(out, policy, lambda obs: actions(actor, run.config, obs))
    (live, links), (critic_live, critic_links) = (
        _links(networks[name].mask) for name in weights.NETWORKS
    )
    say(
        f"{run.env}: {candidate.unit}, lane {candidate.lane} ({lane.method}, seed {lane.seed}), "
        f"final score {row['final_score']:,.1f}; playing {count} episodes ..."
    )
    about = {
        "format": folder.FORMAT,
        "task": task_name(run.env),
        "env": run.env,
        "env_backend": run.backend,
        "env_options": run.env_options,
        "algo": run.config.algo,
        "method": lane.method,
        "name": lane.name,
        "seed": lane.seed,
        "unit": candidate.unit,
        "lane": candidate.lane,
        "steps": run.config.steps,
        "actor_sparsity": 1 - live / links,
        "critic_sparsity": 1 - critic_live / critic_links,
        "sizes": policy.sizes,
        "live_links": live,
        "dense_links": links,
        "final_score": row["final_score"],
        "final_score_is": (
            f"mean return of the last {row['evaluations_used']} evaluations (at most {SCORED}) of "
            f"training, {run.episodes} noise-free episodes each"
        ),
        "evaluation": {},
        "files": written,
        "commit": candidate.summary.get("git_commit"),
        "versions": candidate.summary.get("versions"),
        "weights": weights.digest(networks),  # evaluations.csv has its first digits
    }
    played = folder.Published(out, about, policy)
    seeds = range(FIRST_SEED, FIRST_SEED + count)
    measured = episodes.play(played.make_envs, folder.runtime(played, "npz"), seeds).summary()
    about["evaluation"] = {
        **measured,
        "first_seed": FIRST_SEED,
        "seeds": f"reset(seed=s) for s = {seeds[0]} .. {seeds[-1]}, a new environment each",
    }
    files.write_json(out / folder.RECORD, about)
    sizes = ", ".join(f"{name} {entry['bytes']:,} bytes" for name, entry in written.items())
    say(
        f"  return {measured['mean']:,.1f} ± {measured['sd']:,.1f}, {live:,} of {links:,} links; "
        f"{sizes}; in {out}"
    )


def _links(masks: Any) -> tuple[int, int]:
    """Live links and all links of a network."""
    kernels = [
        x for path, x in jax.tree_util.tree_leaves_with_path(masks) if path[-1].key == "kernel"
    ]
    return sum(int(np.sum(x)) for x in kernels), sum(x.size for x in kernels)


def publish_all(
    logdirs: Sequence[Path],
    out: Path,
    *,
    count: int = EPISODES,
    allow_imports: bool = False,
    say: Say = print,
) -> list[Path]:
    """Publishes the best policy of each task; returns the folders."""
    onnx.check_installed()
    found = [x for d in logdirs for x in candidates(d, say, allow_imports=allow_imports)]
    if not found:
        raise PublishError(
            f"no finished run with a sparse lane in {', '.join(map(str, logdirs))}: finish one "
            f"first; dense and tiny networks, clones, and lanes that start from given weights or "
            f"masks are not published"
        )
    made = []
    for name, candidate in best(found).items():
        publish(candidate, out / name, count=count, say=say)
        made.append(out / name)
    return made


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines flags when the command runs, since other commands use the same names."""
    own: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_list("logdir", [], "Run directories, suites or directories of sweeps.", **own)
    flags.DEFINE_string(
        "out", "results/policies", "Output directory, with one folder per task.", **own
    )
    flags.DEFINE_integer("episodes", EPISODES, "Of the evaluation.", lower_bound=2, **own)
    flags.DEFINE_bool("allow_imports", False, FLAG_HELP, **own)


def command(values: flags.FlagValues) -> int:
    """Runs with parsed flags; returns the exit code."""
    known = (PublishError, CheckFailed, PolicyFileError, RunError, envs.EnvironmentFailure)
    try:
        if not values.logdir:
            raise PublishError("--logdir is needed: a run directory, or sweeps")
        publish_all(
            [Path(d) for d in values.logdir],
            Path(values.out),
            count=values.episodes,
            allow_imports=values.allow_imports,
        )
    except (*known, ValueError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def main(argv: list[str]) -> int:
    logging.set_verbosity(logging.WARNING)
    if len(argv) > 1:
        raise app.UsageError(f"unexpected {argv[1:]}: all settings are flags, --name=value")
    return crash.guarded(lambda: command(flags.FLAGS))


if __name__ == "__main__":
    define_flags()
    crash.run(main)
