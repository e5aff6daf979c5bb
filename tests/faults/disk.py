"""A disk that is really full: a small tmpfs, which gets room again when the run has ended."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from . import cases, compare
from .cases import Reference
from .process import Server
from .report import Outcome

SIZES = (60, 120, 240, 480)  # KiB; runs need about 600


@contextlib.contextmanager
def small_disk(directory: Path, kilobytes: int) -> Iterator[None]:
    """A tmpfs at `directory`; raises `PermissionError` where mounting is not allowed."""
    directory.mkdir(parents=True, exist_ok=True)
    options = ["-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(directory)]
    try:
        subprocess.run(["mount", *options], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise PermissionError(f"a tmpfs cannot be mounted here: {error}") from error
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=False, capture_output=True)


def run(reference: Reference, server: Server, scratch: Path, kilobytes: int) -> Outcome:
    """A run on a disk that fills up; it is resumed when there is room."""
    mount = scratch / f"disk-{kilobytes}"
    name = f"disk {reference.case.name} {kilobytes} KiB"
    with small_disk(mount, kilobytes):
        outcome, detail = _judge(reference, server, mount)
    return Outcome("tmpfs", f"{kilobytes} KiB", outcome, name, detail)


def _judge(reference: Reference, server: Server, mount: Path) -> tuple[str, str]:
    case, directory = reference.case, mount / "run"
    ended = server.run(case.module, case.start(directory), directory)
    wrong = cases.complaint(ended)
    if wrong:
        return wrong, cases.last_words(ended)
    if ended.code != 0 and not cases.rejected(ended):
        return f"exit {ended.code}", cases.last_words(ended)
    found = compare.differences(directory, reference.directory)
    told = cases.warnings(ended.stderr)
    if ended.code == 0:
        unnamed = [x for x in found if Path(x.split()[0]).name not in ended.stderr]
        if unnamed:
            return "unreported", "; ".join(unnamed)
    subprocess.run(["mount", "-o", "remount,size=64m", str(mount)], check=True)
    again = server.run(case.module, case.proceed(directory), directory)
    wrong = cases.complaint(again)
    if wrong or again.code != 0:
        return f"resume {wrong or again.code}", cases.last_words(again)
    still = compare.differences(directory, reference.directory)
    if still:
        return "resume differs", "; ".join(still)
    kind = "rejected" if ended.code else "reported" if found else "warned" if told else "exact"
    return kind, "; ".join(told[:2])
