"""Launchers of sweeps: what they submit, and what a task does. `test_launch_slurm` and
`test_launch_ray` use real clusters."""

import dataclasses
import json
import os
import pickle
import signal
import stat
import subprocess
import sys

import pytest
from absl import flags

from experiments import suites, sweep, units
from experiments.launchers import ray as ray_launcher
from experiments.launchers import slurm, worker
from experiments.units import Job
from rlx2_jax import files
from rlx2_jax.training.guards import Stopped

BUDGET = dataclasses.replace(suites.BUDGETS["smoke"], seeds=1)


def parsed(*args):
    values = flags.FlagValues()
    sweep.define_flags(values)
    values(["sweep", *args])
    return values


def need_submitit():
    try:
        return slurm.import_submitit()
    except ImportError:
        return pytest.skip("needs submitit")


def jobs(logdir, *names):
    found = [
        Job(name, unit, logdir, BUDGET)
        for name in names
        for unit in suites.units(suites.CATALOGUE[name], BUDGET)
    ]
    return found


def finish(job):
    job.directory.mkdir(parents=True, exist_ok=True)
    files.write_json(job.directory / "summary.json", {})


@pytest.fixture
def fake_unit(monkeypatch):
    """Units that finish immediately."""
    ran = []

    def run_unit(unit, directory, *_):
        ran.append(directory.name)
        directory.mkdir(parents=True)
        files.write_json(directory / "summary.json", {})

    monkeypatch.setattr(units, "run_unit", run_unit)
    return ran


@pytest.mark.fast
def test_tasks_keep_units_together_that_need_each_other(tmp_path):
    found = slurm.tasks(jobs(tmp_path, "toy"))
    names = [[job.unit.name.removeprefix("inverted-pendulum-") for job in x.jobs] for x in found]
    assert sorted(names) == [["dense-0", "rigl+qstar"], ["rigl"], ["rlx2"], ["ss"]]


@pytest.mark.fast
def test_no_directory_is_in_two_tasks(tmp_path):
    both = jobs(tmp_path, "table2", "nstep")
    places = [job.directory for task in slurm.tasks(both) for job in task.jobs]
    assert len(places) == len(set(places)) < len(both)
    shards = slurm.tasks(both, 3)
    assert len(shards) == 3 and sorted(places) == sorted(
        job.directory for task in shards for job in task.jobs
    )


@pytest.mark.fast
def test_a_task_is_small_data(tmp_path):
    (task, *_) = slurm.tasks(jobs(tmp_path, "toy"))
    data = pickle.dumps(task)
    assert len(data) < 100_000 and pickle.loads(data).jobs == task.jobs


@pytest.mark.fast
def test_a_task_runs_unfinished_units(tmp_path, fake_unit):
    own = jobs(tmp_path, "toy")
    finish(own[1])
    failing = dataclasses.replace(own[2], suite="other")
    (failing.logdir / "other").write_text("a file where a directory should be")
    task = slurm.Task([*own, failing])
    assert [job.name for job in task()] == [failing.name]
    assert own[1].unit.name not in fake_unit and len(fake_unit) == 5


@pytest.mark.fast
@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
def test_only_the_schedulers_signal_requeues(tmp_path, monkeypatch, number):
    requeued = []
    monkeypatch.setattr(signal, "getsignal", lambda _: lambda *args: requeued.append(args[0]))

    def run_unit(*_):
        raise Stopped("saved", number)

    monkeypatch.setattr(units, "run_unit", run_unit)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    task, before = slurm.Task(jobs(tmp_path, "toy")), signal.SIG_DFL
    try:
        if number == signal.SIGTERM:
            with pytest.raises(Stopped):
                task()
        else:
            assert task() == []
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert requeued == [number] * (number == signal.SIGUSR2)


@pytest.mark.fast
def test_a_signal_between_units_requeues(tmp_path, monkeypatch):
    requeued, ran = [], []
    before = signal.signal(signal.SIGUSR2, lambda number, _: requeued.append(number))

    def run_unit(unit, *_):
        ran.append(unit.name)
        os.kill(os.getpid(), signal.SIGUSR2)

    monkeypatch.setattr(units, "run_unit", run_unit)
    try:
        slurm.Task(jobs(tmp_path, "toy"))()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert requeued == [signal.SIGUSR2] and len(ran) == 1


def fake_slurm(folder, monkeypatch, queue=""):
    """Fake `sbatch`, which saves the script, and `squeue`, which prints `queue`."""
    folder.mkdir()
    for name, text in {
        "srun": "exit 0",
        "sbatch": f'cp "$1" {folder}/script; echo Submitted batch job 77',
        "squeue": f"printf '{queue}'",
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


FLAGS = (
    "--slurm_partition=gpu",
    "--slurm_account=lab",
    "--slurm_qos=long",
    "--slurm_constraint=a100|h100",
    "--slurm_time=90",
    "--slurm_cpus_per_task=8",
    "--slurm_gpus=1",
    "--slurm_mem=32GB",
    "--slurm_array_parallelism=2",
    "--slurm_signal_delay=45",
    "--slurm_setup=module load cuda",
    "--slurm_option=mail-type=FAIL",
)


def test_what_is_submitted_to_slurm(tmp_path, monkeypatch, capsys):
    """The script that submitit's own executor writes, and what the next call makes of it."""
    need_submitit()
    fake_slurm(tmp_path / "bin", monkeypatch, queue="77_1\\n")
    own, logdir = jobs(tmp_path / "runs", "toy"), tmp_path / "runs"
    finish(own[1])  # ss
    assert slurm.launch(own, parsed(*FLAGS)) == []
    lines = (tmp_path / "bin" / "script").read_text().splitlines()
    for line in (
        "--partition=gpu",
        "--account=lab",
        "--qos=long",
        "--constraint='a100|h100'",
        "--time=90",
        "--cpus-per-task=8",
        "--gpus-per-node=1",
        "--mem=32GB",
        "--array=0-2%2",
        "--signal=USR2@45",
        "--mail-type=FAIL",
        "--requeue",
        "--open-mode=append",
        "--job-name=rlx2",
    ):
        assert f"#SBATCH {line}" in lines, line
    assert "module load cuda" in lines and "srun" in lines[-1]
    said = capsys.readouterr().err
    assert "submitted 4 units in 3 tasks as job 77" in said and "finished before" in said
    kept = files.read_json(logdir / "slurm" / "jobs.json")
    names = ("rigl", "rlx2", "dense-0", "rigl+qstar")
    assert sorted(kept) == sorted(f"toy/inverted-pendulum-{name}" for name in names)
    assert kept["toy/inverted-pendulum-dense-0"] == kept["toy/inverted-pendulum-rigl+qstar"]

    # Again: one task is still queued, the others have left the queue unfinished.
    assert slurm.launch(own, parsed(*FLAGS)) == []
    said = capsys.readouterr().err
    assert said.count("queued before as job 77_1") == sum(x == "77_1" for x in kept.values()) > 0


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # submitit leaves its logs open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_submitted_tasks_are_called(tmp_path, fake_unit):
    """submitit's debug executor runs them in this process."""
    submitit = need_submitit()
    folder = tmp_path / "runs" / "slurm"
    executor = submitit.AutoExecutor(folder, cluster="debug")
    executor.update_parameters(**slurm.parameters(parsed(*FLAGS[:2])))
    own = jobs(tmp_path / "runs", "toy")
    before = signal.getsignal(signal.SIGUSR2)
    try:
        assert slurm.submit(executor, own, folder, wait=True) == []
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert len(fake_unit) == len(own) and all(units.finished(job.directory) for job in own)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--slurm_option=x"], "--slurm_option=x: use name=value"),
        (["--slurm_option==x"], "use name=value"),
        (["--slurm_time=2"], "--slurm_time=2 leaves no time to train"),
        (["--slurm_time=5", "--slurm_signal_delay=300"], "lower --slurm_signal_delay"),
    ],
)
def test_wrong_slurm_options(args, message):
    with pytest.raises(ValueError, match=message):
        slurm.parameters(parsed(*args))


@pytest.mark.fast
def test_what_ray_is_asked_for():
    values = parsed("--ray_cpus=2", "--ray_gpus=0.5", "--ray_memory=4", "--ray_resource=a100=1")
    found = ray_launcher.options(values)
    assert (found["num_cpus"], found["num_gpus"], found["memory"]) == (2, 0.5, 4_000_000_000)
    assert found["resources"] == {"a100": 1.0} and found["max_calls"] == 1
    assert found["retry_exceptions"] == [worker.Interrupted] and found["max_retries"] == 20
    with pytest.raises(ValueError, match="use name=amount"):
        ray_launcher.options(parsed("--ray_resource=a100"))


@pytest.mark.fast
@pytest.mark.parametrize(
    ("flags", "missing"),
    [
        ((), ""),
        (("--ray_cpus=4", "--ray_gpus=1"), ""),
        (("--ray_cpus=4", "--ray_gpus=2"), "CPU=4, GPU=2"),  # no single node has both
        (("--ray_resource=a100=1",), "CPU=1, a100=1"),  # on a node that has left
        (("--ray_memory=16",), "CPU=1, memory=1.6e+10"),
    ],
)
def test_units_that_no_node_can_take(flags, missing):
    nodes = [
        {"Alive": True, "Resources": {"CPU": 8.0, "memory": 8e9}},
        {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 1.0, "memory": 8e9}},
        {"Alive": False, "Resources": {"CPU": 8.0, "GPU": 8.0, "a100": 8.0}},
    ]
    values = parsed("--suite=toy", "--launcher=ray", *flags)
    assert ray_launcher.infeasible(ray_launcher.options(values), nodes) == missing


@pytest.mark.fast
def test_a_worker_sets_its_environment_first(tmp_path, fake_unit, monkeypatch):
    (job, *_) = jobs(tmp_path, "toy")
    monkeypatch.setenv("RLX2_TEST", "")
    data = pickle.dumps(ray_launcher.Try(job))
    assert worker.run(data, {"RLX2_TEST": "1"}, "a need") == ""
    assert os.environ["RLX2_TEST"] == "1" and fake_unit == [job.unit.name]

    def stopped(*_):
        raise Stopped("saved at step 5", signal.SIGTERM)

    monkeypatch.setattr(units, "run_unit", stopped)
    again = ray_launcher.Try(jobs(tmp_path / "other", "toy")[0])
    with pytest.raises(worker.Interrupted, match="saved at step 5"):
        worker.run(pickle.dumps(again), {})
    code = "import sys, experiments.launchers.worker; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.fast
def test_a_failure_before_training_is_on_record(tmp_path, monkeypatch):
    (job, *_) = jobs(tmp_path, "toy")

    def broken(*_):
        raise ValueError("no such thing")

    monkeypatch.setattr(units, "run_unit", broken)
    assert units.attempt(job) == units.Unfinished(job.name, "ValueError: no such thing")
    found = json.loads((job.directory / "status.json").read_text())
    assert (found["state"], found["error"]) == ("failed", "no such thing")


@pytest.mark.parametrize("name", ["slurm", "ray"])
def test_a_missing_package_is_named(name, tmp_path, monkeypatch, capsys):
    package = {"slurm": "submitit", "ray": "ray"}[name]
    monkeypatch.setitem(sys.modules, package, None)
    values = parsed("--suite=toy", "--seeds=1", f"--logdir={tmp_path}", f"--launcher={name}")
    assert sweep.command(values, ["seeds"]) == 2
    assert f"--launcher={name} needs the package {package}: pip install" in capsys.readouterr().err


@pytest.mark.fast
@pytest.mark.parametrize(
    ("own", "message"),
    [
        (
            ("--slurm_gpus=1", "--slurm_mem=8GB"),
            "--slurm_gpus, --slurm_mem: needs --launcher=slurm",
        ),
        (("--launcher=slurm", "--ray_cpus=2"), "--ray_cpus: needs --launcher=ray, not --launcher="),
    ],
)
def test_flags_of_another_launcher_are_refused(own, message, tmp_path, capsys):
    """Also by a dry run: a sweep must not start on a login node by mistake."""
    values = parsed("--suite=toy", "--dry_run", f"--logdir={tmp_path}", *own)
    assert sweep.command(values, ["seeds"]) == 2
    said = capsys.readouterr()
    assert message in said.err and not said.out
