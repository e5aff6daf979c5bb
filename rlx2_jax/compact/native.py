"""Finds, checks and registers the kernel library, or says once why it is not there.

`RLX2_COMPACT` forces a choice: `native` (an error if impossible), `xla` (pure XLA, no library) or
`off` (no compact execution at all, and no library). Unset: native if it can be had, else XLA.
"""

import ctypes
import functools
import hashlib
import importlib.machinery
import logging
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax
import jaxlib

from rlx2_jax.compact import building

CHOICES = ("native", "xla", "off")
ISAS = ("baseline", "avx2", "avx512")
_log = logging.getLogger("rlx2_jax")


class Unavailable(RuntimeError):
    """The kernel library cannot be used here; the message says why and what to do."""


def choice() -> str | None:
    """The forced choice, from the environment variable `RLX2_COMPACT`; None if there is none."""
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
        _say_once(f"rlx2_jax: networks run in plain XLA, slower: {error}")
        return "xla"
    return "native"


@functools.cache
def _say_once(line: str) -> None:
    _log.warning(line)


_loaded: ctypes.CDLL | Unavailable | None = None


def load() -> ctypes.CDLL:
    """The registered library. Looks for one once per process; every later call is free.

    Raises:
      Unavailable: none was installed and none could be built.
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
    except (RuntimeError, OSError) as error:
        raise Unavailable("; ".join([*refused, str(error)])) from error


def _installed() -> Iterator[Path]:
    """The library that `pip install` left beside this file, if any."""
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_kernels{suffix}")
        if path.exists():
            yield path


def _cached_build(compiler: str) -> ctypes.CDLL:
    """Builds into the user's cache unless a build of these sources for this jaxlib is there."""
    version = building.compiler_version(compiler)
    name = f"{building.build_id(jaxlib.__version__)}-{re.sub(r'[^0-9A-Za-z.]+', '-', version)}.so"
    path = _cache_directory() / name
    digest = path.with_suffix(".sha256")
    # A damaged library may crash the process that loads it: look before loading.
    if not (path.exists() and digest.exists() and digest.read_text() == _digest(path)):
        building.compile_library(compiler, jax.ffi.include_dir(), jaxlib.__version__, path)
        digest.write_text(_digest(path))
    return open_library(path)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _cache_directory() -> Path:
    """A directory only this user can write to: what lies there gets loaded."""
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
    return Path(tempfile.mkdtemp(prefix="rlx2_jax-"))


def ffi_version() -> int:
    """Version of the running jaxlib's FFI interface, as 1000 * major + minor."""
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text()
    numbers = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header))
    return 1000 * int(numbers["MAJOR"]) + int(numbers["MINOR"])


def open_library(path: Path) -> ctypes.CDLL:
    """Loads a library and checks that it was built from these sources for the running jaxlib.

    Raises:
      Unavailable: it was not, or it is not such a library at all.
    """
    try:
        library = ctypes.CDLL(str(path))
        library.Rlx2Build.restype = ctypes.c_char_p
        built, interface = library.Rlx2Build().decode(), library.Rlx2FfiVersion()
    except (OSError, AttributeError) as error:
        raise Unavailable(f"not a kernel library: {error}") from error
    wanted = building.build_id(jaxlib.__version__)
    if built != wanted:
        raise Unavailable(f"built as {built}, but {wanted} is running: install again")
    if interface != ffi_version():
        raise Unavailable(f"built for FFI {interface}, but {ffi_version()} is running")
    return library


def _register(library: ctypes.CDLL) -> None:
    for name in ("MlpForward", "MlpBackward", "DenseForward", "DenseBackward", "Adam", "Host"):
        capsule = jax.ffi.pycapsule(getattr(library, f"Rlx2{name}"))
        target = "rlx2" + re.sub("[A-Z]", lambda capital: "_" + capital[0].lower(), name)
        jax.ffi.register_ffi_target(target, capsule, platform="cpu")


def select_isa(name: str) -> str:
    """Makes the kernels use an instruction set, at most the best one of this CPU (for tests)."""
    return ISAS[load().Rlx2SelectIsa(ISAS.index(name))]
