"""A SLURM job array, submitted with submitit: one task per unit, or per `--slurm_shards`.

Units that depend on each other share a task. SIGUSR2, which SLURM sends before a job's time limit,
stops the run after its step; it saves a checkpoint, and submitit requeues the job, which continues.
Jobs that SLURM requeues after a node failure or preemption also continue.
"""

import getpass
import importlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from experiments import units
from experiments.suites import base
from experiments.units import Job, Unfinished
from rlx2_jax import files
from rlx2_jax.reporting import status
from rlx2_jax.training.guards import Stopped

SIGNAL = signal.SIGUSR2
_POLL = 5.0  # seconds
_GRACE = 900.0  # seconds; more than SLURM's delay between SIGTERM and SIGKILL
_JOBS = "jobs.json"
# Flags that are passed to sbatch under the same names.
_OPTIONS = {
    "partition": "Partition.",
    "account": "Account.",
    "qos": "Quality of service.",
    "constraint": "Features that nodes must have.",
    "nodelist": "Only these nodes.",
    "exclude": "Not these nodes.",
    "mem": "Memory of a task, for instance 16GB.",
}


def define_flags(values: flags.FlagValues) -> None:
    """The flags --slurm_*."""
    own: dict[str, Any] = {"flag_values": values}
    for name, text in _OPTIONS.items():
        flags.DEFINE_string(f"slurm_{name}", None, text, **own)
    text = "Minutes after which a task is stopped, saved and requeued."
    flags.DEFINE_integer("slurm_time", 1440, text, 1, **own)
    flags.DEFINE_integer("slurm_cpus_per_task", None, "CPUs of a task.", 1, **own)
    flags.DEFINE_integer("slurm_gpus", None, "GPUs of a task.", 0, **own)
    text = "Maximum number of concurrent tasks."
    flags.DEFINE_integer("slurm_array_parallelism", 256, text, 1, **own)
    text = "Put the units into this many tasks; default: one task per unit."
    flags.DEFINE_integer("slurm_shards", None, text, 1, **own)
    text = "Seconds between the signal to save and a task's time limit."
    flags.DEFINE_integer("slurm_signal_delay", 120, text, 1, **own)
    text = "How often a task is requeued after reaching its time limit."
    flags.DEFINE_integer("slurm_max_timeouts", 100, text, 0, **own)
    text = "A shell command to run first, for instance 'module load cuda'; may be repeated."
    flags.DEFINE_multi_string("slurm_setup", [], text, **own)
    text = "Any other option of sbatch, as name=value; may be repeated."
    flags.DEFINE_multi_string("slurm_option", [], text, **own)
    text = "Wait for the jobs; default: submit them and return."
    flags.DEFINE_bool("slurm_wait", False, text, **own)


def parameters(values: flags.FlagValues) -> dict[str, Any]:
    """Parameters of submitit's `AutoExecutor`, from flags."""
    extra = dict(_pair(text) for text in values.slurm_option)
    if values.slurm_signal_delay >= 60 * values.slurm_time:
        raise ValueError(
            f"--slurm_time={values.slurm_time} leaves no time to train: tasks are stopped "
            f"--slurm_signal_delay={values.slurm_signal_delay} seconds before the limit; raise "
            f"--slurm_time (minutes) or lower --slurm_signal_delay (seconds)"
        )
    found = {f"slurm_{name}": values[f"slurm_{name}"].value for name in _OPTIONS}
    found |= {
        "name": "rlx2",
        "timeout_min": values.slurm_time,
        "cpus_per_task": values.slurm_cpus_per_task,
        "gpus_per_node": values.slurm_gpus,
        "slurm_array_parallelism": values.slurm_array_parallelism,
        "slurm_signal_delay_s": values.slurm_signal_delay,
        "slurm_setup": list(values.slurm_setup) or None,
        "slurm_additional_parameters": {"requeue": True, **extra},
    }
    return {name: value for name, value in found.items() if value is not None}


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"--slurm_option={text}: use name=value, for instance mail-type=FAIL")
    return name.removeprefix("--"), value


class Task:
    """One task of the array. submitit pickles it, calls it in the job, and calls `checkpoint` when
    the job is requeued; finished units are not run again."""

    def __init__(self, jobs: Sequence[Job]):
        self.jobs = list(jobs)

    def __call__(self) -> list[Unfinished]:
        requeue, came = signal.getsignal(SIGNAL), []
        signal.signal(
            SIGNAL, lambda *_: came.append(SIGNAL)
        )  # running units install another handler
        found = []
        try:
            for number, job in enumerate(self.jobs, 1):
                if came:
                    break
                found.append(units.attempt(job, number, len(self.jobs)))
        except Stopped as stopped:
            if stopped.signal_number != SIGNAL:
                if (
                    "SLURM_JOB_ID" in os.environ
                ):  # SLURM does not requeue a preempted job that exits
                    time.sleep(_GRACE)  # SLURM kills the job before this ends
                raise
            came.append(SIGNAL)
        signal.signal(SIGNAL, requeue)
        if came and callable(requeue):
            requeue(SIGNAL, None)  # submitit's handler: requeues this job and exits
        return [job for job in found if job is not None]

    def checkpoint(self) -> Any:
        submitit = import_submitit()
        return submitit.helpers.DelayedSubmission(self)


def tasks(jobs: Sequence[Job], shards: int | None = None) -> list[Task]:
    """The tasks of the array; jobs that depend on each other or share a directory are one task."""
    groups: list[list[Job]] = []
    for suite in dict.fromkeys(job.suite for job in jobs):
        own = {job.unit.name: job for job in jobs if job.suite == suite}
        parts = base.components([job.unit for job in own.values()])
        groups += [[own[unit.name] for unit in part] for part in parts]
    taken: set[Path] = set()
    found = []
    for group in groups:
        fresh = [job for job in group if job.directory not in taken]
        taken |= {job.directory for job in fresh}
        found += [fresh] if fresh else []
    if shards is not None:
        found = [[job for group in found[i::shards] for job in group] for i in range(shards)]
    return [Task(group) for group in found if group]


def import_submitit() -> Any:
    """Imports submitit without its logging setup, which would close existing handlers."""
    level = "SUBMITIT_LOG_LEVEL"
    before = os.environ.get(level)
    os.environ[level] = "NOCONFIG"
    try:
        return importlib.import_module("submitit")
    except ImportError as error:
        raise ImportError(
            "--launcher=slurm needs the package submitit: pip install 'rlx2_jax[slurm]'"
        ) from error
    finally:
        del os.environ[level]  # jobs inherit the environment, and may log
        if before is not None:
            os.environ[level] = before


def launch(jobs: Sequence[Job], values: flags.FlagValues) -> list[Unfinished]:
    """Submits every job that is neither finished nor queued; with --slurm_wait, returns the jobs
    that failed."""
    submitit = import_submitit()
    folder = jobs[0].logdir / "slurm"
    try:
        executor = submitit.AutoExecutor(
            folder, cluster="slurm", slurm_max_num_timeout=values.slurm_max_timeouts
        )
    except RuntimeError as error:
        raise RuntimeError(
            f"--launcher=slurm: {error}: run this where sbatch and srun are installed"
        ) from error
    executor.update_parameters(**parameters(values))
    return submit(executor, jobs, folder, shards=values.slurm_shards, wait=values.slurm_wait)


def submit(
    executor: Any,
    jobs: Sequence[Job],
    folder: Path,
    *,
    shards: int | None = None,
    wait: bool = False,
) -> list[Unfinished]:
    """Submits `jobs` with a submitit executor; see `launch`."""
    if os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2") != "USR2":
        raise ValueError("SUBMITIT_PREEMPT_SIGNAL is set: unset it, jobs are stopped by USR2")
    folder.mkdir(parents=True, exist_ok=True)
    known = _read(folder / _JOBS)
    queue = queued() if known else set()
    begun = {place: number for place, number in known.items() if number in queue}
    found: list[Unfinished] = []
    open_jobs = []
    for number, job in enumerate(jobs, 1):
        head = f"[{number}/{len(jobs)}] {job.name}: {len(job.unit.lanes)} lanes"
        if job.place in begun:
            units.say(f"{head}, queued before as job {begun[job.place]}")
        elif not (done := units.settled(job, head)):
            open_jobs.append(job)
        elif isinstance(done, Unfinished):
            found.append(done)
    own, submitted = tasks(open_jobs, shards), []
    if own:
        with executor.batch():
            submitted = [executor.submit(task) for task in own]
        numbers = {j.place: s.job_id for task, s in zip(own, submitted) for j in task.jobs}
        files.write_json(folder / _JOBS, {**begun, **numbers})
        begun |= numbers
        first = submitted[0].job_id.partition("_")[0]
        logdir = jobs[0].logdir
        units.say(
            f"submitted {len(open_jobs)} units in {len(own)} tasks as job {first}; output is in "
            f"{folder}; rlx2 status {logdir} shows their progress"
        )
    if wait:
        if executor.cluster == "slurm":
            _wait(set(begun.values()))
        else:
            for job in submitted:
                job.wait()
        left = [job for job in jobs if not units.finished(job.directory)]
        failed = {job.name for job in found}
        found += [Unfinished(job.name, _why(job)) for job in left if job.name not in failed]
    return found


def _wait(numbers: set[str]) -> None:
    """Blocks until none of these jobs is pending or running."""
    while True:
        try:
            if not numbers & queued():
                return
        except RuntimeError as error:  # SLURM is restarting, or too busy
            units.say(f"warning: {error}")
        time.sleep(_POLL)


def _why(job: Job) -> str:
    now = status.read(job.directory, job.name)
    missing = f"needs {', '.join(job.missing)}" if job.missing else ""
    return now.error or missing or f"{now.state}; see the output of its task"


def queued() -> set[str]:
    """Ids of this user's pending or running jobs."""
    command = ["squeue", "--noheader", "--array", "--format=%i", f"--user={getpass.getuser()}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise RuntimeError(f"squeue does not respond ({files.first_line(error)})") from error
    return set(done.stdout.split())


def _read(path: Path) -> dict[str, str]:
    try:
        return {k: str(v) for k, v in files.read_json(path).items()}
    except files.Damaged:
        return {}
