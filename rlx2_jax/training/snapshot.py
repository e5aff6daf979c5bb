"""What a checkpoint saves of a group of lanes: arrays by name, written and read through Orbax."""

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
    """What is saved of one group of lanes at one time."""

    time: int
    state: LaneState  # without the ring arrays of its replay, once saved
    env: Any  # a pytree of arrays


def take(arrays: dict[str, np.ndarray], group: int, like: Any) -> Any:
    """A tree like `like`, which is a part of a group's `{"state": ..., "env": ...}`, with the
    leaves that a checkpoint has under the same names."""
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    return jax.tree.unflatten(structure, [arrays[_name(group, path)] for path, _ in paths])


def payload(snapshot: Snapshot) -> dict[str, Any]:
    """What goes through Orbax: everything but the replay rows."""
    replay = snapshot.state.replay._asdict()
    small = {k: v for k, v in replay.items() if k not in ROWS}
    return {"state": snapshot.state._replace(replay=small), "env": snapshot.env}  # pyright: ignore


def _name(group: int, path: tuple[Any, ...]) -> str:
    """A leaf's name, e.g. "0.state.agent.actor.params.Dense_0.kernel"."""
    keys = (getattr(k, "name", getattr(k, "key", getattr(k, "idx", None))) for k in path)
    return ".".join([str(group), *(str(k).replace("/", ".") for k in keys)])


def named(snapshots: Sequence[Snapshot]) -> dict[str, Any]:
    """All leaves but the replay rows, by name."""
    return {
        _name(group, path): leaf
        for group, snapshot in enumerate(snapshots)
        for path, leaf in jax.tree_util.tree_flatten_with_path(payload(snapshot))[0]
    }


def form(value: Any) -> str:
    """Type and shape, e.g. "float32[2,256]"."""
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"


def check_same(found: dict[str, np.ndarray], expected: dict[str, str]) -> None:
    """Names, shapes and types of arrays against those expected."""
    for name in sorted({*found, *expected}):
        ours = expected.get(name, "absent")
        theirs = form(found[name]) if name in found else "absent"
        if ours != theirs:
            raise Damaged(f"{name} is {theirs} in the checkpoint where {ours} is expected")


def write(folder: Path, arrays: dict[str, np.ndarray]) -> dict[str, str | None]:
    """Writes arrays to a new folder; the digests of its files."""
    ocp = _orbax()
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as writer:
        writer.save(folder.resolve(), args=ocp.args.PyTreeSave(arrays))
    return _digests(folder)


def read(folder: Path, digests: dict[str, str | None]) -> dict[str, np.ndarray]:
    """The arrays of a folder whose files have these digests.

    Raises:
      Damaged: a file is missing or was changed.
    """
    # Before Orbax reads any of them: it neither verifies nor complains in an orderly way.
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
    """`sys.unraisablehook` without what TensorStore tells of a failed checkpoint: Orbax has closed
    the event loop when the other writes end. `save` raises the error that came first."""
    if str(unraisable.exc_value) != "Event loop is closed":
        _report_unraisable(unraisable)


def _is_news(record: logging.LogRecord) -> bool:
    """False for the tracebacks that asyncio and Orbax log of failed writes of a checkpoint: `save`
    raises the error itself."""
    if record.exc_info and "orbax" in Path(record.pathname).parts:
        return False
    error = record.exc_info[1] if record.exc_info else None
    return "OCDBT" not in f"{error} {record.getMessage()}"


_report_unraisable, sys.unraisablehook = sys.unraisablehook, _except_late_writes
for _library in ("asyncio", "absl"):
    logging.getLogger(_library).addFilter(_is_news)


def _orbax() -> Any:
    """Imported when a checkpoint is first written or read: it takes seconds."""
    import orbax.checkpoint

    return orbax.checkpoint
