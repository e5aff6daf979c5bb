"""Finding, building, checking and refusing the kernel library; the sanitizer run."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from compact_nets import compress, masked_network
from paths import ROOT

from rlx2_jax.kernels import building, native
from rlx2_jax.kernels import compact_mlp as ops

SCRIPT = """
import logging
from rlx2_jax.kernels import native
print(native.execution())
print(native.execution())
"""


def run(tmp_path, **variables):
    """`native.execution()` twice in a new process with an empty cache."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    environment.update(variables)
    command = [sys.executable, "-c", SCRIPT]
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)


@pytest.mark.fast
@pytest.mark.parametrize("value", native.CHOICES)
def test_forced(value, monkeypatch):
    monkeypatch.setenv("RLX2_COMPACT", value)
    if value == "native" and building.find_compiler() is None:
        pytest.skip("no compiler")
    assert native.execution() == value


@pytest.mark.fast
def test_bad_choice_is_refused(monkeypatch):
    monkeypatch.setenv("RLX2_COMPACT", "gpu")
    with pytest.raises(ValueError, match=r"'gpu' is not one of .*correct or unset"):
        native.execution()


@pytest.mark.fast
def test_off_switches_it_off(monkeypatch):
    params, masks = masked_network(np.random.default_rng(0), (3, 2), (4,))
    net = compress(params, masks)
    monkeypatch.setenv("RLX2_COMPACT", "off")
    with pytest.raises(RuntimeError, match="RLX2_COMPACT=off"):
        ops.mlp(net.flat, net.index, jnp.zeros((1, 3)))


@pytest.mark.fast
def test_without_compiler_one_line_says_so(tmp_path, monkeypatch):
    if list(native._installed()):
        pytest.skip("a library is installed")
    done = run(tmp_path, CXX="no-such-compiler", RLX2_COMPACT="")
    assert done.stdout.split() == ["xla", "xla"]
    assert len(done.stderr.strip().splitlines()) == 1
    assert "plain XLA" in done.stderr and "no C++ compiler" in done.stderr
    forced = run(tmp_path, CXX="no-such-compiler", RLX2_COMPACT="native")
    assert forced.returncode != 0 and "no C++ compiler found" in forced.stderr


@pytest.mark.fast
def test_failing_compiler(tmp_path):
    if list(native._installed()):
        pytest.skip("a library is installed")
    done = run(tmp_path, CXX="false", RLX2_COMPACT="")
    assert done.stdout.split() == ["xla", "xla"]
    begun, failed = done.stderr.strip().splitlines()
    assert "compiling the CPU kernels with" in begun
    assert "networks run in plain XLA, slower: " in failed and "false failed" in failed
    assert not list((tmp_path / "rlx2_jax").iterdir())


@pytest.mark.fast
def test_a_compiler_that_hangs_is_no_internal_error(tmp_path, monkeypatch):
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\nexec sleep 60\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(native, "_installed", lambda: iter(()))
    run = building._run
    monkeypatch.setattr(building, "_run", lambda command, timeout: run(command, timeout=0.1))
    with pytest.raises(native.Unavailable, match=r"c\+\+.* timed out"):
        native._find()


@pytest.mark.fast
def test_foreign_builds_are_refused(tmp_path):
    compiler = building.find_compiler()
    if compiler is None:
        pytest.skip("no compiler")

    def library(build, interface):
        source = tmp_path / "fake.cc"
        out = tmp_path / f"{abs(hash((build, interface)))}.so"
        source.write_text(
            f'extern "C" {{ const char* Rlx2Build() {{ return "{build}"; }}'
            f" int Rlx2FfiVersion() {{ return {interface}; }} }}"
        )
        subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(out)], check=True)
        return out

    right, (major, minor) = building.source_hash(), native.ffi_version()
    for older in range(minor + 1):
        native.open_library(library(right, 1000 * major + older))
    with pytest.raises(native.Unavailable, match=r"sources 0123.*install again"):
        native.open_library(library("0123", 1000 * major + minor))
    for other in (1000 * major + minor + 1, 1000 * (major + 1) + minor):
        with pytest.raises(native.Unavailable, match=f"has {major}.{minor}: install again"):
            native.open_library(library(right, other))
    (tmp_path / "text.so").write_text("not a library")
    with pytest.raises(native.Unavailable, match="not a kernel library"):
        native.open_library(tmp_path / "text.so")


@pytest.mark.slow
def test_builds_on_first_use(tmp_path):
    if building.find_compiler() is None or list(native._installed()):
        pytest.skip("needs a compiler and no installed library")
    assert run(tmp_path, RLX2_COMPACT="native").stdout.split() == ["native", "native"]
    (built,) = (tmp_path / "rlx2_jax").glob("*.so")
    assert building.source_hash() in built.name


def build_wheel(tmp_path: Path, *, compiler: bool = True) -> Path:
    """The package as `pip install` builds it, in an environment that pip sets up for it."""
    source = tmp_path / "source"
    built = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "rlx2_jax", source / "rlx2_jax", ignore=built)
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(tmp_path), str(source)]
    none = {} if compiler else {"CC": "/nowhere/cc", "CXX": "/nowhere/c++"}
    subprocess.run(command, env=os.environ | none, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    return wheel


@pytest.mark.slow
@pytest.mark.parametrize("compiler", [True, False])
def test_a_wheel_has_the_kernels_where_there_is_a_compiler(tmp_path, compiler):
    names = zipfile.ZipFile(build_wheel(tmp_path, compiler=compiler)).namelist()
    assert any(re.fullmatch(r"rlx2_jax/kernels/_kernels.*\.so", x) for x in names) == compiler
    assert "rlx2_jax/kernels/kernels.cc" in names
    tops = {x.partition("/")[0] for x in names}
    assert tops - {x for x in tops if x.endswith(".dist-info")} == {"rlx2_jax"}


@pytest.mark.slow
def test_an_installed_wheel_trains_outside_the_clone(tmp_path):
    """Train, resume, export and report in a new environment with this one's other packages."""
    environment = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = environment / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--no-deps", str(build_wheel(tmp_path))]
    subprocess.run(install, check=True, capture_output=True)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    work, variables = tmp_path / "work", {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    work.mkdir()
    variables.pop("PYTHONPATH", None)

    def rlx2(*args: str) -> str:
        command = [str(environment / "bin" / "rlx2"), *args]
        done = subprocess.run(command, cwd=work, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    code = "import rlx2_jax; print(rlx2_jax.__file__)"
    where = subprocess.run([str(python), "-c", code], cwd=work, env=variables, capture_output=True)
    assert where.stdout.decode().startswith(str(site))
    small = ("--hidden=16,16", "--batch_size=16", "--warmup=50", "--checkpoint_interval=100")
    run = ("--steps=300", "--eval_interval=100", "--metrics_interval=100", "--episodes=1")
    task = ("--env=Hopper-v5", "--paper_sparsity", "--execution=compact", "--logdir=run")
    said = rlx2("train", *task, *small, *run)
    assert "final score" in said and "plain XLA" not in said and "compiling" not in said
    assert "final score" in rlx2("resume", "run")
    rlx2("export", "run", "--format=npz")
    assert "3 episodes" in rlx2("evaluate", "run/export/lane-0/policy.npz", "--episodes=3")
    assert "index.html" in rlx2("report", "run")
    assert (work / "run" / "report" / "report.md").exists()


@pytest.mark.fast
def test_cached_build_is_used_again_and_mended(tmp_path, monkeypatch, caplog):
    builds = []

    def compile_library(compiler, include, out):
        builds.append(out)
        out.write_text("library")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(building, "compile_library", compile_library)
    monkeypatch.setattr(native, "open_library", lambda path: path)
    for wanted in (1, 1):
        native._cached_build("true")
        assert len(builds) == wanted
    begun, done = (record.getMessage() for record in caplog.records)  # not logged when cached
    assert begun == (
        f"rlx2_jax: compiling the CPU kernels with true into {tmp_path / 'rlx2_jax'} "
        f"(once, about {native._COMPILE_SECONDS} s) ..."
    )
    assert done == "rlx2_jax: kernels compiled in 0 s"
    builds[0].write_text("libr")  # cut short: loading it could crash the process
    native._cached_build("true")
    assert len(builds) == 2 and builds[1].read_text() == "library"
    builds[0].with_suffix(".sha256").write_bytes(b"\xff\x00\xe9")  # not even text
    native._cached_build("true")
    assert len(builds) == 3


@pytest.mark.fast
@pytest.mark.parametrize(
    ("built", "running", "accepted"),
    [
        ((0, 3), (0, 3), True),
        ((0, 1), (0, 3), True),  # a minor version only adds
        ((0, 4), (0, 3), False),
        ((0, 3), (1, 0), False),
        ((1, 0), (0, 3), False),
    ],
)
def test_which_ffi_versions_are_compatible(built, running, accepted):
    assert native.compatible(built, running) == accepted


@pytest.mark.fast
def test_the_headers_name_their_version(tmp_path):
    header = tmp_path / "xla" / "ffi" / "api" / "c_api.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define XLA_FFI_API_MAJOR 2\n#define XLA_FFI_API_MINOR 14\n")
    assert building.ffi_version(tmp_path) == (2, 14)
    assert native.ffi_version() >= (0, 1)


@pytest.mark.fast
def test_unsafe_cache_directory_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native._cache_directory() == tmp_path / "rlx2_jax"
    (tmp_path / "rlx2_jax").chmod(0o777)
    other = native._cache_directory()
    assert other != tmp_path / "rlx2_jax"
    other.rmdir()


def fuzz(tmp_path, kernels, seed, count, optimize):
    compiler = building.find_compiler()
    if compiler is None:
        pytest.skip("no compiler")
    program = tmp_path / "fuzz"
    command = [
        compiler, "-std=c++17", optimize, "-g", "-Wno-psabi", "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all", f"-I{building.HERE}",
        str(ROOT / "tests" / f"fuzz_{kernels}.cc"), "-o", str(program),
    ]  # fmt: skip
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode and "sanitize" in built.stderr:
        pytest.skip("this compiler has no sanitizers")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([str(program), str(seed), str(count)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("kernels", "count"), [("compact", 300), ("dense", 100)])
def test_sanitizers_short(tmp_path, kernels, count):
    fuzz(tmp_path, kernels, 1, count, "-O0")


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["compact", "dense"])
def test_sanitizers_long(tmp_path, kernels):
    fuzz(tmp_path, kernels, 2, 50_000, "-O1")
