"""Claims a run directory: writes or compares its settings and checks its output."""

import contextlib
import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlx2_jax import files
from rlx2_jax.envs import time_limit
from rlx2_jax.files import Damaged
from rlx2_jax.kernels import native
from rlx2_jax.training import fingerprint, heartbeat, logging, manifest, weights
from rlx2_jax.training.checkpoint import Checkpoints, Saved
from rlx2_jax.training.logging import SUMMARY as SUMMARY
from rlx2_jax.training.run import (
    CHECKPOINTS,
    CONFIG,
    Run,
    RunError,
    available_memory,
    chunk_size,
    disk_bytes,
    has_run,
    memory_bytes,
    read_run,
    resume_command,
    with_time_limit,
    without_time_limit,
)

# Fields that a run adds to checkpoint metadata.
_META = {"progress": list, "lanes": list, "exact": bool, "run": str, "fingerprint": dict}
CURVES = "curves.png"
_PNG_END = b"IEND\xaeB`\x82"


def claim(
    run: Run, directory: Path, *, resume: bool, restart: bool, say: Callable[[str], None]
) -> Run:
    """Writes the run's settings to its directory, or checks them against the existing ones.

    Returns the run with its number of lanes per chunk, which is fixed at the first start.
    """
    path, copy = directory / CONFIG, directory / CHECKPOINTS / CONFIG
    resumed, store = resume and has_run(directory), Checkpoints(copy.parent)
    if resumed:
        found = read_run(directory, say, allow_imports=True)  # the caller has checked `run`
        found = _add_time_limit(found, run, say)
        check_same_settings(found, run, directory)
        _check_memory(found)
        if restart:
            store.begin()
            _discard(directory)
    else:
        _refuse_other_files(directory)
        found = dataclasses.replace(run, chunk=chunk_size(run, available_memory()))
        _check_disk(found, directory)
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not resumed:
            store.begin()  # first: without this file, a run without checkpoints has lost them
        for file in (path, copy):
            if not _holds(file, found):
                files.write_json(file, found.to_json())
    except OSError as error:
        raise RunError(
            f"cannot write {CONFIG} to {directory} ({files.first_line(error)}): free some space, "
            f"or choose another --logdir"
        ) from error
    return found


def claim_parts(
    run: Run, directory: Path, *, resume: bool, restart: bool, say: Callable[[str], None]
) -> Run:
    """`claim` for a run in parts; each part is claimed by the process that trains it."""
    if resume and has_run(directory):
        found = read_run(directory, say, allow_imports=True)
        found = _add_time_limit(found, run, say)
        check_same_settings(found, run, directory)
        if restart:
            _discard(directory)
    else:
        _refuse_other_files(directory)
        found = run
    try:
        for file in (directory / CONFIG, directory / CHECKPOINTS / CONFIG):
            file.parent.mkdir(parents=True, exist_ok=True)
            if not _holds(file, found):
                files.write_json(file, found.to_json())
    except OSError as error:
        raise RunError(
            f"cannot write {CONFIG} to {directory} ({files.first_line(error)}): free some space, "
            f"or choose another --logdir"
        ) from error
    return found


def _add_time_limit(found: Run, wanted: Run, say: Callable[[str], None]) -> Run:
    """The run of the directory, with the time limit that `wanted` adds."""
    before = found.env_options
    if wanted.env_options == before or without_time_limit(wanted).env_options != before:
        return found
    (name,) = time_limit(found.backend, 1)
    steps = wanted.env_options[name]
    say(f"warning: episodes now end after {steps:,} steps; they had no time limit before")
    return with_time_limit(found, steps)


def newest_checkpoint(
    store: Checkpoints, run: Run, directory: Path, now: dict[str, Any], say: Callable[[str], None]
) -> Saved | None:
    """The newest valid checkpoint, checked against the run and the current fingerprint `now`."""
    begin_again = f"start over with {resume_command(run, directory)} --restart"
    try:
        saved = store.newest(say)
    except Damaged as error:
        raise RunError(f"{error}: restore them from a copy, or {begin_again}") from error
    if saved is None:
        if not store.begun_only:
            raise RunError(
                f"{directory} has no checkpoint to continue from: restore {CHECKPOINTS}/ from a "
                f"copy, or {begin_again}"
            )
        if _trained(directory):
            say("warning: this run had not saved a checkpoint yet: it starts over")
        return None
    try:
        manifest.check_fields(saved.meta, _META)
    except Damaged as error:
        raise RunError(f"{error}: resume it with the version that wrote it") from error
    digests = (run.digest, without_time_limit(run).digest)
    if saved.meta["run"] not in digests or saved.meta["chunk"] >= run.chunks:
        raise RunError(
            f"the checkpoints in {directory} belong to a run with other settings than "
            f"its {CONFIG}, or to another version of the program: restore the right "
            f"{CONFIG}, or resume with the version that wrote them"
        )
    before = saved.meta["fingerprint"]
    was, is_ = before.get("jax_enable_x64"), now["jax_enable_x64"]
    if was != is_:
        raise RunError(
            f"this run was started with JAX_ENABLE_X64={was}, now it is {is_}: set it to {was}"
        )
    for line in fingerprint.differences(before, now):
        say(f"warning: {line}; results may differ from those of an uninterrupted run")
    return saved


def _holds(path: Path, run: Run) -> bool:
    try:
        return Run.from_json(files.read_json(path)) == run
    except (Damaged, RunError):
        return False


def _refuse_other_files(directory: Path) -> None:
    names = (CONFIG, f"{CHECKPOINTS}/{CONFIG}", f"{CHECKPOINTS}/states", *logging.LOGS, SUMMARY)
    held = [name for name in names if (directory / name).exists()]
    if held:
        raise RunError(
            f"{directory} already holds a run ({held[0]}): continue it with rlx2 resume, "
            f"or choose another --logdir"
        )


def check_same_settings(found: Run, wanted: Run, directory: Path) -> None:
    """Raises if the settings differ. Execution mode, division of lanes and lane names may differ:
    the run keeps those it started with."""

    def plain(run: Run) -> dict[str, Any]:
        lanes = [dataclasses.replace(x, execution="masked", name="") for x in run.lanes]
        return dataclasses.replace(run, lanes=tuple(lanes), chunk=0, shards=0, parts=0).to_json()

    ours, theirs = plain(wanted), plain(found)
    other = [name for name in ours if ours[name] != theirs[name]]
    if other:
        raise RunError(
            f"{directory} holds a run with other settings ({', '.join(other)} differ): choose "
            f"another --logdir, or use the same settings"
        )
    if any(lane.execution == "compact" for lane in found.lanes) and native.execution() == "off":
        raise RunError(
            "this run has compact lanes, but RLX2_COMPACT=off disables them: unset RLX2_COMPACT"
        )


def _check_memory(run: Run) -> None:
    need, free = memory_bytes(run), available_memory()
    if need > free:
        raise RunError(
            f"this run needs about {need / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are "
            f"available: free some memory, then resume again"
        )


def _check_disk(run: Run, directory: Path) -> None:
    need, free = disk_bytes(run), shutil.disk_usage(directory).free
    if need > free:
        raise RunError(
            f"checkpoints will take about {need / 1e9:.1f} GB and {directory} has "
            f"{free / 1e9:.1f} GB free: free some space, lower --capacity, or choose another "
            f"--logdir"
        )


def _discard(directory: Path) -> None:
    """Deletes a run's output and keeps its settings."""
    for name in ("states", "data"):
        shutil.rmtree(directory / CHECKPOINTS / name, ignore_errors=True)
    for name in ("initial", "final"):
        shutil.rmtree(directory / name, ignore_errors=True)
    for name in (*logging.LOGS, SUMMARY, CURVES):
        files.discard(directory / name)


def damaged(directory: Path) -> list[str]:
    """Names of missing or changed results of a finished run; resuming restores them. Empty if its
    checkpoints were deleted, since nothing is known about the results then."""
    store = Checkpoints(directory / CHECKPOINTS)
    if not store.positions():
        return []
    run = read_run(directory, allow_imports=True)
    found = ([] if _holds(directory / CONFIG, run) else [CONFIG]) + store.damaged()
    for number in range(run.first, run.first + len(run.lanes)):
        name = f"final/lane-{number}.npz"
        try:
            weights.load(directory / name)
        except ValueError:
            found.append(name)
    try:
        whole = (directory / CURVES).read_bytes().endswith(_PNG_END)
    except OSError:
        whole = False
    found += [] if whole else [CURVES]
    stated = heartbeat.state_of(directory) == heartbeat.FINISHED
    return found if stated else [*found, heartbeat.NAME]


def _trained(directory: Path) -> bool:
    """Whether a run has progressed beyond its initial evaluation."""
    if (directory / SUMMARY).exists() or (directory / logging.METRICS).exists():
        return True
    path = directory / logging.EVALUATIONS
    with contextlib.suppress(OSError):
        steps = {line.split(",")[3] for line in path.read_text().splitlines()[1:]}
        return bool(steps - {"0"})
    return False
