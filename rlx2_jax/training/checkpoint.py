"""Checkpoints of a run: small arrays through Orbax, growing data in immutable files.

    checkpoints/
      states/<position>/arrays/    Orbax: every leaf of the lanes' states except the replay rows
      states/<position>/meta.json  names, shapes and dtypes of these leaves, digests of all files
      data/<name>                  replay rows, log segments, copies of weights; written once

A checkpoint exists once its directory has been renamed into place. Rows and log lines added since
the last checkpoint go into new data files; files that no kept checkpoint references are deleted.
All files are verified against their digests before any is used. Damaged logs and weights are
restored from the other copy (run directory or checkpoint). Nothing is pickled.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax import files
from rlx2_jax.files import Damaged, Log, Warn
from rlx2_jax.replay.buffer import Buffer
from rlx2_jax.training import copies, manifest, replay_rows, snapshot
from rlx2_jax.training.snapshot import ROWS, Snapshot, check_same, form, named, payload
from rlx2_jax.training.snapshot import take as take

_DATA = re.compile(r"(rows-.*\.npy|log-\d+-\d+-.*|copy-.*)(\.tmp)?", re.DOTALL)


class Saved(NamedTuple):
    """A verified checkpoint."""

    position: int
    meta: dict[str, Any]
    arrays: dict[str, np.ndarray]  # by name, e.g. "0.state.agent.actor.params.Dense_0.kernel"


class Checkpoints:
    """The checkpoints of a run, ordered by position (training progress over all chunks)."""

    def __init__(self, directory: Path, *, keep: int = 2):
        self._states, self._data, self._run = (
            directory / "states",
            directory / "data",
            directory.parent,
        )
        self._keep = keep
        self._rows: list[dict[str, Any]] = []  # data files with valid replay rows
        self._logs: list[dict[str, Any]] = []  # data files with the logs so far
        self._copies: list[dict[str, Any]] = []  # data files with copies of other files
        self._none_yet = directory / "none-yet"  # exists until the first checkpoint is saved

    def positions(self) -> list[int]:
        """Positions of the existing checkpoints, oldest first."""
        if not self._states.is_dir():
            return []
        return sorted(int(p.name) for p in self._states.iterdir() if p.name.isdecimal())

    def begin(self) -> None:
        """Marks the run as started without a checkpoint."""
        with contextlib.suppress(OSError):
            self._none_yet.parent.mkdir(parents=True, exist_ok=True)
            self._none_yet.touch()

    @property
    def begun_only(self) -> bool:
        """Whether no checkpoint was ever saved, so that the run may start over. False if
        checkpoints existed and were lost."""
        return self._none_yet.exists() and not self.positions()

    def save(
        self,
        position: int,
        chunk: int,
        snapshots: Sequence[Snapshot],
        logs: Sequence[Log],
        meta: dict[str, Any],
        written: Mapping[str, bytes] | None = None,
    ) -> None:
        """Saves the groups of one chunk of lanes, the logs and JSON-like `meta`.

        `written`: files of the run directory to keep copies of from now on, by name. Existing
        checkpoints are unchanged if this raises.
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
                for group, saved in enumerate(snapshots)
                for entry in self._save_rows(chunk, group, saved.state.replay, made)
            ]
            tails = [copies.save_tail(self._data, log, made) for log in logs if log.tail]
            segments = self._logs + tails
            new = (written or {}).items()
            kept = self._copies + [copies.save_file(self._data, *x, made) for x in new]
            # Copies: views would keep donated buffers alive.
            arrays = {name: np.array(leaf) for name, leaf in named(snapshots).items()}
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            digests = snapshot.write(partial / "arrays", arrays)
            info = {
                "chunk": chunk,
                "times": [s.time for s in snapshots],
                "arrays": {name: form(value) for name, value in arrays.items()},
                "states": digests,
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
        """The newest readable checkpoint, verified, or None if there are no checkpoints.

        Raises:
          Damaged: there are checkpoints, but none is readable.
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
        """One checkpoint, with its arrays and data files verified.

        Raises:
          Damaged: something is missing or was changed.
        """
        meta, arrays = self.read_arrays(position)
        for entry in meta["rows"]:
            if not self._is_intact(entry):
                raise Damaged(f"{entry['file']} is missing or was changed")
        for entry in meta["logs"]:  # a log and its segments are copies of each other
            if not (copies.holds(self._run / entry["log"], entry) or self._is_intact(entry)):
                raise Damaged(f"{entry['log']} and {entry['file']} are missing or were changed")
        return Saved(position, meta, arrays)

    def _is_intact(self, entry: dict[str, Any]) -> bool:
        return files.file_digest(self._data / entry["file"]) == entry["sha256"]

    def read_arrays(self, position: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The verified metadata and arrays of one checkpoint; data files are not read."""
        folder = self._states / str(position)
        meta = files.read_json(folder / "meta.json")
        manifest.check(meta)
        arrays = snapshot.read(folder / "arrays", meta["states"])
        check_same(arrays, meta["arrays"])
        return meta, arrays

    def load(self, saved: Saved, into: Sequence[Snapshot]) -> list[Snapshot]:
        """The groups of a checkpoint. Donates the replay arrays of `into`, which receive the rows.

        Raises:
          Damaged: the checkpoint does not match the arrays of `into`.
        """
        meta, out = saved.meta, []
        check_same(saved.arrays, {name: form(leaf) for name, leaf in named(into).items()})
        for group, like in enumerate(into):
            loaded = take(saved.arrays, group, payload(like))
            state = jax.tree.map(jnp.asarray, loaded["state"])
            entries = [entry for entry in meta["rows"] if entry["group"] == group]
            rings = self._load_rows(entries, like.state.replay)
            state = state._replace(replay=Buffer(**rings, **state.replay))
            out.append(Snapshot(int(meta["times"][group]), state, loaded["env"]))
        self._rows, self._logs, self._copies = (meta[x] for x in ("rows", "logs", "copies"))
        self._remove([p for p in self.positions() if p > saved.position])
        files.discard(self._none_yet)
        self.clean()
        return out

    def restore_log(self, saved: Saved | None, path: Path, warn: Warn) -> int:
        """Truncates a log to its size in the checkpoint, or rebuilds it; returns its size."""
        entries = [e for e in saved.meta["logs"] if e["log"] == path.name] if saved else []
        return copies.restore_log(self._data, entries, path, warn)

    def restore_copies(self, saved: Saved, warn: Warn) -> None:
        """Repairs files of the run directory from their copies, and vice versa."""
        copies.restore_files(self._run, self._data, saved.meta["copies"], warn)

    def damaged(self) -> list[str]:
        """Names of logs and copied files of the run directory that differ from the newest
        checkpoint; empty if there is none or its `meta.json` is unreadable."""
        for position in self.positions()[-1:]:
            try:
                meta = files.read_json(self._states / str(position) / "meta.json")
                manifest.check(meta)
            except Damaged:
                return []
            return copies.damaged(self._run, meta["logs"], meta["copies"])
        return []

    def clean(self) -> None:
        """Deletes unfinished files and data files that no checkpoint references."""
        named = {entry["file"] for entry in [*self._rows, *self._logs, *self._copies]}
        for position in self.positions():
            try:
                meta = files.read_json(self._states / str(position) / "meta.json")
                entries = [*meta["rows"], *meta["logs"], *meta["copies"]]
                named |= {entry["file"] for entry in entries}
            except (Damaged, KeyError, TypeError):
                return  # the files it references are unknown
        # Delete only files with our names: either folder may be a symlink to a shared one.
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
                continue  # retried after the next checkpoint
            shutil.rmtree(old, ignore_errors=True)

    def _save_rows(
        self, chunk: int, group: int, replay: Buffer, made: list[Path]
    ) -> list[dict[str, Any]]:
        """Writes rows added since the last checkpoint; returns the entries of all valid rows."""
        written = int(replay.written[0])
        oldest = written - int(jnp.max(replay.length))
        before = [e for e in self._rows if (e["chunk"], e["group"]) == (chunk, group)]
        kept = [e for e in before if e["end"] > oldest]
        if not all((self._data / e["file"]).is_file() for e in kept):
            kept = []  # a file was deleted: write all rows again
        begin = max([oldest] + [e["end"] for e in kept])
        if written == begin:
            return kept
        entries = []
        for name in ROWS:
            array = getattr(replay, name)
            if array is not None:
                path = self._data / f"rows-{chunk}-{group}-{name}-{begin}-{written}.npy"
                made.append(path)
                # Including the spare row, which holds the newest next observation.
                sha256 = files.write_blocks(path, replay_rows.blocks(array, begin, written + 1))
                place = {"chunk": chunk, "group": group, "begin": begin, "end": written}
                entries.append({**place, "array": name, "file": path.name, "sha256": sha256})
        return kept + entries

    def _load_rows(
        self, entries: Sequence[dict[str, Any]], like: Buffer
    ) -> dict[str, jax.Array | None]:
        rings: dict[str, Any] = {name: getattr(like, name) for name in ROWS}
        for entry in sorted(entries, key=lambda e: e["begin"]):
            name, path = entry["array"], self._data / entry["file"]
            rings[name] = replay_rows.fill(rings[name], path, entry["begin"])
        return rings
