"""Checkpoints: small states through Orbax, replay data in immutable chunk files.

    checkpoints/
      states/<time>/          Orbax, written asynchronously, committed atomically, last N kept
      replay/<name>.npy       rows of the replay ring, written once, named by a manifest

A checkpoint's manifest names the chunks that hold its rows, with their checksums: rows added
since the last checkpoint go into a new chunk and nothing is rewritten. Chunks that no kept
checkpoint names are deleted. Nothing is pickled.
"""

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from rlx2_jax.buffer import Buffer
from rlx2_jax.lane import LaneState

_ROWS = ("data", "flags", "mean")  # the ring arrays, kept in chunks


class Snapshot(NamedTuple):
    """What is saved of one group of lanes at one time."""

    time: int
    state: LaneState  # the ring arrays of its replay are dropped on the way to Orbax
    env: Any  # a pytree of arrays


class Damaged(Exception):
    """A checkpoint cannot be read."""


class Checkpoints:
    """The checkpoints of one chunk of a run: several groups of lanes, saved together."""

    def __init__(self, directory: Path, *, keep: int = 2):
        self._directory = directory
        self._replay = directory / "replay"
        self._replay.mkdir(parents=True, exist_ok=True)
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=True)
        self._manager = ocp.CheckpointManager(directory / "states", options=options)
        self._manifest: list[dict[str, Any]] = []  # chunks on disk that hold valid rows

    def save(self, snapshots: list[Snapshot], meta: dict[str, Any]) -> None:
        """Saves the groups and JSON-like `meta`. Small arrays are copied before this returns;
        writing them goes on behind."""
        step = max(s.time for s in snapshots)
        if step in self._manager.all_steps():
            return
        self.finish()
        manifest: list[dict[str, Any]] = []
        for group, snapshot in enumerate(snapshots):
            manifest += self._save_rows(group, snapshot.state.replay)
        info = {**meta, "manifest": manifest, "times": [s.time for s in snapshots]}
        self._manager.save(
            step,
            args=ocp.args.Composite(
                groups=ocp.args.PyTreeSave(_to_plain(snapshots)), meta=ocp.args.JsonSave(info)
            ),
        )
        self._manifest = manifest

    def finish(self) -> None:
        """Waits for what is being written, then deletes chunks that nothing refers to."""
        self._manager.wait_until_finished()
        named = {chunk["file"] for step in self.steps() for chunk in self._named_by(step)}
        named |= {chunk["file"] for chunk in self._manifest}
        for path in self._replay.iterdir():
            if path.name not in named:
                path.unlink()

    def steps(self) -> list[int]:
        """Times of the checkpoints that exist, oldest first."""
        return sorted(self._manager.all_steps())

    def restore(
        self, like: list[Snapshot], *, warn: Callable[[str], None]
    ) -> tuple[list[Snapshot], dict[str, Any]] | None:
        """The newest checkpoint that can be read, or None where there is none.

        Args:
          like: snapshots of the right structure, whose contents are replaced.
          warn: told of each damaged checkpoint that is passed over.
        """
        steps = self.steps()
        for step in reversed(steps):
            try:
                found = self._restore(step, like)
            except Exception as error:
                warn(f"checkpoint {step} cannot be read ({_first_line(error)}); trying an older")
                continue
            for newer in [s for s in steps if s > step]:
                self._manager.delete(newer)
            return found
        if steps:
            raise Damaged(f"none of the checkpoints {steps} in {self._directory} can be read")
        return None

    def close(self) -> None:
        """Waits for what is being written."""
        self.finish()
        self._manager.close()

    def _restore(self, step: int, like: list[Snapshot]) -> tuple[list[Snapshot], dict[str, Any]]:
        saved: Any = self._manager.restore(
            step,
            args=ocp.args.Composite(meta=ocp.args.JsonRestore(), groups=ocp.args.PyTreeRestore()),
        )
        meta, out = saved.meta, []
        for group, (found, old) in enumerate(zip(_from_plain(saved.groups, like), like)):
            chunks = [c for c in meta["manifest"] if c["group"] == group]
            replay = self._load_rows(chunks, old.state.replay, found["state"].replay)
            state = jax.tree.map(jnp.asarray, found["state"]._replace(replay=None))
            state = state._replace(replay=replay)
            out.append(Snapshot(int(meta["times"][group]), state, found["env"]))
        self._manifest = meta["manifest"]
        return out, meta

    def _save_rows(self, group: int, replay: Buffer) -> list[dict[str, Any]]:
        """Writes the rows added since the last chunk; the manifest of all valid rows."""
        written = int(replay.written[0])
        oldest = written - int(jnp.max(replay.length))
        kept = [c for c in self._manifest if c["group"] == group and c["end"] > oldest]
        begin = max([oldest] + [c["end"] for c in kept])
        ring = replay.data.shape[1] - 1
        chunks = []
        if written > begin:
            rows = np.arange(begin, written + 1) % ring  # with the spare row
            for name in _ROWS:
                array = getattr(replay, name)
                if array is not None:
                    values = np.asarray(jnp.take(array, rows, axis=1))
                    file = f"{group}-{name}-{begin}-{written}.npy"
                    crc = _write_array(self._replay / file, values)
                    where = {"group": group, "begin": begin, "end": written}
                    chunks.append({**where, "array": name, "file": file, "crc": crc})
        return kept + chunks

    def _load_rows(
        self, chunks: list[dict[str, Any]], like: Buffer, small: dict[str, np.ndarray]
    ) -> Buffer:
        ring = like.data.shape[1] - 1
        arrays = {
            n: np.zeros(getattr(like, n).shape, getattr(like, n).dtype)
            for n in _ROWS
            if getattr(like, n) is not None
        }
        for chunk in sorted(chunks, key=lambda c: c["begin"]):
            values = _read_array(self._replay / chunk["file"], chunk["crc"])
            rows = np.arange(chunk["begin"], chunk["end"] + 1) % ring
            arrays[chunk["array"]][:, rows] = values
        rest = {k: jnp.asarray(v) for k, v in small.items()}
        filled = {n: jnp.asarray(arrays.pop(n)) if n in arrays else None for n in _ROWS}
        return Buffer(**filled, **rest)

    def _named_by(self, step: int) -> list[dict[str, Any]]:
        try:
            restored: Any = self._manager.restore(
                step, args=ocp.args.Composite(meta=ocp.args.JsonRestore())
            )
            return restored.meta["manifest"]
        except Exception:  # damaged: its chunks are of no use
            return []


def _without_rows(state: LaneState) -> LaneState:
    small = {k: v for k, v in state.replay._asdict().items() if k not in _ROWS}
    return state._replace(replay=small)  # pyright: ignore[reportArgumentType]


def _payload(snapshots: list[Snapshot]) -> list[dict[str, Any]]:
    return [{"state": _without_rows(s.state), "env": s.env} for s in snapshots]


def _to_plain(snapshots: list[Snapshot]) -> dict[str, np.ndarray]:
    """All leaves but the replay rows under their number: Orbax then needs none of our classes."""
    leaves = jax.tree.leaves(_payload(snapshots))
    return {f"{i:05d}": np.array(leaf) for i, leaf in enumerate(leaves)}


def _from_plain(saved: dict[str, Any], like: list[Snapshot]) -> list[dict[str, Any]]:
    leaves, structure = jax.tree.flatten(_payload(like))
    found = [np.asarray(saved[name]) for name in sorted(saved)]
    if len(found) != len(leaves):
        raise Damaged(f"{len(found)} arrays where {len(leaves)} are expected")
    return jax.tree.unflatten(structure, found)


def _write_array(path: Path, values: np.ndarray) -> int:
    partial = path.with_suffix(".tmp")
    with partial.open("wb") as file:
        np.save(file, values, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    return zlib.crc32(path.read_bytes())


def _read_array(path: Path, crc: int) -> np.ndarray:
    data = path.read_bytes()
    if zlib.crc32(data) != crc:
        raise Damaged(f"{path.name} does not have its checksum")
    return np.load(path, allow_pickle=False)


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"
