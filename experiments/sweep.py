"""Runs the paper's experiments: suites of resumable units, at any budget.

python -m experiments.sweep --list
python -m experiments.sweep --suite=nstep --budget=short --dry_run
python -m experiments.sweep --suite=table2,toy --budget=paper --shard=0/4 --logdir=/data/rlx2
python -m experiments.sweep --suite=all --budget=smoke --logdir=runs/smoke
python -m experiments.sweep --suite=table2 --budget=paper --preset=reference --env_version=v3
python -m experiments.sweep --suite=nstep --budget=short --launcher=slurm --slurm_partition=gpu
python -m experiments.sweep --suite=nstep --budget=short --launcher=ray --ray_address=auto

Run the same command again to continue; finished units are skipped. Settings apply to every unit of
every suite.
"""

import dataclasses
import fnmatch
import functools
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags, logging

from experiments import launchers, suites, units
from experiments.launchers import local
from experiments.reporting import ledgers
from experiments.suites import base
from experiments.units import Job, Unfinished
from rlx2_jax import config as configs
from rlx2_jax import envs, files
from rlx2_jax.cli import crash, setting_flags, tracker_flags
from rlx2_jax.option_table import MAX_LANES
from rlx2_jax.reporting import tables
from rlx2_jax.training import launch, plan
from rlx2_jax.training.guards import Stopped
from rlx2_jax.training.run import FORMAT, RunError, available_memory, chunk_size, memory_bytes
from rlx2_jax.training.settings import SettingError
from rlx2_jax.training.tracking import Track

QUICK = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false"
)


MOST_FRACTION = 100  # of the paper's schedule


def budget_of(name: str, **changes: Any) -> base.Budget:
    """A budget, with the given values that are not None."""
    given = {field: value for field, value in changes.items() if value is not None}
    fraction = given.get("fraction", 1.0)
    if not 0 < fraction <= MOST_FRACTION:  # also rejects nan
        raise ValueError(
            f"--fraction={fraction}: use a fraction of the paper's schedule, above 0 and at most "
            f"{MOST_FRACTION}"
        )
    return dataclasses.replace(suites.BUDGETS[name], **given)


def overrides_of(given: dict[str, Any]) -> dict[str, Any]:
    """Settings of all units from the given flags; -v3 tasks use EnvPool."""
    found = {name: value for name, value in given.items() if value is not None}
    version, backend = found.pop("env_version", None), found.get("env_backend")
    if version == "v3" and backend == "gymnasium":
        raise SettingError(
            "--env_version=v3 with --env_backend=gymnasium: Gymnasium has only -v4 and -v5; omit "
            "--env_backend, or use --env_backend=envpool"
        )
    return {**found, "env_backend": "envpool"} if version == "v3" and backend is None else found


def check_launcher_flags(given: flags.FlagValues) -> None:
    """Raises if flags of another launcher are given: without it they have no effect."""
    for other in set(launchers.NAMES) - {given.launcher}:
        stray = [f"--{name}" for name in sorted(given) if name.startswith(f"{other}_")]
        stray = [name for name in stray if given[name[2:]].present]
        if stray:
            raise ValueError(
                f"{', '.join(stray)}: needs --launcher={other}, not --launcher={given.launcher}"
            )


def select(units: list[base.Unit], patterns: list[str]) -> list[base.Unit]:
    """The units whose names match one of `patterns`, in the order of the patterns."""
    found = [u for p in patterns for u in units if fnmatch.fnmatchcase(u.name, p)]
    return list({unit.name: unit for unit in found}.values())


def parse_shard(text: str) -> tuple[int, int]:
    """`i/n` as numbers."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or int(match[1]) >= int(match[2]):
        raise ValueError(f"--shard={text}: use i/n with i from 0 to n - 1, for instance 0/4")
    return int(match[1]), int(match[2])


def describe_suite(suite: base.Suite, budget: base.Budget, units: list[base.Unit]) -> dict:
    """The contents of `suite.json`: the plan, with which reports detect missing units."""
    own = dataclasses.asdict(budget)
    if not budget.overrides:  # for compatibility with older plans
        del own["overrides"]
    return {
        "format": FORMAT,
        "suite": suite.name,
        "title": suite.title,
        "budget": own,
        "units": [
            {
                "name": unit.name,
                "kind": unit.kind,
                "group": unit.group,
                "directory": unit.directory,
                "env": unit.settings.env,
                "algo": unit.settings.algo,
                "hidden": list(unit.settings.hidden or ()),
                "steps": unit.settings.steps,
                "needs": list(unit.needs),
                "lanes": [dataclasses.asdict(lane) for lane in unit.lanes],
            }
            for unit in units
        ],
    }


def claim(directory: Path, expected: dict[str, Any]) -> None:
    """Writes the plan to the suite's directory; raises if it has a different one."""
    path = directory / "suite.json"
    plain = json.loads(json.dumps(expected))
    if path.exists():
        try:
            found = files.read_json(path)
        except files.Damaged as error:
            raise RunError(
                f"{error}: restore it, delete it if the suite was started with the same flags, or "
                f"choose another --logdir"
            ) from error
        if found != plain:
            raise RunError(
                f"{directory} has {found.get('suite')} at budget "
                f"{found.get('budget', {}).get('name')} with different settings: "
                f"choose another --logdir, or use the same settings"
            )
        return
    directory.mkdir(parents=True, exist_ok=True)
    files.write_json(path, plain)


def check_units(suite: str, own: list[base.Unit], budget: base.Budget, execution_: str) -> None:
    """Raises if a unit cannot run with its settings, before any unit runs."""
    for unit in own:
        try:
            units.make_run(unit, budget, execution_)
        except (RunError, ValueError, ImportError) as error:
            raise SettingError(f"{suite}/{unit.name}: {error}") from error


def list_units(
    chosen: list[base.Suite],
    budget: base.Budget,
    *,
    estimate: bool,
    execution_: str = "auto",
    only: list[str] | None = None,
) -> str:
    """The output of `--list` and `--dry_run`."""
    lines, hours = [], 0.0
    for suite in chosen:
        own = select(suites.units(suite, budget), only or ["*"])
        lines.append(f"{suite.name}: {suite.title}" + ("" if own else "  (nothing to train)"))
        for unit in own:
            kind = "" if unit.kind == "train" else f"  {unit.kind}"
            needs = f"  needs {', '.join(unit.needs)}" if unit.needs else ""
            needs += f"  is {unit.home}/{unit.home_name}" if unit.home else ""
            text = (
                f"  {unit.name:<30} {unit.settings.env:<22} {len(unit.lanes):>4} lanes  "
                f"{unit.settings.steps:>9,} steps{kind}{needs}"
            )
            if estimate and not (unit.home and any(s.name == unit.home for s in chosen)):
                run = units.make_run(unit, budget, execution_)
                time = launch.seconds_per_step(run) * run.config.steps / 3600
                chunk = chunk_size(run, available_memory())
                memory = memory_bytes(run, run.lanes[:chunk])
                text += f"  about {time:,.1f} h, {memory / 1e9:.1f} GB"
                hours += time
            lines.append(text)
    if estimate:
        lines.append(
            f"about {hours:,.1f} hours on two CPU cores in total, without evaluation; "
            f"budget {budget.name}: {budget.fraction:g} of the paper's steps, {budget.seeds} seeds"
        )
    return "\n".join(lines)


def sweep(
    chosen: list[base.Suite],
    budget: base.Budget,
    logdir: Path,
    *,
    shard: tuple[int, int] = (0, 1),
    execution_: str = "auto",
    only: list[str] | None = None,
    track: Track | None = None,
    launcher: Callable[[Sequence[Job]], list[Unfinished]] = local.launch,
) -> int:
    """Passes all units of this shard to a launcher; returns the number of unfinished ones."""
    planned = [(suite, suites.units(suite, budget)) for suite in chosen]
    for suite, own in planned if budget.overrides else []:
        check_units(suite.name, select(own, only or ["*"]), budget, execution_)
    jobs = []
    for suite, own in planned:
        if not own:
            continue
        claim(logdir / suite.name, describe_suite(suite, budget, own))
        group = f"{logdir.resolve().name}/{suite.name}"
        for unit in select(base.shard(own, *shard), only or ["*"]):
            named = track and dataclasses.replace(track, group=group, job=unit.name)
            jobs.append(Job(suite.name, unit, logdir, budget, execution_, named))
    unfinished = launcher(jobs) if jobs else []
    for job in unfinished:
        units.say(f"not finished: {job.name} ({job.why.splitlines()[0]})")
    return len(unfinished)


def define_flags(values: flags.FlagValues = flags.FLAGS) -> list[str]:
    """Defines flags when the command runs, since other commands use the same names. Returns the
    names of flags that are settings of units."""
    own: dict[str, Any] = {"flag_values": values}
    names = ", ".join(suites.CATALOGUE)
    flags.DEFINE_list("suite", [], f"One or more of {names}; or all.", **own)
    flags.DEFINE_enum(
        "budget",
        "smoke",
        tuple(suites.BUDGETS),
        "smoke: minutes, only tests that it runs; short: 10% of the paper's schedule; paper: all.",
        **own,
    )
    flags.DEFINE_float(
        "fraction", None, "Fraction of the paper's schedule; default: the budget's.", **own
    )
    flags.DEFINE_integer(
        "seeds", None, "Number of seeds; default: the budget's.", 1, MAX_LANES, **own
    )
    text = "Evaluations per run; the paper has 600, one every 5000 steps."
    flags.DEFINE_integer("evaluations", None, text, 1, **own)
    text = "Only units that match one of these patterns, for instance td3-hopper-*, in this order."
    flags.DEFINE_list("units", [], text, **own)
    flags.DEFINE_string("logdir", None, "Directory of the suites; default: runs/<budget>.", **own)
    flags.DEFINE_string("shard", "0/1", "i/n: this process runs part i (from 0) of n.", **own)
    flags.DEFINE_bool("list", False, "Show suites and their units, and stop.", **own)
    flags.DEFINE_bool("dry_run", False, "Show units, lanes and estimated hours, and stop.", **own)
    text = "Execution mode, as in rlx2 train."
    flags.DEFINE_enum("execution", "auto", plan.EXECUTIONS, text, **own)
    text = "paper: the paper's text, literally; reference: the authors' code."
    flags.DEFINE_enum("preset", None, tuple(configs.PRESETS), text, **own)
    text = "Version of the tasks; default: v5. The paper's v3 needs EnvPool."
    flags.DEFINE_enum("env_version", None, base.VERSIONS, text, **own)
    text = "The package that simulates the environments; default: gymnasium."
    flags.DEFINE_enum("env_backend", None, envs.BACKENDS, text, **own)
    text = "Time limit of the environments; default: their own."
    flags.DEFINE_integer("max_episode_steps", None, text, 1, 2**31 - 1, **own)
    text = "Step one half of the lanes' environments while the other half trains; default: true."
    flags.DEFINE_bool("pipeline", None, text, **own)
    text = "Run units in this process, as a SLURM job array, or on a Ray cluster (docs/sweeps.md)."
    flags.DEFINE_enum("launcher", "local", launchers.NAMES, text, **own)
    for name in launchers.NAMES:
        launchers.find(name).define_flags(values)
    tracker_flags.define(values)
    names = ["preset", "env_version", "env_backend", "max_episode_steps", "pipeline"]
    return names + setting_flags.define_sweep_flags(base.LEAST, values)


def main(argv: list[str], settings: Sequence[str] = ()) -> int:
    logging.set_verbosity(logging.WARNING)
    if len(argv) > 1:
        raise app.UsageError(f"unexpected {argv[1:]}: all settings are flags, --name=value")
    return crash.guarded(lambda: command(flags.FLAGS, settings))


def command(given: flags.FlagValues, settings: Sequence[str]) -> int:
    """Runs with parsed flags; returns the exit code."""
    if given.budget == "smoke":  # compiling takes longer than running: do not optimize
        os.environ.setdefault("XLA_FLAGS", QUICK)
    try:
        check_launcher_flags(given)
        names = ("fraction", "seeds", "first_seed", "evaluations")
        changes = {name: given[name].value for name in names}
        overrides = {n: given[n].value for n in settings if n not in names}
        changes |= {"version": given.env_version, "overrides": overrides_of(overrides)}
        budget = budget_of(given.budget, **changes)
        shard = parse_shard(given.shard)
        chosen = suites.find(given.suite or (["all"] if given.list else []))
        options = {"execution_": given.execution, "only": given.units}
        track = tracker_flags.track_of(given.tracker, given.tracker_project)
        launcher = functools.partial(launchers.find(given.launcher).launch, values=given)
        if given.units and not any(select(suites.units(x, budget), given.units) for x in chosen):
            raise ValueError(f"--units={','.join(given.units)}: no unit matches; see --list")
        if given.list or given.dry_run:
            print(list_units(chosen, budget, estimate=given.dry_run, **options))
            return 0
        if "flops" in (suite.name for suite in chosen):
            print("\n\n".join(tables.markdown(x) for x in ledgers.flops_tables()))
        if given.logdir is not None and not given.logdir.strip():
            raise ValueError("--logdir= is empty: give a directory, or omit the flag")
        logdir = Path(given.logdir or f"runs/{budget.name}")
        common = {"shard": shard, "track": track, "launcher": launcher}
        left = sweep(chosen, budget, logdir, **common, **options)
    except (RunError, RuntimeError, ValueError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Stopped as stopped:
        print(f"{stopped}\nor run the same sweep again", file=sys.stderr)
        return 128 + stopped.signal_number
    where = [shlex.quote(str(path)) for path in (logdir, logdir / "report")]
    print("report: python -m experiments.report --logdir={} --out={}".format(*where))
    return 1 if left else 0


if __name__ == "__main__":
    names = define_flags()
    crash.run(functools.partial(main, settings=names))
