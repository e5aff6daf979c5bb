"""Crash-safe file writing, and detection of damaged files.

Whole files are written to a temporary name and renamed, so readers see either the old or the new
contents. JSON files include a digest. Appended files (`Log`) keep data that could not be written,
for instance to a full disk, and retry later.
"""

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

SEAL = "sha256"  # the key of a JSON file's digest
_BLOCK = 1 << 20
_MOST_JSON = 1 << 30  # bytes
_LONGEST_LINE = 300  # characters of an error
_OS_ERROR = re.compile(r"\[os_error_code='(\d+)'\]")  # in TensorStore's messages

Warn = Callable[[str], None]
Check = Callable[[], None]  # raises an OSError if nothing may be written now


def _allowed() -> None:
    pass


class Damaged(Exception):
    """A file cannot be read, or its contents have changed."""


def digest(data: bytes | bytearray | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def file_digest(path: Path, size: int | None = None) -> str | None:
    """The digest of a file (of its first `size` bytes), or None if it is unreadable or shorter."""
    hashed, left = hashlib.sha256(), size
    try:
        with open_regular(path) as file:
            while left != 0:
                block = file.read(_BLOCK if left is None else min(_BLOCK, left))
                if not block:
                    break
                hashed.update(block)
                left = None if left is None else left - len(block)
    except OSError:
        return None
    return None if left else hashed.hexdigest()


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file for reading. Raises OSError for pipes, which would block, and devices,
    which may not end."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file")
    return path.open("rb")


def write_bytes(path: Path, data: bytes) -> str:
    """Writes a whole file atomically; returns its digest."""
    return write_blocks(path, [data])


def write_blocks(path: Path, blocks: "Iterator[bytes] | list[bytes]") -> str:
    """Writes a file atomically from consecutive blocks; returns its digest."""
    partial, hashed = path.with_name(path.name + ".tmp"), hashlib.sha256()
    try:
        discard(partial)
        with partial.open("xb") as file:  # x: do not follow an existing symlink
            for block in blocks:
                file.write(block)
                hashed.update(block)
            file.flush()
            os.fsync(file.fileno())
        if path.is_dir() and not path.is_symlink():
            path.rmdir()  # created by mistake; fails unless empty
        os.replace(partial, path)
    except BaseException:
        discard(partial)
        raise
    return hashed.hexdigest()


def discard(path: Path) -> None:
    """Deletes a file or a directory, ignoring errors."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Writes a JSON object atomically, with a digest of its contents."""
    write_bytes(path, to_json(value).encode())


def to_json(value: dict[str, Any]) -> str:
    """A JSON object with a digest of its contents."""
    body = {k: v for k, v in value.items() if k != SEAL}
    return json.dumps({**body, SEAL: _seal(body)}, indent=1, default=_plain) + "\n"


def _seal(body: dict[str, Any]) -> str:
    # Through JSON and back: tuples become lists, keys become strings.
    text = json.dumps(body, default=_plain)
    return digest(json.dumps(json.loads(text), sort_keys=True).encode())


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def read_json(path: Path) -> dict[str, Any]:
    """Reads an object written by `write_json`, without its digest.

    Raises:
      Damaged: the file cannot be read or has changed.
    """
    value = parse_json(path)
    if SEAL not in value:
        raise Damaged(f"{path} has no digest of its contents")
    seal = value.pop(SEAL)
    if seal != _seal(value):
        raise Damaged(f"{path} was changed after it was written: its digest does not match")
    return value


def parse_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object without verifying its digest."""
    try:
        with open_regular(path) as file:
            data = file.read(_MOST_JSON + 1)
        if len(data) > _MOST_JSON:
            raise ValueError(f"it has more than {_MOST_JSON:,} bytes")
        value = json.loads(data.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"{path} cannot be read ({first_line(error)})") from error
    if not isinstance(value, dict):
        raise Damaged(f"{path} holds a {type(value).__name__}, not an object")
    return value


def first_line(error: BaseException) -> str:
    """An exception as one line of bounded length."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error).strip()
    if code := _OS_ERROR.search(text):
        return os.strerror(int(code[1]))
    lines = text.splitlines()
    name = type(error).__name__
    return f"{name}: {textwrap.shorten(lines[0], _LONGEST_LINE)}" if lines else name


class Log:
    """An append-only file, and the part that the next checkpoint has to copy.

    `append` buffers data, `flush` writes it. Failed writes are reported once and retried with the
    next `flush`; nothing is lost while the process lives.

    Attributes:
      size: total bytes appended, on disk or not.
      tail: bytes appended since the last checkpoint.
    """

    def __init__(self, path: Path, warn: Warn, size: int = 0, check: Check = _allowed):
        """`size`: current bytes of the file, all of which checkpoints have."""
        self._check = check
        self.path, self.size, self.tail = path, size, bytearray()
        self._warn, self._written, self._pending = warn, size, bytearray()
        self._failing = False

    def append(self, data: bytes) -> None:
        self._pending += data
        self.tail += data
        self.size += len(data)

    def kept(self) -> None:
        """Marks everything so far as saved in a checkpoint."""
        self.tail.clear()

    @property
    def missing(self) -> int:
        """Number of bytes not on disk."""
        return len(self._pending)

    def flush(self) -> bool:
        """Writes pending data; returns whether all of it is on disk."""
        if not self._pending:
            return True
        try:
            self._write()
        except OSError as error:
            if not self._failing:
                self._warn(
                    f"warning: {self.path.name} could not be written ({first_line(error)}); "
                    f"training continues, and its rows are written once that works again"
                )
            self._failing = True
            return False
        if self._failing:
            self._warn(f"{self.path.name} is written again and complete")
        self._failing = False
        return True

    def _write(self) -> None:
        self._check()
        mode = "r+b" if self.path.exists() else "w+b"
        with self.path.open(mode, buffering=0) as file:
            if file.seek(0, io.SEEK_END) < self._written:
                raise OSError(0, "the file became shorter; a resume rebuilds it")
            file.truncate(self._written)  # remove partial data of a failed write
            file.seek(self._written)
            left = memoryview(bytes(self._pending))
            while left:
                left = left[file.write(left) or 0 :]
        self._written += len(self._pending)
        self._pending.clear()


class Outbox:
    """Writes whole files and retries until they are written."""

    def __init__(self, warn: Warn, check: Check = _allowed):
        self._warn, self._check = warn, check
        self._waiting: dict[Path, bytes] = {}
        self._told: set[Path] = set()

    def write(self, path: Path, data: bytes) -> str:
        """Writes now if possible, else at a later `flush`; returns the digest."""
        self._waiting[path] = data
        self.flush()
        return digest(data)

    def flush(self) -> bool:
        """Tries to write all pending files; returns whether none is left."""
        for path, data in list(self._waiting.items()):
            try:
                self._check()
                path.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(path, data)
                del self._waiting[path]
            except OSError as error:
                if path not in self._told:
                    self._told.add(path)
                    self._warn(
                        f"warning: {path.name} could not be written ({first_line(error)}); "
                        f"it will be retried later"
                    )
        return not self._waiting

    @property
    def missing(self) -> list[Path]:
        return list(self._waiting)
