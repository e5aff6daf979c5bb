"""Trains sparse (or dense) TD3 and SAC agents, several lanes in one program.

python -m experiments.train --demo
python -m experiments.train --env=Hopper-v5 --algo=td3 --method=rlx2 --seeds=8 --paper_sparsity
python -m experiments.train --env=Hopper-v5 --method=dense,ss,set,rigl,rlx2 --seeds=4 --dry_run
python -m experiments.train --resume --logdir=runs/hopper
"""

import dataclasses
import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import app, flags, logging

from experiments import runs
from experiments.runs import SettingError
from rlx2_jax import config as configs
from rlx2_jax import envs
from rlx2_jax.runtime import execute as execution
from rlx2_jax.runtime import plan, summary
from rlx2_jax.runtime.group import LaneFailure
from rlx2_jax.runtime.guards import Stopped
from rlx2_jax.runtime.run import Run, RunError, read_run

FLAGS = flags.FLAGS

flags.DEFINE_string("env", "InvertedPendulum-v5", "Environment id, e.g. Hopper-v5.")
flags.DEFINE_enum("env_backend", "gymnasium", envs.BACKENDS, "Who simulates the environment.")
flags.DEFINE_enum("algo", "td3", configs.ALGORITHMS, "The reinforcement learning algorithm.")
flags.DEFINE_integer(
    "seeds", 1, "Runs of each kind, with seeds first_seed, first_seed + 1, ...", lower_bound=1
)
flags.DEFINE_integer("first_seed", 0, "The first seed.", lower_bound=0)
flags.DEFINE_integer("steps", 3_000_000, "Environment steps of each run.", lower_bound=1)
flags.DEFINE_integer("warmup", 25_000, "Steps with random actions before learning begins.")
flags.DEFINE_integer("num_envs", 1, "Environments per run, stepped together.", lower_bound=1)
flags.DEFINE_float("utd", 1.0, "Gradient updates per environment step.", lower_bound=0.0)
flags.DEFINE_list("hidden", ["256", "256"], "Hidden units of each layer, all networks.")
flags.DEFINE_integer("batch_size", 256, "Transitions per update.", lower_bound=1)
flags.DEFINE_integer("capacity", None, "Replay buffer size; default: the largest b_max.")
flags.DEFINE_bool("paper_sparsity", False, "Take the sparsities that the paper has for --env.")
flags.DEFINE_enum(
    "preset",
    "default",
    tuple(configs.PRESETS),
    "paper: the text to the letter; reference: the authors' code.",
)
flags.DEFINE_integer("eval_interval", 5000, "Environment steps between evaluations.", lower_bound=1)
flags.DEFINE_integer("episodes", 10, "Episodes of an evaluation.", lower_bound=1)
flags.DEFINE_integer("metrics_interval", 5000, "Steps between rows of metrics.csv.", lower_bound=1)
flags.DEFINE_integer("checkpoint_interval", 50_000, "Steps between checkpoints.", lower_bound=1)
flags.DEFINE_integer("keep", 2, "Checkpoints kept.", lower_bound=1)
flags.DEFINE_string("logdir", None, "Run directory; default: runs/<env>-<algo>-<time>.")
flags.DEFINE_bool("resume", False, "Continue the run in --logdir.")
flags.DEFINE_bool(
    "restart", False, "With --resume: discard the run's checkpoints and logs and begin again."
)
flags.DEFINE_bool("dry_run", False, "Show what would be run, and what it needs, and stop.")
flags.DEFINE_integer(
    "chunk", 0, "Runs per compiled program; 0: as many as fit memory.", lower_bound=0
)
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

# Flags that take a list: every combination of their values is a lane.
_SWEPT: dict[str, tuple[Callable[[str], Any], str]] = {
    "method": (str, f"One or more of {', '.join(configs.METHODS)}."),
    "actor_sparsity": (float, "Share of the actor's links that are absent."),
    "critic_sparsity": (float, "Share of each critic's links that are absent."),
    "distribution": (str, "How sparsity is spread over layers: erdos_renyi, erk or uniform."),
    "learning_rate": (float, "Adam's step size."),
    "discount": (float, "γ."),
    "tau": (float, "Target update rate τ."),
    "exploration_noise": (float, "σ of TD3's exploration."),
    "zeta0": (float, "Initial mask update fraction ζ_0."),
    "mask_interval": (int, "Mask update interval Δ_m, in updates of a network."),
    "n": (int, "Steps of the multi-step target."),
    "t0": (int, "Updates with 1-step targets before that, T_0."),
    "d0": (float, "Policy distance threshold D_0."),
    "buffer_interval": (int, "Buffer check interval Δ_b, in environment steps."),
    "trim_ratio": (float, "Share of the buffer forgotten at a check."),
    "b_min": (int, "Smallest buffer that is trimmed."),
    "b_max": (int, "Largest buffer."),
}
_SWEPT_DEFAULTS = {"method": ["rlx2"]}
for _name, (_, _help) in _SWEPT.items():
    flags.DEFINE_list(_name, _SWEPT_DEFAULTS.get(_name), f"{_help} A comma-list makes lanes.")

for _name in runs.CHOICES:
    flags.DEFINE_string(_name, None, "Overrides the preset's choice (see docs/presets.md).")

DEMO = {
    "env": "InvertedPendulum-v5",
    "algo": "td3",
    "method": ["dense", "ss", "rlx2"],
    "seeds": 2,
    "steps": 12_000,
    "warmup": 1000,
    "hidden": ["64", "64"],
    "batch_size": 64,
    "actor_sparsity": ["0.9"],
    "critic_sparsity": ["0.9"],
    "learning_rate": ["0.001"],
    "discount": ["0.97"],
    "tau": ["0.01"],
    "exploration_noise": ["0.2"],
    "mask_interval": ["200"],
    "t0": ["2000"],
    "buffer_interval": ["500"],
    "b_min": ["1000"],
    "d0": ["0.05"],
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
    axes = []
    for name, (parse, _) in _SWEPT.items():
        if values[name] is not None:
            try:
                axes.append([(name, parse(x)) for x in values[name]])
            except ValueError as error:
                raise SettingError(f"--{name}={','.join(values[name])}: {error}") from error
    base = {}
    if values["paper_sparsity"]:
        base = runs.paper_sparsities(values["algo"], values["env"])
        for name in ("actor_sparsity", "critic_sparsity"):
            if values[name] is not None:
                raise SettingError(f"--paper_sparsity and --{name} contradict each other: give one")
    seeds = range(values["first_seed"], values["first_seed"] + values["seeds"])

    def lane(point: dict[str, Any], seed: int) -> configs.Lane:
        preset = configs.lane_preset(values["preset"], values["algo"], point["method"])
        return configs.Lane(**{**preset, **base, **point, "seed": seed})

    points = [dict(point) for point in itertools.product(*axes)]
    return [lane(point, seed) for point in points for seed in seeds]


def make_run(values: dict[str, Any]) -> Run:
    """The run that flag values describe."""
    common = {f.name: values[f.name] for f in dataclasses.fields(runs.Settings) if f.name in values}
    common["hidden"] = tuple(int(h) for h in values["hidden"])
    choices = {name: values[name] for name in runs.CHOICES if values[name] is not None}
    return runs.make_run(runs.Settings(**common, choices=choices), swept_lanes(values))


def load_run(directory: Path) -> Run:
    """The run that a directory holds."""
    given = [
        f.name
        for f in FLAGS.get_key_flags_for_module(sys.modules[__name__])
        if f.present and f.name not in ("resume", "restart", "logdir", "dry_run")
    ]
    if given:
        raise SettingError(
            f"--resume takes everything from {directory}: leave out --{', --'.join(given)}"
        )
    return read_run(directory)


def main(argv: list[str]) -> int:
    logging.set_verbosity(logging.WARNING)  # Orbax tells of every file
    if len(argv) > 1:
        raise app.UsageError(f"unexpected {argv[1:]}: all settings are flags, --name=value")
    try:
        if FLAGS.restart and not FLAGS.resume:
            raise SettingError("--restart goes with --resume: it begins an existing run again")
        if FLAGS.resume:
            if not FLAGS.logdir:
                raise SettingError("--resume needs --logdir, the directory of the run")
            run = load_run(Path(FLAGS.logdir))
        else:
            run = make_run(flag_values())
        if FLAGS.dry_run:
            print(runs.describe(run))
            return 0
        stamp = time.strftime("%Y%m%d-%H%M%S")
        logdir = Path(FLAGS.logdir or f"runs/{run.env.replace('/', '_')}-{run.config.algo}-{stamp}")
        print(f"{len(run.lanes)} lanes, writing to {logdir}", file=sys.stderr)
        found = execution.execute(run, logdir, resume=FLAGS.resume, restart=FLAGS.restart)
    except (RunError, ValueError, ImportError) as error:
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
    app.run(main)
