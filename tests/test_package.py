"""The distributions: contents, metadata, and a working installation."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from paths import ROOT

from rlx2_jax import __version__

NOT_SOURCE = (
    *(".git", ".venv*", ".cache", ".*_cache", "runs", "build", "dist", "_build", "__pycache__"),
    *("*.egg-info", "*.so"),
)
NO_COMPILER = {"CC": "/nowhere/cc", "CXX": "/nowhere/c++"}


def run(*command: object, **options) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it; without kernels, which take a minute."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT, folder / "source", ignore=shutil.ignore_patterns(*NOT_SOURCE))
    command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist")
    run(*command, folder / "source", env=os.environ | NO_COMPILER)
    (sdist,), (wheel,) = ((folder / "dist").glob(x) for x in ("*.tar.gz", "*.whl"))
    return sdist, wheel


def contents(sdist: Path) -> set[str]:
    """Paths of files below the sdist's one folder."""
    with tarfile.open(sdist) as archive:
        names = [member.name for member in archive if member.isfile()]
    assert {name.partition("/")[0] for name in names} == {f"rlx2_jax-{__version__}"}
    return {name.partition("/")[2] for name in names}


def test_twine_accepts_them(built):
    said = run(sys.executable, "-m", "twine", "check", "--strict", *built)
    assert said.count("PASSED") == 2


def test_the_sdist_has_every_source(built):
    names = contents(built[0])
    expected = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "README.md", "dev", "setup.py"}
    expected |= {"rlx2_jax/kernels/kernels.cc", "rlx2_jax/kernels/simd.h", "rlx2_jax/py.typed"}
    expected |= {"tests/conftest.py", "tests/golden/td3_updates.npz", "docs/performance.md"}
    expected |= {"examples/rlx2_td3.py", "benchmarks/benchmark.py", "experiments/sweep.py"}
    assert expected <= names
    assert not [name for name in names if re.search(r"\.(so|pyc)$|__pycache__|\.git/", name)]
    if not (ROOT / ".git").exists():
        return
    tracked = run("git", "-C", ROOT, "ls-files", "-z").split("\0")[:-1]
    missing = {name for name in tracked if (ROOT / name).exists()} - names
    assert missing <= {".gitignore"}


def test_the_wheel_has_the_package_alone(built):
    names = zipfile.ZipFile(built[1]).namelist()
    info = f"rlx2_jax-{__version__}.dist-info"
    assert {name.partition("/")[0] for name in names} == {"rlx2_jax", info}
    metadata = zipfile.ZipFile(built[1]).read(f"{info}/METADATA").decode()
    assert f"\nVersion: {__version__}\n" in metadata
    assert "\nLicense-Expression: MIT\n" in metadata


@pytest.mark.fast
def test_every_place_names_the_version():
    change = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    citation = re.search(r"^version: (\S+)", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert change and citation and change[1] == citation[1] == __version__


@pytest.mark.fast
def test_the_paper_is_cited_alike():
    """Title, authors and year in CITATION.cff and in the README's BibTeX."""
    citation, readme = ((ROOT / name).read_text() for name in ("CITATION.cff", "README.md"))
    paper = citation.partition("preferred-citation:")[2]
    plain = readme.replace("{", "").replace("}", "")
    title = re.search(r'title: "(.*)"', paper)
    names = re.findall(r"family-names: (\w+), given-names: (\w+)", paper)
    assert title and f"title = {title[1]}," in plain
    assert " and ".join(f"{family}, {given}" for family, given in names) in plain
    assert re.search(r"\n  year: 2023\n", paper) and "year = 2023" in plain


@pytest.mark.slow
def test_the_sdist_builds_and_tests_in_isolation(built, tmp_path):
    """Unpacked, built as `python -m build` does, installed in a new environment, and used."""
    with tarfile.open(built[0]) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.glob("rlx2_jax-*")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path / "dist", source)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-deps", wheel)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (site / "others.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    work = tmp_path / "work"  # the sdist's tests, without the package next to them
    shutil.copytree(source / "tests", work / "tests")
    shutil.copy(source / "setup.cfg", work)
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    here = {"cwd": work, "env": variables | {"XDG_CACHE_HOME": str(tmp_path / "cache")}}
    where = run(python, "-c", "import rlx2_jax; print(rlx2_jax.__file__)", **here)
    assert where.startswith(str(site))
    tests = (
        "tests/sparse/test_masks.py",
        "tests/sparse/test_topology.py",
        "tests/replay/test_returns.py",
    )
    assert "passed" in run(python, "-m", "pytest", "-p", "no:cacheprovider", *tests, **here)
    said = run(
        *(tmp_path / "env" / "bin" / "rlx2", "train", "--env=InvertedPendulum-v5", "--logdir=run"),
        *("--steps=60", "--warmup=20", "--hidden=8,8", "--batch_size=8", "--episodes=1"),
        *("--eval_interval=30", "--execution=compact"),
        **here,
    )
    assert "final score" in said and (work / "run" / "summary.json").exists()
