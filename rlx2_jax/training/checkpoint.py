"""Checkpoints of a run: small arrays through Orbax, everything that grows in immutable files.

    checkpoints/
      states/<position>/arrays/    Orbax: every leaf of the lanes' states but the replay rows
      states/<position>/meta.json  names, shapes and types of these leaves, digests of all files
      data/<name>                  replay rows, log segments, copies of weights; written once

A checkpoint exists once its directory has been renamed into place. Rows and log lines added since
the last one go into new data files; files that no kept checkpoint names are deleted. Everything
is verified against its digest before any of it is used, and logs and weights that were damaged in
the run directory or here are restored from the other copy. Nothing is pickled.
"""

import contextlib
import io
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax import files
from rlx2_jax.files import Damaged, Log, Warn
from rlx2_jax.replay.buffer import Buffer
from rlx2_jax.training import manifest
from rlx2_jax.training.lane import LaneState

_ROWS = ("data", "flags", "mean")  # the ring arrays, kept in data files
_DATA = re.compile(r"(rows-.*\.npy|log-\d+-\d+-.*|copy-.*)(\.tmp)?", re.DOTALL)
_BLOCK = 1 << 24  # bytes of rows that are copied at a time


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


class Snapshot(NamedTuple):
    """What is saved of one group of lanes at one time."""

    time: int
    state: LaneState  # without the ring arrays of its replay, once saved
    env: Any  # a pytree of arrays


class Saved(NamedTuple):
    """A verified checkpoint."""

    position: int
    meta: dict[str, Any]
    arrays: dict[str, np.ndarray]  # by name, e.g. "0.state.agent.actor.params.Dense_0.kernel"


class Checkpoints:
    """The checkpoints of a run, ordered by position: how far the run has come."""

    def __init__(self, directory: Path, *, keep: int = 2):
        self._states, self._data, self._run = (
            directory / "states",
            directory / "data",
            directory.parent,
        )
        self._keep = keep
        self._rows: list[dict[str, Any]] = []  # data files that hold valid replay rows
        self._logs: list[dict[str, Any]] = []  # data files that hold the logs so far
        self._copies: list[dict[str, Any]] = []  # data files that hold copies of other files
        self._none_yet = directory / "none-yet"  # is there until the first checkpoint is

    def positions(self) -> list[int]:
        """Positions of the checkpoints that exist, oldest first."""
        if not self._states.is_dir():
            return []
        return sorted(int(p.name) for p in self._states.iterdir() if p.name.isdecimal())

    def begin(self) -> None:
        """Notes that a run begins and has no checkpoint yet."""
        with contextlib.suppress(OSError):
            self._none_yet.touch()

    @property
    def begun_only(self) -> bool:
        """Whether there was never a checkpoint, as far as is known: the run may begin again, which
        it may not where its checkpoints were lost."""
        return self._none_yet.exists() and not self.positions()

    def save(
        self,
        position: int,
        chunk: int,
        snapshots: Sequence[Snapshot],
        logs: Sequence[Log],
        meta: dict[str, Any],
        copies: Mapping[str, bytes] | None = None,
    ) -> None:
        """Saves the groups of one chunk of lanes, the logs and JSON-like `meta`, and from now on
        `copies` of other files of the run directory, by name.

        An exception leaves the checkpoints as they were.
        """
        if position in self.positions():
            return
        partial = self._states / f"{position}.tmp"
        made: list[Path] = []
        try:
            self._states.mkdir(parents=True, exist_ok=True)
            self._data.mkdir(parents=True, exist_ok=True)
            rows = [
                entry
                for group, snapshot in enumerate(snapshots)
                for entry in self._save_rows(chunk, group, snapshot.state.replay, made)
            ]
            segments = self._logs + [self._save_tail(log, made) for log in logs if log.tail]
            kept = self._copies + [self._save_copy(*item, made) for item in (copies or {}).items()]
            # Copies: views would keep donated buffers alive.
            arrays = {name: np.array(leaf) for name, leaf in _named(snapshots).items()}
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            ocp = _orbax()
            with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as writer:
                writer.save((partial / "arrays").resolve(), args=ocp.args.PyTreeSave(arrays))
            info = {
                "chunk": chunk,
                "times": [s.time for s in snapshots],
                "arrays": {name: _form(value) for name, value in arrays.items()},
                "states": _digests(partial / "arrays"),
                "rows": rows,
                "logs": segments,
                "copies": kept,
            }
            files.write_json(partial / "meta.json", {**meta, **info})
            os.rename(partial, self._states / str(position))
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            for path in made:
                files.discard(path)
            raise
        self._rows, self._logs, self._copies = rows, segments, kept
        files.discard(self._none_yet)
        for log in logs:
            log.kept()
        self._remove(self.positions()[: -self._keep])
        self.clean()

    def newest(self, warn: Warn) -> Saved | None:
        """The newest checkpoint that can be read, verified, or None where there is none.

        Raises:
          Damaged: there are checkpoints, and none of them can be read.
        """
        positions = self.positions()
        for position in reversed(positions):
            try:
                return self.read(position)
            except Damaged as error:
                warn(f"warning: checkpoint {position} is damaged ({error}); trying an older one")
        if positions:
            raise Damaged(f"none of the checkpoints {positions} in {self._states} can be read")
        return None

    def read(self, position: int) -> Saved:
        """One checkpoint, its arrays and data files verified.

        Raises:
          Damaged: something is missing or was changed.
        """
        meta, arrays = self.read_arrays(position)
        for entry in meta["rows"]:
            if not self._is_good(entry):
                raise Damaged(f"{entry['file']} is missing or was changed")
        for entry in meta["logs"]:  # a log and its segments are copies of each other
            if not (_holds(self._run / entry["log"], entry) or self._is_good(entry)):
                raise Damaged(f"{entry['log']} and {entry['file']} are missing or were changed")
        return Saved(position, meta, arrays)

    def _is_good(self, entry: dict[str, Any]) -> bool:
        return files.file_digest(self._data / entry["file"]) == entry["sha256"]

    def read_arrays(self, position: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The metadata and arrays of one checkpoint, verified; data files are not looked at."""
        folder = self._states / str(position)
        meta = files.read_json(folder / "meta.json")
        manifest.check(meta)
        # Before Orbax reads any of them: it neither verifies nor complains in an orderly way.
        found = _digests(folder / "arrays")
        if found != meta["states"]:
            names = {*found, *meta["states"]}
            wrong = [n for n in sorted(names) if found.get(n) != meta["states"].get(n)]
            raise Damaged(f"{', '.join(wrong)} missing or changed")
        ocp = _orbax()
        try:
            with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
                arrays = reader.restore(
                    (folder / "arrays").resolve(), args=ocp.args.PyTreeRestore()
                )
            arrays = {name: np.asarray(value) for name, value in arrays.items()}
        except Exception as error:  # Orbax raises many kinds
            raise Damaged(files.first_line(error)) from error
        _check_same(arrays, meta["arrays"])
        return meta, arrays

    def load(self, saved: Saved, into: Sequence[Snapshot]) -> list[Snapshot]:
        """The groups of a checkpoint; replay rows are written into the arrays of `into`, which are
        donated.

        Raises:
          Damaged: the checkpoint is of other lanes, sizes or versions than `into`.
        """
        meta, out = saved.meta, []
        _check_same(saved.arrays, {name: _form(leaf) for name, leaf in _named(into).items()})
        for group, like in enumerate(into):
            found = take(saved.arrays, group, _payload(like))
            state = jax.tree.map(jnp.asarray, found["state"])
            entries = [entry for entry in meta["rows"] if entry["group"] == group]
            rings = self._load_rows(entries, like.state.replay)
            state = state._replace(replay=Buffer(**rings, **state.replay))
            out.append(Snapshot(int(meta["times"][group]), state, found["env"]))
        self._rows, self._logs, self._copies = (meta[x] for x in ("rows", "logs", "copies"))
        self._remove([p for p in self.positions() if p > saved.position])
        files.discard(self._none_yet)
        self.clean()
        return out

    def restore_log(self, saved: Saved | None, path: Path, warn: Warn) -> int:
        """Cuts a log back to what a checkpoint has of it, or rebuilds it; returns its size."""
        if path.is_symlink() or (path.exists() and not path.is_file()):
            files.discard(path)  # what it leads to is not ours to write to
        entries = [e for e in saved.meta["logs"] if e["log"] == path.name] if saved else []
        size = entries[-1]["end"] if entries else 0
        parts = [_segment(path, e) for e in entries]
        for part, entry in zip(parts, entries):
            if part is not None and not self._is_good(entry):
                files.discard(self._data / entry["file"])
                files.write_bytes(self._data / entry["file"], part)
                warn(f"warning: {entry['file']} was damaged and has been copied from {path.name}")
        if None not in parts:
            if path.exists() and path.stat().st_size > size:
                os.truncate(path, size)
            return size
        whole = b"".join((self._data / e["file"]).read_bytes() for e in entries)
        files.discard(path)
        files.write_bytes(path, whole)
        warn(f"warning: {path.name} was damaged or incomplete and has been rebuilt")
        return size

    def restore_copies(self, saved: Saved, warn: Warn) -> None:
        """Repairs files of the run directory from their copies, and copies from the files."""
        for entry in saved.meta["copies"]:
            path, copy = self._run / entry["name"], self._data / entry["file"]
            good = [files.file_digest(p) == entry["sha256"] for p in (path, copy)]
            if not any(good):
                warn(f"warning: {entry['name']} and its copy are damaged: it is lost")
            elif not all(good):
                source, other = (path, copy) if good[0] else (copy, path)
                files.discard(other)
                other.parent.mkdir(parents=True, exist_ok=True)
                files.write_bytes(other, source.read_bytes())
                warn(f"warning: {other.name} was missing or damaged and has been restored")

    def damaged(self) -> list[str]:
        """Logs and copied files of the run directory that are not as the newest checkpoint knows
        them, by name; none where there is no checkpoint whose description can be read."""
        for position in self.positions()[-1:]:
            try:
                meta = files.read_json(self._states / str(position) / "meta.json")
                manifest.check(meta)
            except Damaged:
                return []
            sizes = {e["log"]: e["end"] for e in meta["logs"]}
            wrong = [e["log"] for e in meta["logs"] if not _holds(self._run / e["log"], e)]
            wrong += [n for n, size in sizes.items() if _size(self._run / n) != size]
            for entry in meta["copies"]:
                if files.file_digest(self._run / entry["name"]) != entry["sha256"]:
                    wrong.append(entry["name"])
            return list(dict.fromkeys(wrong))
        return []

    def clean(self) -> None:
        """Deletes unfinished files, and data files that no checkpoint refers to."""
        named = {entry["file"] for entry in [*self._rows, *self._logs, *self._copies]}
        for position in self.positions():
            try:
                meta = files.read_json(self._states / str(position) / "meta.json")
                entries = [*meta["rows"], *meta["logs"], *meta["copies"]]
                named |= {entry["file"] for entry in entries}
            except (Damaged, KeyError, TypeError):
                return  # what it refers to is not known
        # Only what has our names: either folder may be a link to one with other files.
        for path in self._data.glob("*"):
            if path.name not in named and _DATA.fullmatch(path.name):
                files.discard(path)
        for path in self._states.glob("*.*"):
            if path.stem.isdecimal() and path.suffix in (".tmp", ".old"):
                files.discard(path)

    def _remove(self, positions: Sequence[int]) -> None:
        for position in positions:
            old = self._states / f"{position}.old"
            try:
                os.rename(self._states / str(position), old)
            except OSError:
                continue  # tried again after the next checkpoint
            shutil.rmtree(old, ignore_errors=True)

    def _save_rows(
        self, chunk: int, group: int, replay: Buffer, made: list[Path]
    ) -> list[dict[str, Any]]:
        """Writes the rows added since the last checkpoint; entries of all valid rows."""
        written = int(replay.written[0])
        oldest = written - int(jnp.max(replay.length))
        own = [e for e in self._rows if (e["chunk"], e["group"]) == (chunk, group)]
        kept = [e for e in own if e["end"] > oldest]
        if not all((self._data / e["file"]).is_file() for e in kept):
            kept = []  # deleted by somebody: write all rows again
        begin = max([oldest] + [e["end"] for e in kept])
        if written == begin:
            return kept
        entries = []
        for name in _ROWS:
            array = getattr(replay, name)
            if array is not None:
                path = self._data / f"rows-{chunk}-{group}-{name}-{begin}-{written}.npy"
                made.append(path)
                # With the spare row, which holds the newest next observation.
                sha256 = files.write_blocks(path, _row_blocks(array, begin, written + 1))
                place = {"chunk": chunk, "group": group, "begin": begin, "end": written}
                entries.append({**place, "array": name, "file": path.name, "sha256": sha256})
        return kept + entries

    def _save_tail(self, log: Log, made: list[Path]) -> dict[str, Any]:
        begin = log.size - len(log.tail)
        path = self._data / f"log-{begin}-{log.size}-{log.path.name}"
        made.append(path)
        sha256 = files.write_bytes(path, bytes(log.tail))
        place = {"log": log.path.name, "begin": begin, "end": log.size}
        return {**place, "file": path.name, "sha256": sha256}

    def _save_copy(self, name: str, data: bytes, made: list[Path]) -> dict[str, Any]:
        path = self._data / f"copy-{name.replace('/', '-')}"
        made.append(path)
        return {"name": name, "file": path.name, "sha256": files.write_bytes(path, data)}

    def _load_rows(
        self, entries: Sequence[dict[str, Any]], like: Buffer
    ) -> dict[str, jax.Array | None]:
        rings: dict[str, Any] = {name: getattr(like, name) for name in _ROWS}
        for entry in sorted(entries, key=lambda e: e["begin"]):
            name, path = entry["array"], self._data / entry["file"]
            rings[name] = _fill(rings[name], path, entry["begin"])
        return rings


def _row_blocks(ring_array: jax.Array, begin: int, end: int) -> Iterator[bytes]:
    """Rows `begin` to `end` of `[lanes, ring + 1, ...]` as an .npy file `[rows, lanes, ...]`, a
    block at a time: a copy of all of them may not fit into memory."""
    lanes, ring, *rest = ring_array.shape
    ring -= 1  # the last row is scratch
    header = {"descr": ring_array.dtype.str, "fortran_order": False}
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {**header, "shape": (end - begin, lanes, *rest)})
    yield stream.getvalue()
    block = max(1, _BLOCK // (ring_array.nbytes // (ring + 1)))
    for start in range(begin, end, block):
        rows = np.arange(start, min(start + block, end)) % ring
        yield np.moveaxis(np.asarray(jnp.take(ring_array, rows, axis=1)), 1, 0).tobytes()


def _put_rows(ring_array: jax.Array, values: jax.Array, row: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(ring_array, values, row, axis=1)


_put = jax.jit(_put_rows, donate_argnums=0)


def _fill(ring_array: jax.Array, path: Path, begin: int) -> jax.Array:
    """Writes the rows of a file, the first being number `begin`, into the ring, in place."""
    ring = ring_array.shape[1] - 1
    block = max(1, _BLOCK // (ring_array.nbytes // (ring + 1)))
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        row, end = begin, begin + shape[0]
        each = int(np.prod(shape[1:]))
        while row < end:
            count = min(block, end - row, ring - row % ring)  # up to where the ring wraps
            values = np.fromfile(file, dtype, count * each).reshape(count, *shape[1:])
            values = np.ascontiguousarray(np.moveaxis(values, 0, 1))
            ring_array = _put(ring_array, values, np.int32(row % ring))
            row += count
    return ring_array


def take(arrays: dict[str, np.ndarray], group: int, like: Any) -> Any:
    """A tree like `like`, which is a part of a group's `{"state": ..., "env": ...}`, with the
    leaves that a checkpoint has under the same names."""
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    return jax.tree.unflatten(structure, [arrays[_name(group, path)] for path, _ in paths])


def _payload(snapshot: Snapshot) -> dict[str, Any]:
    """What goes through Orbax: everything but the replay rows."""
    replay = snapshot.state.replay._asdict()
    small = {k: v for k, v in replay.items() if k not in _ROWS}
    return {"state": snapshot.state._replace(replay=small), "env": snapshot.env}  # pyright: ignore


def _name(group: int, path: tuple[Any, ...]) -> str:
    """A leaf's name, e.g. "0.state.agent.actor.params.Dense_0.kernel"."""
    keys = (getattr(k, "name", getattr(k, "key", getattr(k, "idx", None))) for k in path)
    return ".".join([str(group), *(str(k).replace("/", ".") for k in keys)])


def _named(snapshots: Sequence[Snapshot]) -> dict[str, Any]:
    """All leaves but the replay rows, by name."""
    return {
        _name(group, path): leaf
        for group, snapshot in enumerate(snapshots)
        for path, leaf in jax.tree_util.tree_flatten_with_path(_payload(snapshot))[0]
    }


def _form(value: Any) -> str:
    """Type and shape, e.g. "float32[2,256]"."""
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"


def _check_same(found: dict[str, np.ndarray], expected: dict[str, str]) -> None:
    """Names, shapes and types of arrays against those expected."""
    for name in sorted({*found, *expected}):
        ours = expected.get(name, "absent")
        theirs = _form(found[name]) if name in found else "absent"
        if ours != theirs:
            raise Damaged(f"{name} is {theirs} in the checkpoint where {ours} is expected")


def _digests(folder: Path) -> dict[str, str | None]:
    """Digests of all files of a folder."""
    paths = sorted(path for path in folder.rglob("*") if not path.is_dir())
    return {str(path.relative_to(folder)): files.file_digest(path) for path in paths}


def _segment(path: Path, entry: dict[str, Any]) -> bytes | None:
    """The bytes of a segment where the log has them, else None."""
    try:
        with files.open_regular(path) as file:
            file.seek(entry["begin"])
            data = file.read(entry["end"] - entry["begin"])
    except OSError:
        return None
    return data if files.digest(data) == entry["sha256"] else None


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _holds(path: Path, entry: dict[str, Any]) -> bool:
    return _segment(path, entry) is not None
