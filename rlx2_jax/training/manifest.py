"""Validates a checkpoint's `meta.json` before any of it is used.

Digests detect damage, but not files of another version or a malicious run directory.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from rlx2_jax.files import Damaged

# Required fields of each kind of entry: its place, and the data file that holds it.
_FILE = {"file": str, "sha256": str}
_PLACE = {"begin": int, "end": int}
ENTRIES: dict[str, dict[str, type]] = {
    "rows": {**_FILE, **_PLACE, "chunk": int, "group": int, "array": str},
    "logs": {**_FILE, **_PLACE, "log": str},
    "copies": {**_FILE, "name": str},
}
_FIELDS = {"chunk": int, "times": list, "arrays": dict, "states": dict}
_NAMES = {"file": 1, "log": 1, "name": 2}  # fields with paths, and their maximum depth


def check(meta: Mapping[str, Any]) -> None:
    """Raises Damaged unless `meta` describes a checkpoint."""
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
    """Raises Damaged if a field is missing or has another type."""
    for name, kind in fields.items():
        if not isinstance(found.get(name), kind):
            raise Damaged(f"meta.json has no valid {name} for this version")


def _check_path(text: str, parts: int) -> None:
    """Rejects paths outside the run directory, which must be neither read nor overwritten."""
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or not 1 <= len(path.parts) <= parts:
        raise Damaged(f"meta.json names {text!r:.80}, which is not a file of this run")
