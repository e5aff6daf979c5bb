"""The description of a checkpoint, `meta.json`: checked before any of it is used.

A digest shows that a file is as it was written, not that this version wrote it, or that the run
directory is a friendly one.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from rlx2_jax.files import Damaged

# What each kind of entry must have: its own place, and a file among the data files.
_FILE = {"file": str, "sha256": str}
_PLACE = {"begin": int, "end": int}
ENTRIES: dict[str, dict[str, type]] = {
    "rows": {**_FILE, **_PLACE, "chunk": int, "group": int, "array": str},
    "logs": {**_FILE, **_PLACE, "log": str},
    "copies": {**_FILE, "name": str},
}
_FIELDS = {"chunk": int, "times": list, "arrays": dict, "states": dict}
_NAMES = {"file": 1, "log": 1, "name": 2}  # paths, and how many parts they may have


def check(meta: Mapping[str, Any]) -> None:
    """Raises Damaged where `meta` does not describe a checkpoint."""
    check_fields(meta, {**_FIELDS, **dict.fromkeys(ENTRIES, list)})
    for kind, fields in ENTRIES.items():
        for entry in meta[kind]:
            if not isinstance(entry, dict):
                raise Damaged(f"meta.json has {entry!r:.80} among {kind}")
            check_fields(entry, fields)
            for name, parts in _NAMES.items():
                if name in fields:
                    _check_path(entry[name], parts)


def check_fields(found: Mapping[str, Any], fields: Mapping[str, type]) -> None:
    """Raises Damaged where a field is missing or of another type."""
    for name, kind in fields.items():
        if not isinstance(found.get(name), kind):
            raise Damaged(f"meta.json has no {name}, or not as this version writes it")


def _check_path(text: str, parts: int) -> None:
    """Only names below the run directory: no other file may be read or overwritten."""
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or not 1 <= len(path.parts) <= parts:
        raise Damaged(f"meta.json names {text!r:.80}, which is not a file of this run")
