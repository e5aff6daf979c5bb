"""Memory limits of machines, containers and shells."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from rlx2_jax.training.limits import available_memory

pytestmark = pytest.mark.fast
MEMINFO = "MemTotal: 9000000 kB\nMemFree: 1 kB\nMemAvailable: 8000000 kB\n"


def tree(root: Path, **texts: str) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **texts}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def group(folder: str, limit: str, used: str, *names: str) -> dict[str, str]:
    stat = "anon 5\ninactive_file 100\nactive_file 7\n"
    return dict(zip((f"{folder}/{n}" for n in (*names, "memory.stat")), (limit, used, stat)))


V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
V2 = ("memory.max", "memory.current")


def test_the_machine(tmp_path):
    assert available_memory(tree(tmp_path)) == 8_000_000 * 1024
    assert available_memory() > 0


def test_a_container_has_its_limit_at_the_mount(tmp_path):
    files = group("sys/fs/cgroup", "4000", "1000", *V2)
    assert available_memory(tree(tmp_path, **{"proc/self/cgroup": "0::/\n"}, **files)) == 3100


def test_the_tightest_of_nested_groups_counts(tmp_path):
    files = group("sys/fs/cgroup/a/b", "max", "1000", *V2)
    files |= group("sys/fs/cgroup/a", "3000", "2500", *V2)
    assert available_memory(tree(tmp_path, **{"proc/self/cgroup": "0::/a/b\n"}, **files)) == 600


def test_version_1(tmp_path):
    own = {"proc/self/cgroup": "9:cpu:/x\n4:hugetlb,memory:/job\n0::/\n"}
    files = group("sys/fs/cgroup/memory/job", "5000\n", "6000\n", *V1)
    assert available_memory(tree(tmp_path, **own, **files)) == 0  # never negative


@pytest.mark.parametrize("text", ["", "nonsense", "0::", "::::"])
def test_odd_files_are_no_limit(tmp_path, text):
    odd = {"sys/fs/cgroup/memory.max": text, "proc/self/cgroup": text}
    assert available_memory(tree(tmp_path, **odd)) == 8_000_000 * 1024


def test_the_limit_of_a_shell_counts():
    program = (
        "import resource; from rlx2_jax.training.limits import available_memory\n"
        f"resource.setrlimit(resource.RLIMIT_AS, (2**40, {resource.RLIM_INFINITY}))\n"
        "print(available_memory())\n"
        f"resource.setrlimit(resource.RLIMIT_AS, (2**32, {resource.RLIM_INFINITY}))\n"
        "print(available_memory())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    wide, tight = map(int, done.stdout.split())
    assert tight < 2**32 and tight <= wide
