"""Memory still available to this process: of the machine, its container, and `ulimit -v`."""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

# Control groups, versions 2 and 1: controller, mount point, files of the limit and the usage.
_GROUPS = (
    ("", "sys/fs/cgroup", "memory.max", "memory.current"),
    ("memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def available_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that a run may use; `root` contains proc/ and sys/."""
    return max(0, min([_machine(root), *_groups(root), *_addresses(root)]))


def _machine(root: Path) -> int:
    with contextlib.suppress(OSError, StopIteration, ValueError):
        return _entry(root / "proc/meminfo", "MemAvailable") * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _groups(root: Path) -> Iterator[int]:
    """Bytes left in each control group of this process; reclaimable page cache counts as free."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for name, mount, limit, usage in _GROUPS:
        for line in lines:
            _, controllers, path = [*line.split(":", 2), "", ""][:3]
            if name not in controllers.split(","):
                continue
            group = Path(path.lstrip("/"))
            for part in (group, *group.parents):  # the last parent is the mount point
                folder = root / mount / part
                with contextlib.suppress(OSError, StopIteration, ValueError):
                    most = int((folder / limit).read_text())  # "max": no limit
                    used = int((folder / usage).read_text())
                    yield most - used + _entry(folder / "memory.stat", "inactive_file")


def _addresses(root: Path) -> Iterator[int]:
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most != resource.RLIM_INFINITY:
        with contextlib.suppress(OSError, StopIteration, ValueError):
            yield most - _entry(root / "proc/self/status", "VmSize") * 1024


def _entry(path: Path, key: str) -> int:
    """The number of the line that begins with `key`."""
    with path.open() as file:
        line = next(x for x in file if x.replace(":", " ").split()[:1] == [key])
    return int(line.split()[1])
