"""`manifest.json`: the files of an export directory, with sizes and SHA-256 checksums.

ONNX and StableHLO files contain no checksum, and their parsers are not hardened against malicious
input: read them through `checked`, which verifies a file's bytes.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from rlx2_jax.export.policy import PolicyFileError

NAME = "manifest.json"


def write(directory: Path, files: dict[str, dict[str, Any]], about: dict[str, Any]) -> None:
    """Writes the manifest of `files` (name -> fields to record) and their origin."""
    for name, entry in files.items():
        data = (directory / name).read_bytes()
        entry |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    partial = directory / f"{NAME}.tmp"
    partial.write_text(json.dumps({**about, "files": files}, indent=2) + "\n")
    os.replace(partial, directory / NAME)


def read(directory: Path) -> dict[str, Any]:
    """The manifest of a directory."""
    try:
        manifest = json.loads((directory / NAME).read_text())
        if not all(isinstance(entry["sha256"], str) for entry in manifest["files"].values()):
            raise TypeError("a checksum is not a text")
    except OSError as error:
        raise PolicyFileError(f"{directory / NAME} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PolicyFileError(f"{directory / NAME} is damaged: {error}") from error
    return manifest


def checked(path: Path) -> bytes:
    """The bytes of an exported file, verified against its checksum."""
    files = read(path.parent)["files"]
    if path.name not in files:
        raise PolicyFileError(f"{path.parent / NAME} does not list {path.name}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PolicyFileError(f"{path} cannot be read: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != files[path.name]["sha256"]:
        raise PolicyFileError(f"{path} is damaged: it does not have the checksum of {NAME}")
    return data
