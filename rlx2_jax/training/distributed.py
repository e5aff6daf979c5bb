"""Trains a run on one host or several."""

import contextlib
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlx2_jax.training import parts
from rlx2_jax.training.claim import SUMMARY, claim_parts, damaged
from rlx2_jax.training.execute import execute
from rlx2_jax.training.guards import Stopped, locked
from rlx2_jax.training.hosts import DONE, PATIENCE, STOPPED, TRAINING, HostLost, Hosts, Watch
from rlx2_jax.training.lane_group import LaneFailure
from rlx2_jax.training.run import Run, RunError, has_run, read_run, resume_command

_CLAIMED = f"{TRAINING} parts"  # of process 0, once the run directory is in use
_MERGE_SECONDS = 30.0
_ALONE = Hosts()


def train(
    run: Run,
    directory: Path,
    *,
    hosts: Hosts = _ALONE,
    patience: float = PATIENCE,
    resume: bool = False,
    restart: bool = False,
    **options: Any,
) -> dict[str, Any] | None:
    """Trains the lanes of `run` that belong to this process; returns the summary in process 0, None
    in others.

    Args:
      patience: seconds without a heartbeat after which a process counts as lost.
      resume, restart, options: as in `execute`.

    Raises:
      HostLost: another process was lost or has stopped; this one has saved.
      others: as in `execute`.
    """
    directory = Path(directory)
    if resume and has_run(directory):
        begun = read_run(directory, allow_imports=True).parts  # the caller has checked `run`
        run = dataclasses.replace(run, parts=begun)
    elif hosts.count > 1:
        run = parts.divided(run, hosts.count)
    if hosts.count == 1 and run.parts < 2:
        return execute(run, directory, resume=resume, restart=restart, **options)
    if run.parts < 1:
        raise RunError(
            f"{directory} holds a run that was started in one process: resume it without "
            f"--distributed"
        )
    say = options.get("say") or (lambda line: None)
    if track := options.get("track"):
        name = directory.resolve().name  # the lanes of all parts share one group
        options["track"] = dataclasses.replace(track, group=track.group or name)
    with contextlib.ExitStack() as stack:
        first, claimed = hosts.index == 0, False
        if first:
            stack.enter_context(locked(directory))
        watch = stack.enter_context(Watch(directory, hosts, patience))
        try:
            if first:
                run = claim_parts(run, directory, resume=resume, restart=restart, say=say)
                claimed = True
                watch.say(_CLAIMED)
            else:
                watch.wait(lambda states: any(x in (_CLAIMED, DONE) for x in states))
            _train_parts(run, directory, hosts, watch, restart, options)
            watch.say(DONE)
            if not first:
                return None
            watch.wait(lambda states: all(x == DONE for x in states))
        except HostLost as lost:
            raise HostLost(_advice(str(lost), run, directory)) from None
        finally:
            merged = parts.merge(run, directory) if claimed else None
        return merged


def _train_parts(
    run: Run, directory: Path, hosts: Hosts, watch: Watch, restart: bool, options: dict[str, Any]
) -> None:
    """Trains the parts of this process, one after the other."""
    merge = _Merging(run, directory) if hosts.index == 0 else None
    for number in range(hosts.index, run.parts, hosts.count):
        part, folder = parts.part(run, number), parts.folder(directory, number)
        if not restart and (folder / SUMMARY).exists() and not damaged(folder):
            continue
        begun = has_run(folder)
        more = {"resume": begun, "restart": restart and begun, "home": directory}
        try:
            execute(part, folder, **options, **more, interrupt=lambda: _check(watch, merge))
        except Stopped as stopped:
            if not stopped.signal_number:
                raise HostLost(watch.problem or str(stopped)) from None
            watch.say(STOPPED, "by a signal")
            raise
        except LaneFailure:
            watch.say(STOPPED, "because an environment failed")
            raise


def _check(watch: Watch, merge: "_Merging | None") -> str | None:
    if merge is not None:
        merge()
    return watch()


class _Merging:
    """Updates the merged logs periodically, for users who follow the run."""

    def __init__(self, run: Run, directory: Path):
        self._merge: Callable[[], Any] = lambda: parts.merge(run, directory)
        self._last = time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self._last > _MERGE_SECONDS:
            with contextlib.suppress(OSError):
                self._merge()
            self._last = time.monotonic()


def _advice(problem: str, run: Run, directory: Path) -> str:
    return (
        f"{problem}: this process has saved its lanes and stops. Continue on one or more hosts "
        f"(--distributed) with {resume_command(run, directory)}"
    )
