"""One unit of a sweep: a resumable run directory, trained by a launcher."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments import cloning
from experiments.suites import base
from rlx2_jax import files
from rlx2_jax.cli import crash
from rlx2_jax.envs import EnvironmentFailure
from rlx2_jax.reporting import status
from rlx2_jax.training import execute as execution
from rlx2_jax.training import heartbeat, launch, preflight
from rlx2_jax.training.claim import check_same_settings, damaged
from rlx2_jax.training.guards import Stopped
from rlx2_jax.training.lane_group import LaneFailure
from rlx2_jax.training.run import Run, RunError, has_run, read_run
from rlx2_jax.training.tracking import Track

# Errors with a sufficient message.
_KNOWN = (LaneFailure, EnvironmentFailure, RunError, ValueError, ImportError, OSError)


@dataclasses.dataclass(frozen=True)
class Job:
    """A unit with everything needed to train it, possibly in another process."""

    suite: str
    unit: base.Unit
    logdir: Path  # of the sweep
    budget: base.Budget
    execution: str = "auto"
    track: Track | None = None

    @property
    def name(self) -> str:
        return f"{self.suite}/{self.unit.name}"

    @property
    def place(self) -> str:
        """Its directory in `logdir`, possibly in another suite that trains the same unit."""
        return f"{self.unit.home}/{self.unit.home_name}" if self.unit.home else self.name

    @property
    def directory(self) -> Path:
        return self.logdir / self.place

    @property
    def needs(self) -> list[str]:
        """Names of the jobs that must finish first."""
        return [f"{self.suite}/{name}" for name in self.unit.needs]

    @property
    def missing(self) -> list[str]:
        """Unfinished units that it depends on."""
        folder = self.logdir / self.suite
        return [name for name in self.unit.needs if not finished(folder / name)]


@dataclasses.dataclass(frozen=True)
class Unfinished:
    """A job that did not finish, and why."""

    name: str
    why: str


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def finished(directory: Path) -> bool:
    """Whether a unit is finished, that is, has a summary, which is written last."""
    try:
        files.read_json(directory / execution.SUMMARY)
    except files.Damaged:
        return False
    return True


def make_run(unit: base.Unit, budget: base.Budget, execution_: str = "auto") -> Run:
    """The `Run` of a unit."""
    settings, lanes = dataclasses.replace(unit.settings, execution=execution_), unit.lanes
    if unit.kind == "clone":
        transitions = budget.clone_episodes * settings.env_options.get("max_episode_steps", 1000)
        settings, lanes = cloning.imitating(settings, lanes, transitions)
    return launch.make_run(settings, lanes)


def run_unit(
    unit: base.Unit,
    directory: Path,
    budget: base.Budget,
    execution_: str,
    track: Track | None = None,
) -> None:
    """Trains or continues one unit."""
    run = make_run(unit, budget, execution_)
    for text in preflight.warnings(run):
        say(f"warning: {text}")
    execution.execute(run, directory, resume=has_run(directory), track=track)


def settled(job: Job, head: str) -> Unfinished | bool:
    """Whether a job is finished; `Unfinished` if its directory has a different unit."""
    if not finished(job.directory):
        return False
    if other := _other_settings(job):
        return _failed(job, other)
    if not (wrong := _damaged(job.directory)):
        say(f"{head}, finished before")
        return True
    names = ", ".join(wrong)
    say(f"warning: {job.name} had finished, but {names} is missing or damaged: restoring")
    return False


def attempt(job: Job, number: int = 1, count: int = 1) -> Unfinished | None:
    """Trains a job unless it is finished; returns None if it is finished now.

    Raises:
      Stopped: by a signal, with everything saved.
    """
    head = f"[{number}/{count}] {job.name}: {len(job.unit.lanes)} lanes"
    done = settled(job, head)
    if done:
        return None if done is True else done
    if job.missing:
        say(f"{head}, skipped: it needs {', '.join(job.missing)}")
        return Unfinished(job.name, f"needs {', '.join(job.missing)}")
    say(head)
    try:
        run_unit(job.unit, job.directory, job.budget, job.execution, job.track)
    except Stopped:
        raise
    except Exception as error:  # continue with the other units
        text = str(error) if isinstance(error, _KNOWN) else crash.report(error)
        _note_failure(job.directory, text)
        return _failed(job, text, f"{type(error).__name__}: {error}")
    return None


def attempt_all(jobs: Sequence[Job]) -> list[Unfinished]:
    """Attempts jobs in sequence; returns the unfinished ones."""
    found = [attempt(job, number, len(jobs)) for number, job in enumerate(jobs, 1)]
    return [job for job in found if job is not None]


def _failed(job: Job, text: str, why: str = "") -> Unfinished:
    say(f"{job.name} failed: {text}")
    return Unfinished(job.name, why or text)


def _note_failure(directory: Path, text: str) -> None:
    """Records a failure for `rlx2 status` if the unit failed before its run started."""
    now = status.read(directory, "")
    if (
        now.state == heartbeat.RUNNING or now.error
    ):  # another process trains it, or it recorded the error
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        heartbeat.record(directory, heartbeat.FAILED, error=text)
    except OSError as error:
        say(f"warning: {directory / heartbeat.NAME} not written ({files.first_line(error)})")


def _damaged(directory: Path) -> list[str]:
    """Results of a finished unit that are missing or changed and can be restored."""
    try:
        return damaged(directory)
    except RunError:
        return []


def _other_settings(job: Job) -> str:
    """Why a finished unit differs from the requested one; empty if it does not."""
    if not has_run(job.directory):
        return ""
    try:
        run = make_run(job.unit, job.budget)
        check_same_settings(read_run(job.directory), run, job.directory)
    except (RunError, ValueError, ImportError) as error:
        return str(error)
    return ""
