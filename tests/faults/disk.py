"""A full disk: another file fills a tmpfs after the run has begun."""

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from rlx2_jax.training import heartbeat

from . import cases, compare
from .cases import Reference
from .process import Ended, Server
from .report import Outcome, Verdict

MEGABYTES = 64
LEFT = (0, 40, 150, 400)  # KiB that stay free
PAUSE = 2.0  # seconds until a disk that was filled has space again


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[None]:
    """A tmpfs at `directory`; raises `PermissionError` where mounting is not allowed."""
    directory.mkdir(parents=True, exist_ok=True)
    options = ["-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", str(directory)]
    try:
        subprocess.run(["mount", *options], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise PermissionError(f"a tmpfs cannot be mounted here: {error}") from error
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=False, capture_output=True)


def _fill(mount: Path, left: int, freed: bool, over: threading.Event) -> None:
    """Fills all space but `left` KiB once the first rows are written, and frees it later."""
    while not list(mount.glob("run/evaluations.csv")):
        if over.wait(0.02):
            return
    filler = mount / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(65536))
    with filler.open("r+b") as file:
        file.truncate(max(0, filler.stat().st_size - left * 1024))
    if freed and not over.wait(PAUSE):
        filler.unlink()


def run(reference: Reference, server: Server, scratch: Path, left: int, *, freed: bool) -> Outcome:
    """A run on a disk that fills up; it is resumed when there is space."""
    mount = scratch / f"disk-{left}"
    column = f"{left} KiB left" + (", freed" if freed else "")
    with small_disk(mount):
        verdict = _judge(reference, server, mount, left, freed)
    name = f"disk {reference.case.name} {column}"
    return Outcome("tmpfs", column, verdict.outcome, name, *verdict[1:])


def _crowded(reference: Reference, server: Server, mount: Path, left: int, freed: bool) -> Ended:
    over = threading.Event()
    thread = threading.Thread(target=_fill, args=(mount, left, freed, over))
    thread.start()
    directory = mount / "run"
    ended = server.run(reference.case.module, reference.case.start(directory), directory)
    over.set()
    thread.join()
    (mount / "filler").unlink(missing_ok=True)
    time.sleep(0.1)
    return ended


def _judge(reference: Reference, server: Server, mount: Path, left: int, freed: bool) -> Verdict:
    case, directory = reference.case, mount / "run"
    ended = _crowded(reference, server, mount, left, freed)
    wrong = cases.complaint(ended)
    # If the disk is still full at the end, the run must list the files that it could not write.
    if wrong or not (ended.code == 0 or cases.rejected(ended)):
        return Verdict(wrong or f"exit {ended.code}", cases.last_words(ended))
    found = compare.differences(directory, reference.directory)
    if ended.code and heartbeat.state_of(directory) == heartbeat.FAILED:  # as it should say
        found = [x for x in found if x != f"{heartbeat.NAME} differs"]
    told = cases.warnings(ended.stderr)
    unnamed = [x for x in found if Path(x.split()[0]).name not in ended.stderr]
    if unnamed:
        return Verdict("unreported", "; ".join(unnamed))
    again = server.run(case.module, case.proceed(directory), directory)
    wrong = cases.complaint(again)
    if wrong or again.code != 0:
        return Verdict(f"resume {wrong or again.code}", cases.last_words(again))
    still = compare.differences(directory, reference.directory)
    if still:
        return Verdict("resume differs", "; ".join(still))
    outcome = "reported" if found else "warned" if told else "exact"
    return Verdict(cases.settled(outcome, ended, again), "; ".join(told[:2]))
