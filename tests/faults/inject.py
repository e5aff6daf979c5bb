"""Fault injection beneath the writers: `inject.c`, loaded with LD_PRELOAD.

A rule is `<action>@<operations>:<pattern>:<which>`:

    action      kill           SIGKILL in place of the call
                killhalf       SIGKILL after half of the bytes of a write
                killafter      SIGKILL right after the call
                fail=ENOSPC    the call fails (also EIO, EDQUOT); `fail=EIO,then=5` kills the
                               process five calls later
                term           SIGTERM, and the call is made
                short=ENOSPC   a write writes half of its bytes, the next one to that file fails
    operations  *, or names joined by |: open write pwrite writev pwritev fsync truncate
                rename unlink rmdir mkdir link
    pattern     of the path below the directory, as fnmatch has it (* crosses /)
    which       of the matching calls, from 1: `3`, `3-7`, `3-` (to the end), or `2%40>9`
                (all above 9 with remainder 2)

The same calls are logged, one line each: number, operation, path, action taken.
"""

import ctypes
import fnmatch
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("inject.c")


class Call(NamedTuple):
    """One logged call."""

    number: int
    operation: str
    path: str
    action: str

    @property
    def kind(self) -> str:
        return kind_of(self.path)


def compiler() -> str | None:
    """The C compiler, or None."""
    return next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)


def build(directory: Path) -> Path:
    """Compiles the library into `directory`."""
    command = compiler()
    if command is None:
        raise RuntimeError("fault injection needs a C compiler: cc, gcc or clang")
    library = directory / "inject.so"
    flags = ["-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl", "-lpthread"]
    subprocess.run([command, *flags], check=True, capture_output=True, text=True)
    return library


def install(library: str, directory: str, rule: str, log: str) -> None:
    """Sets the rule in this process, which must have the library preloaded."""
    found = ctypes.CDLL(library).rlx2_fault_set(directory.encode(), rule.encode(), log.encode())
    if found != 0:
        raise ValueError(f"fault rule {rule!r} cannot be read: see {__name__}")


def kind_of(path: str) -> str:
    """A path with hashes and numbers replaced by `*`, because they differ between runs."""
    return re.sub(r"\d+", "*", re.sub(r"[0-9a-f]{32}", "*", path)).replace("rlx*", "rlx2")


def read_log(path: Path) -> list[Call]:
    """The calls that a process made."""
    if not path.exists():
        return []
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    return [Call(int(r[0]), r[1], r[2], r[3]) for r in rows if len(r) == 4]


def matches(calls: list[Call], operation: str, pattern: str) -> int:
    """How many of the calls a rule's operation and pattern match."""
    return sum(
        c.operation in operation.split("|") and fnmatch.fnmatchcase(c.path, pattern) for c in calls
    )
