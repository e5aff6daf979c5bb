"""Copies of logs and other run files among a checkpoint's data files.

A log is copied in segments, each holding the lines added since the last checkpoint. If the file or
its copy is damaged, it is restored from the other.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlx2_jax import files
from rlx2_jax.files import Log, Warn

Entry = dict[str, Any]  # an entry of `meta.json`, see `manifest.ENTRIES`


def save_tail(data: Path, log: Log, made: list[Path]) -> Entry:
    """Copies the new tail of a log. Adds the file to `made` before writing it."""
    begin = log.size - len(log.tail)
    path = data / f"log-{begin}-{log.size}-{log.path.name}"
    made.append(path)
    sha256 = files.write_bytes(path, bytes(log.tail))
    place = {"log": log.path.name, "begin": begin, "end": log.size}
    return {**place, "file": path.name, "sha256": sha256}


def save_file(data: Path, name: str, contents: bytes, made: list[Path]) -> Entry:
    """Copies a file. Adds the copy to `made` before writing it."""
    path = data / f"copy-{name.replace('/', '-')}"
    made.append(path)
    return {"name": name, "file": path.name, "sha256": files.write_bytes(path, contents)}


def restore_log(data: Path, entries: Sequence[Entry], path: Path, warn: Warn) -> int:
    """Truncates a log to its saved segments, or rebuilds it; returns its size."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        files.discard(path)  # never write through a link
    elif path.exists() and path.stat().st_nlink > 1:
        files.write_bytes(path, path.read_bytes())  # a hard link of a backup: leave that alone
    size = entries[-1]["end"] if entries else 0
    parts = [_segment(path, e) for e in entries]
    for part, entry in zip(parts, entries):
        copy = data / entry["file"]
        if part is not None and files.file_digest(copy) != entry["sha256"]:
            files.discard(copy)
            files.write_bytes(copy, part)
            warn(f"warning: {entry['file']} was damaged and has been copied from {path.name}")
    if None not in parts:
        if path.exists() and path.stat().st_size > size:
            os.truncate(path, size)
        return size
    whole = b"".join((data / e["file"]).read_bytes() for e in entries)
    files.discard(path)
    files.write_bytes(path, whole)
    warn(f"warning: {path.name} was damaged or incomplete and has been rebuilt")
    return size


def restore_files(run: Path, data: Path, entries: Sequence[Entry], warn: Warn) -> None:
    """Repairs files of the run directory from their copies, and vice versa."""
    for entry in entries:
        path, copy = run / entry["name"], data / entry["file"]
        good = [files.file_digest(p) == entry["sha256"] for p in (path, copy)]
        if not any(good):
            warn(f"warning: {entry['name']} and its copy are both damaged and cannot be restored")
        elif not all(good):
            source, other = (path, copy) if good[0] else (copy, path)
            files.discard(other)
            if not other.parent.is_dir():
                files.discard(other.parent)  # something else has its name
            other.parent.mkdir(parents=True, exist_ok=True)
            files.write_bytes(other, source.read_bytes())
            warn(f"warning: {other.name} was missing or damaged and has been restored")


def damaged(run: Path, logs: Sequence[Entry], copies: Sequence[Entry]) -> list[str]:
    """Names of logs and copied files of the run directory that have changed."""
    sizes = {e["log"]: e["end"] for e in logs}
    wrong = [e["log"] for e in logs if not holds(run / e["log"], e)]
    wrong += [name for name, size in sizes.items() if _size(run / name) != size]
    wrong += [e["name"] for e in copies if files.file_digest(run / e["name"]) != e["sha256"]]
    return list(dict.fromkeys(wrong))


def holds(path: Path, entry: Entry) -> bool:
    """Whether a log contains a segment, unchanged."""
    return _segment(path, entry) is not None


def _segment(path: Path, entry: Entry) -> bytes | None:
    """The bytes of a segment if the log still has them, else None."""
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
