"""README.md and docs/*.md: every Python block runs, every command and flag exists."""

import ast
import importlib
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import doc_blocks
import jax
import pytest
from absl import flags
from doc_blocks import PAGES, Block, blocks
from extension_tables import tables_as_before
from paths import DOCS, ROOT

from experiments import sweep
from rlx2_jax import config, envs
from rlx2_jax.cli import main
from rlx2_jax.export import exporters
from rlx2_jax.sparse import methods, rules

WITH_PYTHON = [page for page in PAGES if blocks(page, "python")]
SLOW = [page for page in WITH_PYTHON if any(block.slow for block in blocks(page, "python"))]
SHELL = [block for page in PAGES for block in blocks(page, "sh")]
ALIASES = {"train": "train", "export": "export", "render": "render", "play": "evaluate"}
# Flags of other projects, which these pages compare in the first column of tables.
FOREIGN = ("from_",)


@pytest.fixture(autouse=True)
def as_before(tmp_path, monkeypatch):
    """Blocks run in a temporary folder, and their registrations are undone."""
    monkeypatch.chdir(tmp_path)
    with tables_as_before():
        yield


def run(page: Path, *, slow: bool) -> dict[str, Any]:
    """Runs a page's blocks one after another in one namespace, as a reader would paste them."""
    names: dict[str, Any] = {"__name__": page.stem}
    with jax.numpy_rank_promotion("allow"):  # JAX's default, which readers have
        for block in blocks(page, "python"):
            if not block.missing and (slow or not block.slow):
                code = "\n" * (block.line - 1) + block.code  # so that errors show the page's line
                exec(compile(code, str(page), "exec"), names)
    return names


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.stem)
def test_python_runs(page, capsys):
    names = run(page, slow=False)
    if page.stem == "README":
        assert names["result"].metrics["return"].shape == (64, 2)


@pytest.mark.slow
@pytest.mark.parametrize("page", SLOW, ids=lambda page: page.stem)
def test_slow_python_runs(page, capsys):
    run(page, slow=True)


@pytest.mark.fast
@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.stem)
def test_python_that_cannot_run_is_python(page):
    for block in blocks(page, "python"):
        compile(block.code, block.name, "exec")


@pytest.mark.fast
def test_only_optional_packages_are_needed():
    """Markers only name requirements that are not dependencies of this project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {re.split(r"[\[<>=!~ ]", x)[0].replace("-", "_") for x in project["dependencies"]}
    for page in WITH_PYTHON:
        for block in blocks(page, "python"):
            assert not {"rlx2_jax", "jax", *required} & set(block.needs), block.name
            imported = {
                name.split(".")[0]
                for node in ast.walk(ast.parse(block.code))
                for name in (
                    [alias.name for alias in node.names]
                    if isinstance(node, ast.Import)
                    else [node.module or ""]
                    if isinstance(node, ast.ImportFrom)
                    else []
                )
            }
            assert set(block.needs) <= {"gpu", *imported}, block.name


@pytest.mark.fast
@pytest.mark.parametrize("text", ["needs: my reason", "needs:", "needs: a, b c"])
def test_markers_name_modules(text):
    with pytest.raises(ValueError, match="name modules"):
        doc_blocks.parse_marker(text)


@pytest.mark.fast
def test_markers_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- needs: no_such_module -->\n```python\nx = 1\n```\n\n"
        "<!-- slow -->\n```python\ny\n```\n<!-- results: begin -->\n```sh\nls\n```\n"
    )
    first, second = blocks(page, "python")
    assert (first.needs, first.slow, first.line) == (("no_such_module",), False, 3)
    assert first.missing == ["no_such_module"]
    assert (second.needs, second.slow, second.code) == ((), True, "y\n")
    assert blocks(page, "sh")[0].needs == ()


def commands(block: Block) -> list[list[str]]:
    """The commands of a shell block as words, without comments."""
    lines = block.code.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def check_rlx2(name: str, argv: list[str]) -> None:
    """Parses the flags of `rlx2 NAME` as the command itself does; raises for mistakes."""
    if name.startswith("-"):
        assert name in ("--help", "--version")
        return
    assert name in main.COMMANDS, name
    values = flags.FlagValues()
    main._define_use(values)
    main._import_extensions(argv)
    module = importlib.import_module(f"rlx2_jax.cli.{name}")
    module.define_flags(values)
    main.parse(module, name, argv, values)


def defined_flags(module: str) -> set[str]:
    """The flags that a script and the modules beside it define."""
    path = ROOT / Path(*module.split(".")).with_suffix(".py")
    files = [path] if module.startswith("experiments") else path.parent.glob("*.py")
    found = {"help", "helpfull"}
    for file in files:
        found |= set(re.findall(r'DEFINE_\w+\(\s*"(\w+)"', file.read_text()))
    return found


def check_module(module: str, argv: list[str]) -> None:
    """`python -m module argv`: the module and its flags exist."""
    package, _, name = module.partition(".")
    if module == "rlx2_jax":
        return check_rlx2(argv[0], argv[1:])
    assert (ROOT / Path(*module.split(".")).with_suffix(".py")).exists(), module
    if package == "experiments" and name in ALIASES:
        return check_rlx2(ALIASES[name], argv)
    script = importlib.import_module(module)
    if hasattr(script, "define_flags"):
        values = flags.FlagValues()
        script.define_flags(values)
        values([module, *argv])
        return None
    given = {word.lstrip("-").partition("=")[0] for word in argv if word.startswith("-")}
    assert given <= defined_flags(module), given - defined_flags(module)
    return None


def check(words: list[str]) -> None:
    """Raises if a command, a task or a flag does not exist."""
    while re.match(r"[A-Z_]+=", words[0]):  # variables of the environment
        words = words[1:]
    match words:
        case ["rlx2", name, *argv]:
            check_rlx2(name, argv)
        case ["python", "-m", module, *argv]:
            check_module(module, argv)
        case ["python", path, *_]:
            assert (ROOT / path).exists(), path
        case ["./dev", task, *argv]:
            assert re.search(rf"^  {task}\)", (ROOT / "dev").read_text(), re.MULTILINE), task
            if task == "train":
                check_rlx2("train", argv)
            elif task == "python":
                check(["python", *argv])
        case ["pip", "install", *targets]:
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            extras = re.findall(r"\[(.*?)\]", " ".join(targets))
            named = {name for group in extras for name in group.split(",")}
            assert named <= set(project["optional-dependencies"]), named
        case _:
            raise AssertionError(f"unknown command: {words}")


@pytest.mark.fast
@pytest.mark.parametrize("block", SHELL, ids=lambda block: block.name)
def test_commands_exist(block, monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "extending")
    for words in commands(block):
        check(words)


@pytest.mark.fast
@pytest.mark.parametrize(
    "line",
    [
        "rlx2 trian", "rlx2 train --metod=rlx2", "rlx2 train --method=rlx3", "rlx2 train runs/a",
        "python -m experiments.sweep --suit=all", "python -m experiments.report --logdirs=a",
        "python -m experiments.nothing", "./dev fly", "pip install '.[none]'", "make all",
    ],
)  # fmt: skip
def test_mistakes_are_found(line):
    with pytest.raises((AssertionError, ValueError, flags.Error)):
        check(shlex.split(line))


def all_flags() -> set[str]:
    """Every flag of every command and script."""
    found = set()
    for name in main.COMMANDS:
        values = flags.FlagValues()
        main._define_use(values)
        importlib.import_module(f"rlx2_jax.cli.{name}").define_flags(values)
        found |= {*values}
    for path in [*(ROOT / "experiments").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")]:
        found |= defined_flags(f"{path.parent.name}.{path.stem}")
    values = flags.FlagValues()
    sweep.define_flags(values)
    return found | {*values}


@pytest.mark.fast
def test_flags_in_sentences_exist():
    """Flags in backticks, `--name` or `--name=value`."""
    known, unknown = all_flags(), []
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for line in text.splitlines():
            if line.startswith("|") and page.name.startswith(FOREIGN):
                line = line.split("|", 2)[2]
            for code in re.findall(r"`([^`]+)`", line):
                for name in re.findall(r"(?:^|\s)--([\w-]+)", code):
                    if name not in known:
                        unknown.append(f"{page.name}: --{name}")
    assert not unknown, unknown


@pytest.mark.fast
@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("methods", config.METHODS),
        ("methods", methods.METHODS),
        ("methods", rules.GROW),
        ("methods", rules.DROP),
        ("environments", envs.BACKENDS),
        ("deployment", exporters.EXPORTERS),
    ],
    ids=lambda x: x if isinstance(x, str) else "-".join(list(x)[:2]),
)
def test_tables_are_complete(page, names):
    """Everything selectable by name is in the first column of a table on its page."""
    text = (DOCS / f"{page}.md").read_text()
    first = " ".join(re.findall(r"^\| ([^|]*) \|", text, re.MULTILINE))
    assert not [name for name in names if f"`{name}`" not in first]
