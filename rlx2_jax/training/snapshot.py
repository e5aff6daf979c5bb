"""Snapshots of a group of lanes for checkpoints: arrays by name, stored through Orbax."""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rlx2_jax import files
from rlx2_jax.files import Damaged
from rlx2_jax.training.lane import LaneState

ROWS = ("data", "flags", "mean")  # the ring arrays of replay, kept in separate files


class Snapshot(NamedTuple):
    """The saved state of one group of lanes."""

    time: int
    state: LaneState  # ring arrays of replay are saved separately
    env: Any  # a pytree of arrays


def take(arrays: dict[str, np.ndarray], group: int, like: Any) -> Any:
    """A tree with the structure of `like` (a subtree of a group's `{"state": ..., "env": ...}`) and
    the checkpoint's leaves of the same names."""
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    return jax.tree.unflatten(structure, [arrays[_name(group, path)] for path, _ in paths])


def payload(snapshot: Snapshot) -> dict[str, Any]:
    """The part of a snapshot that Orbax stores: everything except the replay rows."""
    replay = snapshot.state.replay._asdict()
    small = {k: v for k, v in replay.items() if k not in ROWS}
    return {"state": snapshot.state._replace(replay=small), "env": snapshot.env}  # pyright: ignore


def _name(group: int, path: tuple[Any, ...]) -> str:
    """A leaf's name, e.g. "0.state.agent.actor.params.Dense_0.kernel"."""
    keys = (getattr(k, "name", getattr(k, "key", getattr(k, "idx", None))) for k in path)
    return ".".join([str(group), *(str(k).replace("/", ".") for k in keys)])


def named(snapshots: Sequence[Snapshot]) -> dict[str, Any]:
    """All leaves except the replay rows, by name."""
    return {
        _name(group, path): leaf
        for group, snapshot in enumerate(snapshots)
        for path, leaf in jax.tree_util.tree_flatten_with_path(payload(snapshot))[0]
    }


def form(value: Any) -> str:
    """Dtype and shape, e.g. "float32[2,256]"."""
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"


def check_same(found: dict[str, np.ndarray], expected: dict[str, str]) -> None:
    """Raises Damaged unless names, shapes and dtypes of arrays are as expected."""
    for name in sorted({*found, *expected}):
        ours = expected.get(name, "absent")
        theirs = form(found[name]) if name in found else "absent"
        if ours != theirs:
            raise Damaged(f"{name} is {theirs} in the checkpoint where {ours} is expected")


def write(folder: Path, arrays: dict[str, np.ndarray]) -> dict[str, str | None]:
    """Writes arrays to a new folder; returns the digests of its files."""
    ocp = _orbax()
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as writer:
        writer.save(folder.resolve(), args=ocp.args.PyTreeSave(arrays))
    return _digests(folder)


def read(folder: Path, digests: dict[str, str | None]) -> dict[str, np.ndarray]:
    """The arrays of a folder whose files have these digests.

    Raises:
      Damaged: a file is missing or was changed.
    """
    # Verify first: Orbax checks no digests, and its errors on damaged files vary.
    actual = _digests(folder)
    if actual != digests:
        wrong = [n for n in sorted({*actual, *digests}) if actual.get(n) != digests.get(n)]
        raise Damaged(f"{', '.join(wrong)} missing or changed")
    ocp = _orbax()
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            arrays = reader.restore(folder.resolve(), args=ocp.args.PyTreeRestore())
        return {name: np.asarray(value) for name, value in arrays.items()}
    except Exception as error:  # Orbax raises many kinds
        raise Damaged(files.first_line(error)) from error


def _digests(folder: Path) -> dict[str, str | None]:
    """Digests of all files of a folder."""
    paths = sorted(path for path in folder.rglob("*") if not path.is_dir())
    return {str(path.relative_to(folder)): files.file_digest(path) for path in paths}


def _except_late_writes(unraisable: Any) -> None:
    """A `sys.unraisablehook` that hides follow-up errors of a failed checkpoint: TensorStore writes
    that end after Orbax has closed the event loop. `save` raises the first error."""
    if str(unraisable.exc_value) != "Event loop is closed":
        _report_unraisable(unraisable)


def _is_informative(record: logging.LogRecord) -> bool:
    """False for tracebacks that asyncio and Orbax log for failed checkpoint writes, since `save`
    raises the error."""
    if record.exc_info and "orbax" in Path(record.pathname).parts:
        return False
    error = record.exc_info[1] if record.exc_info else None
    return "OCDBT" not in f"{error} {record.getMessage()}"


_report_unraisable, sys.unraisablehook = sys.unraisablehook, _except_late_writes
for _library in ("asyncio", "absl"):
    logging.getLogger(_library).addFilter(_is_informative)


def _orbax() -> Any:
    """Imports Orbax on first use, since the import takes seconds."""
    import orbax.checkpoint

    return orbax.checkpoint
