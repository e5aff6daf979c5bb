"""Trains sparse or dense TD3 and SAC agents, with many lanes in one program.

rlx2 train --demo
rlx2 train --env=Hopper-v5 --algo=td3 --method=rlx2 --seeds=8 --paper_sparsity
rlx2 train --env=Hopper-v5 --method=dense,ss,set,rigl,rlx2 --seeds=4 --dry_run

Lanes are the product of all comma-separated values and seeds. Ctrl-C saves and stops; `rlx2 resume
RUN` continues. The exit code is 0 after a finished run, 2 for invalid settings, 3 if an environment
failed, 4 if another host was lost, and 128 + the signal number after a stop.
"""

import dataclasses
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import flags

from rlx2_jax import config as configs
from rlx2_jax import envs, presets
from rlx2_jax.cli import setting_flags, tracker_flags
from rlx2_jax.envs.trust import FLAG_HELP
from rlx2_jax.training import devices, distributed, lane_product, launch, plan, preflight, summary
from rlx2_jax.training.claim import SUMMARY
from rlx2_jax.training.guards import Stopped
from rlx2_jax.training.hosts import PATIENCE, HostLost, Hosts, check_place, meet
from rlx2_jax.training.lane_group import LaneFailure
from rlx2_jax.training.run import Run, RunError, read_run, with_time_limit
from rlx2_jax.training.settings import SettingError
from rlx2_jax.training.tracking import Track

DEMO = {
    "env": "InvertedPendulum-v5",
    "algo": "td3",
    "method": ["dense", "ss", "rlx2"],
    "seeds": 2,
    "steps": 80_000,
    "num_envs": 4,
    "utd": 0.25,
    "warmup": 2000,
    "hidden": [64, 64],
    "batch_size": 256,
    "actor_sparsity": [0.95],
    "critic_sparsity": [0.9],
    "learning_rate": [0.001],
    "discount": [0.995],
    "tau": [0.02],
    "mask_interval": [200],
    "t_end": [12_000],
    "t0": [2000],
    "buffer_interval": [2000],
    "b_min": [20_000],
    "eval_interval": 4000,
    "metrics_interval": 4000,
    "checkpoint_interval": 20_000,
}


_MACHINE = ("devices", "distributed", "coordinator", "num_processes", "process_id", "host_timeout")
_WITH_RESUME = (
    *("resume", "restart", "logdir", "dry_run"),
    *("allow_imports", "max_episode_steps", "use"),
    *tracker_flags.NAMES,
    *_MACHINE,
)


def define_flags(values: flags.FlagValues) -> None:
    """The flags of `rlx2 train`."""
    into: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_string("env", "InvertedPendulum-v5", "Environment id, e.g. Hopper-v5.", **into)
    text = "The package that simulates the environment."
    flags.DEFINE_enum("env_backend", "gymnasium", envs.BACKENDS, text, **into)
    flags.DEFINE_enum("algo", "td3", configs.ALGORITHMS, "The algorithm.", **into)
    flags.DEFINE_bool("paper_sparsity", False, "Use the paper's sparsities for --env.", **into)
    text = "paper: the paper's text, literally; reference: the authors' code."
    flags.DEFINE_enum("preset", "default", tuple(configs.PRESETS), text, **into)
    flags.DEFINE_string("logdir", None, "Run directory; default: runs/<env>-<algo>-<time>.", **into)
    flags.DEFINE_bool("resume", False, "Continue the run in --logdir (as rlx2 resume).", **into)
    text = "A file in final/ of a finished run to learn from: its Q with td3, its actions with bc."
    flags.DEFINE_string("expert", None, text, **into)
    define_time_limit(values, "Time limit of the environment; default: its own.")
    text = "Print the resolved settings and the resources they need, and stop."
    flags.DEFINE_bool("dry_run", False, text, **into)
    text = "Networks as dense masked arrays, or compact with only live links; auto: the faster one."
    flags.DEFINE_enum("execution", "auto", plan.EXECUTIONS, text, **into)
    text = "Step one half of the lanes' environments while the other half trains."
    flags.DEFINE_bool("pipeline", True, text, **into)
    text = "RLx2, static sparse and dense TD3 on InvertedPendulum, in about two minutes."
    flags.DEFINE_bool("demo", False, text, **into)
    tracker_flags.define(values)
    define_resume_flags(values, "With --resume: ")
    define_machine_flags(values)
    setting_flags.define_run_flags(values)
    setting_flags.define_lane_flags(values)
    setting_flags.define_choice_flags(values)


def define_resume_flags(values: flags.FlagValues, prefix: str = "") -> None:
    """The flags for resumed runs only."""
    for name, text in (
        ("restart", "Discard the run's checkpoints and logs and start over."),
        ("allow_imports", FLAG_HELP),
    ):
        text = f"{prefix}{text[0].lower()}{text[1:]}" if prefix else text
        flags.DEFINE_bool(name, False, text, flag_values=values)


def define_machine_flags(values: flags.FlagValues) -> None:
    """The flags for devices and hosts; a run can be resumed on different ones."""
    into: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_integer("devices", 0, "Devices to use; 0: all of this process.", 0, **into)
    text = (
        "Divide the lanes among processes, detected by SLURM, Open MPI, Kubernetes or a TPU pod, "
        "or given by the three flags below. All processes need the same run directory."
    )
    flags.DEFINE_bool("distributed", False, text, **into)
    flags.DEFINE_string(
        "coordinator", None, "host:port of process 0; implies --distributed.", **into
    )
    flags.DEFINE_integer("num_processes", None, "Number of processes.", 1, **into)
    flags.DEFINE_integer("process_id", None, "Number of this process, from 0.", 0, **into)
    text = "Seconds without a heartbeat after which a process counts as lost and the others stop."
    flags.DEFINE_float("host_timeout", PATIENCE, text, 1.0, **into)


def define_time_limit(values: flags.FlagValues, text: str) -> None:
    """The flag --max_episode_steps."""
    flags.DEFINE_integer("max_episode_steps", None, text, 1, 2**31 - 1, flag_values=values)


def flag_values(given: flags.FlagValues) -> dict[str, Any]:
    """All flag values by name; with --demo, flags that were not given get the demo's values."""
    values = {name: given[name].value for name in given}
    if values["demo"]:
        values |= {k: v for k, v in DEMO.items() if not given[k].present}
    return values


def swept_lanes(values: dict[str, Any]) -> list[configs.Lane]:
    """The product of all comma-separated flags and seeds, seeds innermost."""
    base = {}
    if values["paper_sparsity"]:
        base = presets.paper_sparsities(values["algo"], values["env"])
        for name in ("actor_sparsity", "critic_sparsity"):
            if values[name] is not None:
                raise SettingError(f"--paper_sparsity and --{name} contradict each other: give one")
    return lane_product.lanes(values, base)


def make_run(values: dict[str, Any]) -> Run:
    """The run from flag values."""
    common = {
        f.name: values[f.name] for f in dataclasses.fields(launch.Settings) if f.name in values
    }
    common["hidden"] = values["hidden"] and tuple(values["hidden"])
    options = {}
    if values["max_episode_steps"] is not None:
        options = envs.time_limit(values["env_backend"], values["max_episode_steps"])
    settings = launch.Settings(**common, choices=lane_product.choices(values), env_options=options)
    return launch.make_run(settings, swept_lanes(values))


def set_up(values: dict[str, Any], logdir: Path | None) -> Run:
    """The run from flag values, after all preflight checks; prints warnings."""
    try:
        run = make_run(values)
        warnings = preflight.check(run, logdir)
    except (RunError, ValueError, ImportError):
        raise
    except Exception as error:  # nothing has started: one line is clearer than a traceback
        raise SettingError(f"these settings fail: {type(error).__name__}: {error}") from error
    if not values["dry_run"]:  # `launch.describe` shows them
        for text in warnings:
            print(f"warning: {text}", file=sys.stderr)
    return run


def default_logdir(values: dict[str, Any]) -> Path:
    """The directory given by --logdir, or one named after the run and the time.

    Absolute, since environments may change the working directory.
    """
    if values["logdir"] is None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        name = f"{values['env'].replace('/', '_')}-{values['algo']}-{stamp}"
        return Path("runs", name).absolute()
    if not values["logdir"].strip():
        raise SettingError("--logdir= is empty: give a directory, or omit the flag")
    return Path(values["logdir"]).absolute()


def command(given: flags.FlagValues) -> int:
    """Runs with parsed flags; returns the exit code."""
    if given.resume:
        return resume(given)

    def start() -> tuple[Run, Path, Hosts, Track | None]:
        if given.restart:
            raise SettingError("--restart needs --resume: it starts an existing run over")
        track = tracker_flags.track_of(given.tracker, given.tracker_project)
        values = flag_values(given)
        hosts, name = _meet(given, str(default_logdir(values)))
        logdir = Path(name)
        # Only process 0 checks the directory: it may claim it before the others look.
        return set_up(values, logdir if hosts.index == 0 else None), logdir, hosts, track

    return _execute(start, given)


def resume(given: flags.FlagValues) -> int:
    """Continues the run in --logdir; returns the exit code."""

    def load() -> tuple[Run, Path, Hosts, Track | None]:
        if not given.logdir:
            raise SettingError("give the directory of the run: rlx2 resume RUN")
        others = [name for name in given if given[name].present and name not in _WITH_RESUME]
        if others:
            raise SettingError(
                f"--resume takes all settings from {given.logdir}: omit --{', --'.join(others)}"
            )
        track = tracker_flags.track_of(given.tracker, given.tracker_project)
        hosts, name = _meet(given, str(Path(given.logdir).absolute()))
        logdir = Path(name)
        run = read_run(logdir, allow_imports=given.allow_imports)
        if given.max_episode_steps is not None:
            run = with_time_limit(run, given.max_episode_steps)
        return run, logdir, hosts, track

    return _execute(load, given, resume=True, restart=given.restart)


def _meet(given: flags.FlagValues, logdir: str) -> tuple[Hosts, str]:
    """This process's place among those of the run, and the run directory of process 0."""
    if math.isnan(given.host_timeout):
        raise SettingError("--host_timeout=nan: give a number of seconds")
    place = (given.coordinator, given.num_processes, given.process_id)
    check_place(*place)
    alone = given.dry_run or not (given.distributed or given.coordinator)
    return (Hosts(), logdir) if alone else meet(logdir, *place)


def _execute(
    prepare: Callable[[], tuple[Run, Path, Hosts, Track | None]],
    given: flags.FlagValues,
    *,
    resume: bool = False,
    restart: bool = False,
) -> int:
    """Trains or (--dry_run) describes the run from `prepare`; returns the exit code."""
    try:
        run, logdir, hosts, track = prepare()
        if given.dry_run:
            devices.choose(given.devices)
            print(launch.describe(run))
            return 0
        where = f", process {hosts.index} of {hosts.count}" if hosts.count > 1 else ""
        print(f"{len(run.lanes)} lanes, writing to {logdir}{where}", file=sys.stderr)
        options = {"devices": given.devices, "patience": given.host_timeout, "track": track}
        results = distributed.train(
            run, logdir, hosts=hosts, resume=resume, restart=restart, **options
        )
        if results is not None:
            print(summary.table(results))
            print(f"\ncurves: {logdir / 'curves.png'}   all numbers: {logdir / SUMMARY}")
        return 0
    except (RunError, ValueError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except LaneFailure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 3
    except HostLost as lost:
        print(f"error: {lost}", file=sys.stderr)
        return 4
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        return 128 + stopped.signal_number
