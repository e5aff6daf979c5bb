"""Trains sparse (or dense) TD3 and SAC agents, several lanes in one program.

python -m experiments.train --demo
python -m experiments.train --env=Hopper-v5 --algo=td3 --method=rlx2 --seeds=8 --paper_sparsity
python -m experiments.train --env=Hopper-v5 --method=dense,ss,set,rigl,rlx2 --seeds=4 --dry_run
python -m experiments.train --resume --logdir=runs/hopper
"""

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

from absl import app, flags, logging

from experiments import crash, paper, setting_flags
from rlx2_jax import config as configs
from rlx2_jax import envs
from rlx2_jax.envs.trust import FLAG_HELP
from rlx2_jax.runtime import execute as execution
from rlx2_jax.runtime import lane_product, launch, plan, preflight, summary
from rlx2_jax.runtime.group import LaneFailure
from rlx2_jax.runtime.guards import Stopped
from rlx2_jax.runtime.run import Run, RunError, read_run
from rlx2_jax.runtime.settings import SettingError

FLAGS = flags.FLAGS

flags.DEFINE_string("env", "InvertedPendulum-v5", "Environment id, e.g. Hopper-v5.")
flags.DEFINE_enum("env_backend", "gymnasium", envs.BACKENDS, "Who simulates the environment.")
flags.DEFINE_enum("algo", "td3", configs.ALGORITHMS, "The reinforcement learning algorithm.")
flags.DEFINE_bool("paper_sparsity", False, "Take the sparsities that the paper has for --env.")
flags.DEFINE_enum(
    "preset",
    "default",
    tuple(configs.PRESETS),
    "paper: the text to the letter; reference: the authors' code.",
)
flags.DEFINE_string("logdir", None, "Run directory; default: runs/<env>-<algo>-<time>.")
flags.DEFINE_bool("resume", False, "Continue the run in --logdir.")
flags.DEFINE_bool(
    "restart", False, "With --resume: discard the run's checkpoints and logs and begin again."
)
flags.DEFINE_bool("allow_imports", False, f"With --resume: {FLAG_HELP[0].lower()}{FLAG_HELP[1:]}")
flags.DEFINE_integer(
    "max_episode_steps",
    None,
    "Time limit of the environment; default: its own.",
    lower_bound=1,
    upper_bound=2**31 - 1,
)
flags.DEFINE_bool("dry_run", False, "Show what would be run, and what it needs, and stop.")
flags.DEFINE_enum(
    "execution",
    "auto",
    plan.EXECUTIONS,
    "Networks as dense arrays and masks, or as their live links only; auto: whichever is faster.",
)
flags.DEFINE_bool("pipeline", True, "Step one half of the runs while the other half learns.")
flags.DEFINE_bool(
    "demo",
    False,
    "RLx2, static sparse and dense TD3 on InvertedPendulum, with a schedule that fits two minutes.",
)

setting_flags.define_run_flags()
setting_flags.define_lane_flags()
setting_flags.define_choice_flags()

DEMO = {
    "env": "InvertedPendulum-v5",
    "algo": "td3",
    "method": ["dense", "ss", "rlx2"],
    "seeds": 2,
    "steps": 12_000,
    "warmup": 1000,
    "hidden": [64, 64],
    "batch_size": 64,
    "actor_sparsity": [0.9],
    "critic_sparsity": [0.9],
    "learning_rate": [0.001],
    "discount": [0.97],
    "tau": [0.01],
    "exploration_noise": [0.2],
    "mask_interval": [200],
    "t0": [2000],
    "buffer_interval": [500],
    "b_min": [1000],
    "d0": [0.05],
    "eval_interval": 1000,
    "metrics_interval": 1000,
    "checkpoint_interval": 4000,
}


def flag_values() -> dict[str, Any]:
    """All of this module's flags, the demonstration's filled in where none was given."""
    names = [f.name for f in FLAGS.get_key_flags_for_module(sys.modules[__name__])]
    values = {name: FLAGS[name].value for name in names}
    if FLAGS.demo:
        values |= {k: v for k, v in DEMO.items() if not FLAGS[k].present}
    return values


def swept_lanes(values: dict[str, Any]) -> list[configs.Lane]:
    """The product of all comma-listed flags and seeds, seeds innermost."""
    base = {}
    if values["paper_sparsity"]:
        base = paper.sparsities(values["algo"], values["env"])
        for name in ("actor_sparsity", "critic_sparsity"):
            if values[name] is not None:
                raise SettingError(f"--paper_sparsity and --{name} contradict each other: give one")
    return lane_product.lanes(values, base)


def make_run(values: dict[str, Any]) -> Run:
    """The run that flag values describe."""
    common = {
        f.name: values[f.name] for f in dataclasses.fields(launch.Settings) if f.name in values
    }
    common["hidden"] = tuple(values["hidden"])
    options = {}
    if values["max_episode_steps"] is not None:
        options = envs.time_limit(values["env_backend"], values["max_episode_steps"])
    settings = launch.Settings(**common, choices=lane_product.choices(values), env_options=options)
    return launch.make_run(settings, swept_lanes(values))


def set_up(values: dict[str, Any], logdir: Path) -> Run:
    """The run that flag values describe, after all checks of a start; prints warnings."""
    try:
        run = make_run(values)
        warnings = preflight.check(run, logdir)
    except (RunError, ValueError, ImportError):
        raise
    except Exception as error:  # nothing has begun: one line says more than a traceback
        raise SettingError(f"these settings fail: {type(error).__name__}: {error}") from error
    if not values["dry_run"]:  # `launch.describe` has them
        for text in warnings:
            print(f"warning: {text}", file=sys.stderr)
    return run


def default_logdir(values: dict[str, Any]) -> Path:
    """The directory that --logdir names, or one named after the run and the time."""
    if values["logdir"] is None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        return Path(f"runs/{values['env'].replace('/', '_')}-{values['algo']}-{stamp}")
    if not values["logdir"].strip():
        raise SettingError("--logdir= is empty: name a directory, or leave it out")
    return Path(values["logdir"])


_WITH_RESUME = ("resume", "restart", "logdir", "dry_run", "allow_imports")


def load_run(directory: Path) -> Run:
    """The run that a directory holds."""
    given = [
        f.name
        for f in FLAGS.get_key_flags_for_module(sys.modules[__name__])
        if f.present and f.name not in _WITH_RESUME
    ]
    if given:
        raise SettingError(
            f"--resume takes everything from {directory}: leave out --{', --'.join(given)}"
        )
    return read_run(directory, allow_imports=FLAGS.allow_imports)


def main(argv: list[str]) -> int:
    logging.set_verbosity(logging.WARNING)  # Orbax tells of every file
    if len(argv) > 1:
        raise app.UsageError(f"unexpected {argv[1:]}: all settings are flags, --name=value")
    return crash.guarded(command)


def command() -> int:
    """Runs with parsed flags; the exit code."""
    try:
        if FLAGS.restart and not FLAGS.resume:
            raise SettingError("--restart goes with --resume: it begins an existing run again")
        if FLAGS.resume:
            if not FLAGS.logdir:
                raise SettingError("--resume needs --logdir, the directory of the run")
            logdir = Path(FLAGS.logdir)
            run = load_run(logdir)
        else:
            values = flag_values()
            logdir = default_logdir(values)
            run = set_up(values, logdir)
        if FLAGS.dry_run:
            print(launch.describe(run))
            return 0
        print(f"{len(run.lanes)} lanes, writing to {logdir}", file=sys.stderr)
        found = execution.execute(run, logdir, resume=FLAGS.resume, restart=FLAGS.restart)
    except (RunError, ValueError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except LaneFailure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 3
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        return 128 + stopped.signal_number
    print(summary.table(found))
    print(f"\ncurves: {logdir / 'curves.png'}   all numbers: {logdir / execution.SUMMARY}")
    return 0


if __name__ == "__main__":
    crash.escape_output()  # for --help
    app.run(main)
