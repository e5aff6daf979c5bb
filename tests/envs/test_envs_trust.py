"""What a run directory may name: imports and files need the user's consent."""

import sys
from pathlib import Path

import pytest
from absl import flags

from rlx2_jax import config, envs, files
from rlx2_jax.cli import export, render
from rlx2_jax.envs.trust import check_import
from rlx2_jax.export import actor
from rlx2_jax.training.run import Run, RunError

pytestmark = pytest.mark.fast

EVIL = "import pathlib\npathlib.Path('imported').touch()\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"xml_file": "/tmp/model.xml"}, r"xml_file='/tmp/model.xml', which may open a file"),
        ({"xml_file": "model"}, "xml_file='model'"),
        ({"base_path": "assets"}, "base_path"),
        ({"task": "module:Task-v0"}, "task='module:Task-v0'"),
        ({"model": "../a"}, "model="),
        ({"model": "a.xml"}, "model="),
        ({"config": {"mesh_file": "a"}}, "config="),
        ({"names": ["a", "b/c"]}, "names="),
    ],
)
def test_options_that_may_open_files_need_the_flag(options, message):
    with pytest.raises(ValueError, match=message) as error:
        check_import("Hopper-v5", options, allow=False)
    assert "--allow_imports" in str(error.value)
    check_import("Hopper-v5", options, allow=True)


def test_ids_with_a_module_need_the_flag():
    with pytest.raises(ValueError, match=r"imports the module 'my\.tasks'.*--allow_imports"):
        check_import("my.tasks:Evil-v0", allow=False)
    check_import("my.tasks:Evil-v0", allow=True)


def test_plain_tasks_need_nothing():
    plain = {"max_episode_steps": 40, "healthy_z_range": [0.7, 1.0], "flag": True, "none": None}
    check_import("Hopper-v5", {**plain, "backend_name": "mjx", "a": {"b": 1.5}}, allow=False)
    check_import("rlx2_jax/Truncation-v0", None, allow=False)


@pytest.mark.parametrize("name", ["num_envs", "backend", "id", "a b", ""])
@pytest.mark.parametrize("allow", [False, True])
def test_options_that_no_environment_takes_are_refused(name, allow):
    with pytest.raises(ValueError, match="which no environment takes"):
        check_import("Hopper-v5", {name: 1}, allow=allow)
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        check_import("Hopper-v5", [1], allow=allow)  # pyright: ignore[reportArgumentType]


@pytest.fixture
def hostile(tmp_path, monkeypatch) -> Path:
    """A run directory that names a module of the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "evil_tasks.py").write_text(EVIL)
    cfg = config.make("td3", 4, 1, hidden=(8, 8), steps=100, warmup=40, capacity=100)
    lane = config.resolve(cfg, config.Lane())
    run = Run("evil_tasks:Task-v0", cfg, (lane,))
    (tmp_path / "run").mkdir()
    files.write_json(tmp_path / "run" / "config.json", run.to_json())
    return tmp_path / "run"


def parsed(module, *args: str) -> flags.FlagValues:
    values = flags.FlagValues()
    module.define_flags(values)
    values(["command", *args])
    return values


def test_no_command_imports_modules_named_by_a_directory(hostile, capsys):
    given = (f"--logdir={hostile}", "--format=npz")
    assert export.command(parsed(export, *given)) == 2
    assert "--allow_imports" in capsys.readouterr().err
    assert render.command(parsed(render, given[0])) == 2
    assert "--allow_imports" in capsys.readouterr().err
    with pytest.raises(ValueError, match="evil_tasks"):
        actor.read_run(hostile)
    assert not Path("imported").exists() and "evil_tasks" not in sys.modules
    assert actor.read_run(hostile, allow_imports=True).env == "evil_tasks:Task-v0"
    assert export.command(parsed(export, *given, "--allow_imports")) == 2
    assert "has no checkpoint" in capsys.readouterr().err
    assert not Path("imported").exists()  # still only read


def test_an_id_that_the_user_gives_is_imported(hostile):
    with pytest.raises(ValueError, match="has no environment 'Task-v0'"):
        envs.make_host("evil_tasks:Task-v0", 1)
    assert Path("imported").exists()
    del sys.modules["evil_tasks"]


@pytest.mark.parametrize("module", ["no_such_module", ".relative", "broken_tasks"])
def test_a_module_that_cannot_be_imported_is_named(module, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken_tasks.py").write_text("1 / 0")
    with pytest.raises(ImportError, match=f"importing '{module}' failed"):
        envs.make_host(f"{module}:Task-v0", 1)


@pytest.mark.parametrize("text", ["[]", "3", "{}", '{"format": 4}', "[" * 100_000, "\xff"])
def test_a_config_that_is_no_run_is_named(text, tmp_path):
    (tmp_path / "config.json").write_text(text, "latin-1")
    with pytest.raises(RunError):
        actor.read_run(tmp_path)
