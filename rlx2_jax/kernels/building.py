"""Compiles the kernel library, for `setup.py` and on first use.

Standard library only: `setup.py` loads this file by path, before the package can be imported.
"""

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = (
    "kernels.cc",
    "lanes.h",
    "mlp.h",
    "each_isa.h",
    "simd.h",
    "dense.h",
    "adam_ffi.h",
    "dense_ffi.h",
    "dense_simd.h",
    "host_ffi.h",
    "peak.h",
)
# No -march: the instruction set is chosen at run time, so one build runs on any CPU.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-g0", "-Wno-psabi", "-fno-math-errno")


def source_hash() -> str:
    """Identifies the sources and flags that a library was built from (`Rlx2Build`)."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for name in SOURCES:
        digest.update((HERE / name).read_bytes())
    return digest.hexdigest()[:16]


def ffi_version(include: str | Path) -> tuple[int, int]:
    """Major and minor version of the XLA FFI that the headers in `include` define."""
    header = Path(include, "xla", "ffi", "api", "c_api.h").read_text()
    numbers = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header))
    return int(numbers["MAJOR"]), int(numbers["MINOR"])


def find_compiler() -> str | None:
    """Path of the C++ compiler: `CXX` if set, else c++, g++ or clang++; None without one."""
    chosen = os.environ.get("CXX")
    if chosen:
        return shutil.which(chosen)
    return next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


def compiler_version(compiler: str) -> str:
    """First line of `--version`, part of the name of a cached build."""
    shown = _run([compiler, "--version"], timeout=60)
    return shown.stdout.partition("\n")[0]


def _run(command: list[str], timeout: float) -> "subprocess.CompletedProcess[str]":
    # No stdin, so it never waits for input; compiler messages may be in any encoding.
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
    )


def compile_library(compiler: str, include: str, out: Path) -> None:
    """Compiles the kernels into the shared library `out`, which is renamed into place when done.

    Raises:
      RuntimeError: the compiler failed; the message ends with its output.
    """
    part = out.with_name(f"{out.name}.{os.getpid()}.part")
    command = [
        compiler,
        *FLAGS,
        "-shared",
        f'-DRLX2_BUILD="{source_hash()}"',
        "-isystem",
        include,
        str(HERE / SOURCES[0]),
        "-o",
        str(part),
    ]
    try:
        done = _run(command, timeout=600)
        if done.returncode != 0:
            raise RuntimeError(f"{compiler} failed: {done.stderr.strip()[-500:]}")
        os.replace(part, out)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"{compiler} could not run: {error}") from error
    finally:
        part.unlink(missing_ok=True)
