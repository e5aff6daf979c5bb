"""Whether a run directory holds the results of another: every table, array and summary."""

import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

# Not results: checkpoints, locks, and a plot of the tables.
_SKIPPED_PARTS = ("checkpoints",)
_TIMED = ("second", "time", "date", "git", "resume", "warning", "pid", "host", "sha256")


def differences(directory: Path, reference: Path) -> list[str]:
    """One line for each result of `reference` that is missing or different in `directory`."""
    found = []
    for path in sorted(reference.rglob("*")):
        name = path.relative_to(reference)
        if not path.is_file() or set(name.parts) & set(_SKIPPED_PARTS):
            continue
        same = _comparison(path)
        if same is None:
            continue
        try:
            if not same(directory / name, path):
                found.append(f"{name} differs")
        except FileNotFoundError:
            found.append(f"{name} is missing")
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, struct.error) as error:
            found.append(f"{name} cannot be read ({type(error).__name__})")
    return found


def _comparison(path: Path) -> Callable[[Path, Path], bool] | None:
    if path.suffix == ".csv":
        return lambda a, b: a.read_bytes() == b.read_bytes()
    if path.suffix == ".npz":
        return lambda a, b: _same_arrays(_arrays(a), _arrays(b))
    if path.suffix == ".json":
        return lambda a, b: _untimed(_json(a)) == _untimed(_json(b))
    if ".tfevents." in path.name:
        return lambda a, b: events(a) == events(b)
    if path.suffix == ".png":
        return lambda a, _: a.read_bytes()[-8:-4] == b"IEND"
    return None


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def _untimed(value: Any) -> Any:
    """Without the entries that differ from one execution to the next; NaN equals NaN."""
    if isinstance(value, dict):
        return {k: _untimed(v) for k, v in value.items() if not any(t in k for t in _TIMED)}
    if isinstance(value, list):
        return [_untimed(v) for v in value]
    return repr(value) if isinstance(value, float) else value


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def _same_arrays(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and a[k].shape == b[k].shape and a[k].tobytes() == b[k].tobytes()
        for k in b
    )


def events(path: Path) -> list[bytes]:
    """The events of a TensorBoard file without their wall times and checksums."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        body = data[at + 12 : at + 12 + length]
        if len(body) < length or at + 16 + length > len(data):
            raise ValueError("the last event is cut short")
        found.append(body[9:] if body[:1] == b"\x09" else body)
        at += 16 + length
    return found
