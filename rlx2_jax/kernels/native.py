"""Finds, checks and registers the kernel library, or reports once why it is unavailable.

The library was built by `pip install`, or is compiled on first use and cached. It works with every
jaxlib whose FFI is compatible with the headers it was built from.

`RLX2_COMPACT` forces a choice: `native` (fails if unavailable), `xla` (pure XLA, no library) or
`off` (no compact execution, no library). Unset: native if available, else XLA.
"""

import atexit
import ctypes
import functools
import hashlib
import importlib.machinery
import logging
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jax

from rlx2_jax.kernels import building

CHOICES = ("native", "xla", "off")
ISAS = ("baseline", "avx2", "avx512")
_COMPILE_SECONDS = 30
_log = logging.getLogger("rlx2_jax")


class Unavailable(RuntimeError):
    """The kernel library cannot be used; the message gives the reason and a remedy."""


def choice() -> str | None:
    """The forced choice from the environment variable `RLX2_COMPACT`, or None."""
    value = os.environ.get("RLX2_COMPACT") or None
    if value is not None and value not in CHOICES:
        raise ValueError(f"RLX2_COMPACT={value!r} is not one of {CHOICES}: correct or unset it")
    return value


def execution() -> str:
    """How compact networks run in this process: "native", "xla" or "off"."""
    forced = choice()
    if forced in ("xla", "off"):
        return forced
    try:
        load()
    except Unavailable as error:
        if forced == "native":
            raise
        _warn_once(f"rlx2_jax: networks run in plain XLA, slower: {error}")
        return "xla"
    return "native"


@functools.cache
def _warn_once(line: str) -> None:
    _log.warning(line)


_loaded: ctypes.CDLL | Unavailable | None = None


def load() -> ctypes.CDLL:
    """The registered library; located or built on the first call in a process.

    Raises:
      Unavailable: no library is installed and none could be built.
    """
    global _loaded
    if _loaded is None:
        try:
            _loaded = _find()
            _register(_loaded)
        except Unavailable as error:
            _loaded = error
    if isinstance(_loaded, Unavailable):
        raise _loaded
    return _loaded


def _find() -> ctypes.CDLL:
    refused = []
    for path in _installed():
        try:
            return open_library(path)
        except Unavailable as error:
            refused.append(f"{path.name} refused ({error})")
    compiler = building.find_compiler()
    if compiler is None:
        refused.append("no C++ compiler found (install g++ or clang++, or set CXX)")
        raise Unavailable("; ".join(refused))
    try:
        return _cached_build(compiler)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        raise Unavailable("; ".join([*refused, str(error)])) from error


def _installed() -> Iterator[Path]:
    """The library that `pip install` built, if any."""
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_kernels{suffix}")
        if path.exists():
            yield path


def _cached_build(compiler: str) -> ctypes.CDLL:
    """A build of these sources from the user's cache; compiles it if necessary."""
    version = re.sub(r"[^0-9A-Za-z.]+", "-", building.compiler_version(compiler))
    major, minor = ffi_version()
    name = f"{building.source_hash()}-ffi-{major}.{minor}-{version}.so"
    path = _cache_directory() / name
    digest = path.with_suffix(".sha256")
    # Loading a damaged library may crash the process: compare digests first.
    if not (path.exists() and digest.exists() and digest.read_bytes() == _digest(path)):
        _log.warning(
            "rlx2_jax: compiling the CPU kernels with %s into %s (once, about %d s) ...",
            *(compiler, path.parent, _COMPILE_SECONDS),
        )
        begin = time.monotonic()
        building.compile_library(compiler, jax.ffi.include_dir(), path)
        digest.write_bytes(_digest(path))
        _log.warning("rlx2_jax: kernels compiled in %.0f s", time.monotonic() - begin)
    return open_library(path)


def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).hexdigest().encode()


def _cache_directory() -> Path:
    """A directory that only this user can write to, since libraries are loaded from it."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = base / "rlx2_jax"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        safe = not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if hasattr(os, "getuid"):
            safe = safe and status.st_uid == os.getuid()
        if safe and os.access(path, os.W_OK):
            return path
    except OSError:
        pass
    _warn_once(
        f"rlx2_jax: {path} cannot be used as a cache: kernels are kept for this process only"
    )
    path = Path(tempfile.mkdtemp(prefix="rlx2_jax-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def ffi_version() -> tuple[int, int]:
    """Major and minor version of the running jaxlib's FFI."""
    return building.ffi_version(jax.ffi.include_dir())


def compatible(built: tuple[int, int], running: tuple[int, int]) -> bool:
    """Whether XLA accepts handlers that were built for another FFI version.

    A new major version breaks the binary interface. A new minor version only adds to it, so older
    handlers keep working, but newer ones may call missing functions.
    """
    return built[0] == running[0] and built[1] <= running[1]


def open_library(path: Path) -> ctypes.CDLL:
    """Loads a library; checks that it was built from these sources for a compatible FFI.

    Raises:
      Unavailable: it was not, or it is not a kernel library.
    """
    try:
        library = ctypes.CDLL(str(path))
        library.Rlx2Build.restype = ctypes.c_char_p
        sources, ffi = library.Rlx2Build().decode(), divmod(library.Rlx2FfiVersion(), 1000)
    except (OSError, AttributeError) as error:
        raise Unavailable(f"not a kernel library: {error}") from error
    if sources != building.source_hash():
        raise Unavailable(
            f"built from sources {sources}, these are {building.source_hash()}: install again"
        )
    if not compatible(ffi, ffi_version()):
        built, running = (".".join(map(str, x)) for x in (ffi, ffi_version()))
        raise Unavailable(
            f"built for XLA FFI {built}, the installed jaxlib has {running}: install again"
        )
    return library


def _register(library: ctypes.CDLL) -> None:
    for name in ("MlpForward", "MlpBackward", "DenseForward", "DenseBackward", "Adam", "Host"):
        capsule = jax.ffi.pycapsule(getattr(library, f"Rlx2{name}"))
        target = "rlx2" + re.sub("[A-Z]", lambda capital: "_" + capital[0].lower(), name)
        jax.ffi.register_ffi_target(target, capsule, platform="cpu")
