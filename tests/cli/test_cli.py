"""The command `rlx2`: subcommands, flags, mistakes, and shared behaviour."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from paths import ROOT
from policies import PENDULUM, finished_run, policy_of

from rlx2_jax import presets
from rlx2_jax.cli import main
from rlx2_jax.config import Lane
from rlx2_jax.export import manifest, npz

ALIASES = {"train": "train", "export": "export", "render": "render", "play": "evaluate"}


def rlx2(*args: str, module: str = "rlx2_jax", **options) -> subprocess.CompletedProcess[str]:
    """The command in a subprocess."""
    command = [sys.executable, "-m", module, *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, **options)


def one_line(capsys) -> str:
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.fast
@pytest.mark.parametrize("args", [(), ("--help",), ("help",), ("-h",)])
def test_help_lists_every_command_in_a_line(args, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["rlx2", *args])
    assert main.main() == 0
    lines = capsys.readouterr().out.splitlines()
    for name, about in main.COMMANDS.items():
        assert [line for line in lines if line.split()[:1] == [name]] == [f"  {name:<8}  {about}"]


@pytest.mark.fast
def test_help_and_typos_import_nothing_heavy():
    code = (
        "import sys; from rlx2_jax.cli.main import main\n"
        "assert (main(['--help']), main(['trian'])) == (0, 2)\n"
        "assert not {'jax', 'numpy', 'gymnasium'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "error: there is no command 'trian': did you mean train?\n"


@pytest.mark.fast
@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_has_help(name, capsys):
    assert main.main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert (
        f"rlx2 {name}" in text
        and "--logdir" in text
        and "rlx2_jax.cli" not in text
        and "undefok" not in text
    )


@pytest.mark.fast
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["fly"], "there is no command 'fly': use one of train, resume, evaluate, render, export"),
        (["train", "--metod=rlx2"], "Unknown command line flag 'metod'. Did you mean: method"),
        (["train", "--distributed=yes"], "flag --distributed=yes: use true or false"),
        (["train", "--method=rlx3"], "--method=rlx3: 'rlx3': use one of"),
        (["train", "runs/a"], "unexpected ['runs/a']: all settings are flags, --name=value"),
        (["train", "--flagfile=/nowhere/flags"], "/nowhere/flags"),
        (["train", "--restart"], "--restart needs --resume"),
        (["train", "--resume"], "give the directory of the run: rlx2 resume RUN"),
        (["resume"], "give the directory of the run: rlx2 resume RUN"),
        (["resume", "a", "b"], "unexpected ['b']: --logdir is already given"),
        (["resume", "a", "--logdir=b"], "unexpected ['a']: --logdir is already given"),
        (["resume", "nowhere"], "nowhere: config.json is missing"),
        (["resume", "nowhere", "--steps=3"], "Unknown command line flag 'steps'"),
        (["evaluate"], "--policy is needed"),
        (["evaluate", "nowhere"], "nowhere: policy.json is missing"),
        (["evaluate", "nowhere", "--episodes=-1"], "--episodes=-1"),
        (["render"], "--logdir is needed"),
        (["render", "nowhere"], "nowhere: config.json is missing"),
        (["export"], "--logdir is needed"),
        (["export", "nowhere", "--format=exe"], "--format=exe: use one or more of"),
        (["report"], "--logdir is needed"),
        (["report", "nowhere"], "nowhere: config.json is missing"),
    ],
)
def test_mistakes_are_one_line(args, message, capsys):
    assert main.main(args) == 2
    line = one_line(capsys)
    assert line.startswith("error: ") and message in line


@pytest.mark.fast
def test_an_error_that_was_not_foreseen_is_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("rlx2_jax.cli.report.command", lambda values: 1 // 0)
    assert main.main(["report", "a"]) == 70
    assert one_line(capsys).startswith("error: ZeroDivisionError: ")


def test_the_exact_resume_takes_no_other_settings(capsys, tmp_path):
    assert main.main(["train", "--resume", f"--logdir={tmp_path}", "--steps=9"]) == 2
    assert "takes all settings from" in one_line(capsys)


@pytest.mark.parametrize("alias", ALIASES)
def test_launchers_of_a_clone_are_aliases(alias):
    done = rlx2("--no_such_flag", module=f"experiments.{alias}")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"rlx2 {ALIASES[alias]} --help" in done.stderr and done.stderr.count("\n") == 1


def test_ctrl_c_while_importing_is_one_line():
    process = subprocess.Popen(
        [sys.executable, "-m", "rlx2_jax", "train", "--dry_run"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    maps, until = Path(f"/proc/{process.pid}/maps"), time.monotonic() + 60
    while "jaxlib" not in maps.read_text() and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "interrupted\n")


def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -m rlx2_jax train --help | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.startswith("Trains") and done.stderr == ""


def test_own_tasks_of_the_working_directory(tmp_path):
    """`--env=module:Task-v0` imports from the working directory, but a run directory may not."""
    (tmp_path / "tasks.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import PendulumEnv\n"
        "gymnasium.register('Own-v0', entry_point=PendulumEnv, max_episode_steps=50)\n"
    )
    code = "import sys; from rlx2_jax.cli.main import script; sys.exit(script())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, "train", "--env=tasks:Own-v0", "--dry_run"],
        capture_output=True, text=True, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "tasks:Own-v0 (gymnasium), td3" in done.stdout


def test_a_task_that_changes_the_working_directory_moves_no_files(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "wandering.py").write_text(
        "import os\n"
        "from rlx2_jax.envs.probes import PROBES, ProbeEnv\n"
        "class Task(ProbeEnv):\n"
        "    max_episode_steps = 5\n"
        "    def __init__(self):\n"
        f"        os.chdir({str(tmp_path / 'elsewhere')!r})\n"
        "        super().__init__(PROBES['rlx2_jax/Truncation-v0'])\n"
    )
    flags = ["--hidden=8,8", "--batch_size=8", "--warmup=20", "--episodes=1", "--steps=40"]
    for args in (
        ["train", "--env=wandering:Task", *flags, "--logdir=run"],
        ["resume", "run", "--allow_imports"],
        ["export", "run", "--format=npz", "--out=made", "--allow_imports"],
    ):
        monkeypatch.chdir(tmp_path)
        assert main.main(args) == 0
    assert (tmp_path / "run" / "summary.json").exists() and (tmp_path / "made/policy.npz").exists()
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A finished run of two lanes, trained by the command itself."""
    directory = tmp_path_factory.mktemp("cli") / "run"
    code = main.main(
        [
            "train", "--env=rlx2_jax/Truncation-v0", f"--logdir={directory}", "--method=dense,rlx2",
            "--steps=60", "--warmup=20", "--hidden=8,8", "--batch_size=8", "--eval_interval=30",
            "--metrics_interval=30", "--checkpoint_interval=30", "--episodes=2", "--t0=20",
            "--mask_interval=10", "--actor_sparsity=0.5", "--critic_sparsity=0.5",
        ]
    )  # fmt: skip
    assert code == 0
    return directory


def test_a_lane_is_evaluated(trained, capsys):
    assert main.main(["evaluate", str(trained), "--lane=1", "--episodes=3"]) == 0
    text = capsys.readouterr().out
    assert "rlx2_jax/Truncation-v0: TD3, rlx2, seed 0, lane 1 at step 60, " in text
    assert "3 episodes (seeds 0 to 2): return 5.0 ± 0.0, from 5.0 to 5.0; 5.0 steps" in text
    assert main.main(["evaluate", f"--logdir={trained}", "--lane=2"]) == 2
    assert "lane 2: the run has lanes 0 to 1" in capsys.readouterr().err
    assert main.main(["evaluate", str(trained), "--runtime=c"]) == 2
    assert "only published policies" in capsys.readouterr().err


def test_an_exported_file_is_evaluated(trained, tmp_path, capsys):
    assert main.main(["export", str(trained), "--format=npz", f"--out={tmp_path}"]) == 0
    capsys.readouterr()
    assert main.main(["evaluate", str(tmp_path / "policy.npz"), "--episodes=2"]) == 0
    assert "rlx2_jax/Truncation-v0: policy.npz, " in capsys.readouterr().out
    (tmp_path / manifest.NAME).unlink()
    assert main.main(["evaluate", str(tmp_path / "policy.npz")]) == 2
    assert "does not name its task: give --env" in capsys.readouterr().err
    assert main.main(["evaluate", str(tmp_path / "policy.npz"), "--env=Hopper-v5"]) == 2
    assert "Hopper-v5 has 11 observations and 3 actions" in capsys.readouterr().err


def test_a_lane_on_a_device_is_evaluated(tmp_path, capsys):
    policy = policy_of(PENDULUM._replace(sizes=(1, 4, 1)))
    npz.save(policy, tmp_path / "policy.npz")
    args = [str(tmp_path / "policy.npz"), "--env=rlx2_jax/BothEnds-v0", "--env_backend=brax"]
    assert main.main(["evaluate", *args, "--episodes=4"]) == 0
    assert "return 3.0 ± 0.0, from 3.0 to 3.0; 3.0 steps" in capsys.readouterr().out


def test_a_manifest_may_not_import(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil_tasks.py").write_text("import pathlib\npathlib.Path('ran').touch()\n")
    assert main.main(["export", str(trained), "--format=npz", f"--out={tmp_path}"]) == 0
    text = (tmp_path / manifest.NAME).read_text()
    text = text.replace("rlx2_jax/Truncation-v0", "evil_tasks:Task-v0")
    (tmp_path / manifest.NAME).write_text(text)
    capsys.readouterr()
    assert main.main(["evaluate", str(tmp_path / "policy.npz")]) == 2
    assert "--allow_imports" in one_line(capsys)
    assert not Path("ran").exists() and "evil_tasks" not in sys.modules


def test_a_finished_run_is_not_trained_again(trained, capsys):
    before = (trained / "evaluations.csv").read_bytes()
    assert main.main(["resume", str(trained)]) == 0
    assert "lane  method" in capsys.readouterr().out
    assert (trained / "evaluations.csv").read_bytes() == before
    assert main.main(["resume", str(trained), "--dry_run"]) == 0
    assert "2 lanes in 1 chunk" in capsys.readouterr().out


@pytest.mark.fast
def test_no_command_imports_modules_named_by_a_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil_tasks.py").write_text("import pathlib\npathlib.Path('ran').touch()\n")
    run = tmp_path / "run"
    finished_run(run, [(Lane(), 1.0)], env="evil_tasks:Task-v0")
    for name in ("resume", "evaluate", "render", "export"):
        assert main.main([name, str(run)]) == 2
        assert "--allow_imports" in one_line(capsys)
    assert main.main(["report", str(run)]) == 0  # only reads
    assert not Path("ran").exists() and "evil_tasks" not in sys.modules


@pytest.mark.fast
def test_presets_are_the_papers():
    from experiments import paper

    rows = [row for row in paper.load("table2_models") if row["env"] != "average"]
    for row in rows:
        found = presets.paper_sparsities(row["algo"], f"{row['env']}-v5")
        assert found == {name: row[name] for name in ("actor_sparsity", "critic_sparsity")}
    assert sum(map(len, presets.PAPER_SPARSITIES.values())) == len(rows)
