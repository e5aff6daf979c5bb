"""Runs that were stopped, damaged or hit disk errors: nothing is lost or left unreported."""

import dataclasses
import errno
import json
import logging as python_logging
import os
import shlex
import shutil
import signal
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest
from saved_runs import snapshots
from small_runs import rows, small_run, stop_after

from rlx2_jax import files
from rlx2_jax.envs import rollout
from rlx2_jax.training import checkpoint, fingerprint, guards, logging, run, snapshot, weights
from rlx2_jax.training import evaluate as evaluation
from rlx2_jax.training import execute as execution
from rlx2_jax.training.lane_group import LaneFailure
from rlx2_jax.training.run import RunError, read_run, with_time_limit

LOGS = ("evaluations.csv", "metrics.csv")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Four lanes in two chunks, uninterrupted."""
    directory = tmp_path_factory.mktemp("whole")
    execution.execute(small_run(chunk=2), directory, progress=False)
    return directory


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The same, stopped while the second chunk is trained."""
    directory = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch:
        stop_in_chunk_two(patch)
        with pytest.raises(guards.Stopped):
            execution.execute(small_run(chunk=2), directory, progress=False)
    return directory


def stop_in_chunk_two(patch):
    """SIGTERM once the second chunk has trained for a while."""
    reports = iter(range(10**9))
    report = execution._Execution._report

    def counted(self, chunk, loop):
        report(self, chunk, loop)
        if chunk.index == 1 and next(reports) == 1:
            self.stop.signal = 15

    patch.setattr(execution._Execution, "_report", counted)


def resume(directory, **fields):
    said = []
    found = execution.execute(
        small_run(chunk=2), directory, resume=True, say=said.append, progress=False, **fields
    )
    return found, said


def same(directory, whole):
    for name in LOGS:
        assert (directory / name).read_text() == (whole / name).read_text()
    for folder in ("initial", "final"):
        for path in sorted((whole / folder).iterdir()):
            ours, theirs = (weights.load(x / folder / path.name) for x in (directory, whole))
            jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    ours, theirs = (json.loads((x / "summary.json").read_text()) for x in (directory, whole))
    for found in (ours, theirs):
        for row in found["lanes"]:
            del row["steps_per_second"]
    assert ours["lanes"] == theirs["lanes"]


def copy(source, tmp_path):
    return shutil.copytree(source, tmp_path / "copy")


def test_resuming_a_later_chunk_loses_no_rows(whole, stopped, tmp_path):
    directory = copy(stopped, tmp_path)
    before = rows(directory / "evaluations.csv")
    assert {r["lane"] for r in before} == {"0", "1", "2", "3"}
    _, said = resume(directory)
    assert not [line for line in said if "warning" in line]
    same(directory, whole)


def test_a_unit_keeps_its_chunks_when_memory_changes(whole, stopped, tmp_path, monkeypatch):
    """The run's number of lanes per chunk counts, not the memory available now."""
    directory = copy(stopped, tmp_path)
    monkeypatch.setattr(run, "available_memory", lambda: 10**12)
    execution.execute(small_run(), directory, resume=True, progress=False)
    same(directory, whole)
    assert run.read_run(directory).chunk == 2


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("damage", ["cut", "delete", "flip", "empty"])
def test_damaged_logs_are_rebuilt_and_reported(whole, stopped, tmp_path, name, damage):
    directory = copy(stopped, tmp_path)
    path = directory / name
    data = bytearray(path.read_bytes())
    if damage == "delete":
        path.unlink()
    elif damage == "flip":
        data[len(data) // 3] ^= 4
        path.write_bytes(data)
    else:
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else b"")
    _, said = resume(directory)
    assert any(name in line and "rebuilt" in line for line in said)
    same(directory, whole)


def test_arrays_have_names_shapes_and_types(stopped):
    store = checkpoint.Checkpoints(stopped / "checkpoints")
    meta, arrays = store.read_arrays(store.positions()[-1])
    name = "0.state.agent.actor.params.Dense_0.kernel"
    assert meta["arrays"][name] == "float32[1,4,16]" and arrays[name].shape == (1, 4, 16)


def test_flipped_bits_on_disk_fall_back_or_change_nothing(whole, stopped, tmp_path):
    """The newest checkpoint's files, one flip each: an older checkpoint, or the same result."""
    directory = copy(stopped, tmp_path)
    store = checkpoint.Checkpoints(directory / "checkpoints")
    newest = store.positions()[-1]
    good = store.read(newest)
    chance = np.random.default_rng(0)
    paths = sorted((directory / "checkpoints" / "states" / str(newest)).rglob("*"))
    for path in [p for p in paths if p.is_file() and p.stat().st_size]:
        data = path.read_bytes()
        for _ in range(3):
            damaged = bytearray(data)
            damaged[chance.integers(len(data))] ^= 1 << int(chance.integers(8))
            path.write_bytes(damaged)
            with pytest.raises(files.Damaged):
                store.read(newest)
        path.write_bytes(data)
    assert store.read(newest).meta == good.meta
    (directory / "checkpoints" / "states" / str(newest) / "meta.json").write_text("{}")
    _, said = resume(directory)
    assert any(f"checkpoint {newest} is damaged" in line for line in said)
    same(directory, whole)


def test_deleted_checkpoints_are_not_silently_begun_again(whole, stopped, tmp_path):
    directory = copy(stopped, tmp_path)
    shutil.rmtree(directory / "checkpoints" / "states")
    with pytest.raises(RunError, match="--restart"):
        resume(directory)
    resume(directory, restart=True)
    same(directory, whole)


@pytest.mark.parametrize("inside", [True, False])
def test_a_configuration_without_a_run_is_not_silently_trained(stopped, tmp_path, inside):
    """For instance `rlx2 resume RUN/checkpoints`, where a copy of it is."""
    directory = copy(stopped, tmp_path) / "checkpoints" if inside else tmp_path
    if not inside:
        shutil.copy(stopped / "config.json", directory)
    before = sorted(directory.rglob("*"))
    with pytest.raises(RunError, match=r"has no checkpoint to continue from.*--restart"):
        resume(directory)
    assert sorted({*directory.rglob("*")} - {*before}) == [
        directory / "checkpoints",
        directory / "checkpoints" / "config.json",
        directory / "run.lock",
        directory / "status.json",
    ]


def test_a_run_that_never_saved_a_checkpoint_begins_again(whole, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint.Checkpoints, "_save_rows", _full_disk)
        stop_after(patch, 200)
        with pytest.raises(guards.Stopped):
            execution.execute(small_run(chunk=2), tmp_path, progress=False)
    assert rows(tmp_path / "metrics.csv") and not list(tmp_path.glob("checkpoints/states/*"))
    _, said = resume(tmp_path)
    assert any("had not saved a checkpoint yet: it starts over" in line for line in said)
    same(tmp_path, whole)
    assert not (tmp_path / "checkpoints" / "none-yet").exists()


def _full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.fast
def test_tracebacks_of_failed_writes_that_orbax_logs_are_kept_back():
    def news(path: str, error: Exception | None) -> bool:
        info = (type(error), error, None) if error else None
        record = python_logging.LogRecord("absl", 40, path, 1, "failed", None, info)
        return snapshot._is_informative(record)

    assert not news("/x/orbax/checkpoint/_src/futures/future.py", OSError(28, "No space left"))
    assert not news("/x/asyncio/events.py", ValueError("in OCDBT"))
    assert news("/x/orbax/checkpoint/_src/futures/future.py", None)
    assert news("/x/experiments/train.py", OSError(28, "No space left"))


def test_unreadable_checkpoints_are_refused(stopped, tmp_path):
    directory = copy(stopped, tmp_path)
    for path in (directory / "checkpoints" / "states").glob("*/meta.json"):
        path.write_text("[]")
    with pytest.raises(RunError, match=r"none of the checkpoints .*--restart"):
        resume(directory)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 5}', '{"format": 4}'])
def test_a_damaged_configuration_has_a_copy(whole, stopped, tmp_path, text):
    directory = copy(stopped, tmp_path)
    (directory / "config.json").write_text(text)
    _, said = resume(directory)
    assert any("using its copy" in line for line in said)
    same(directory, whole)
    for path in (directory, directory / "checkpoints"):
        (path / "config.json").write_text(text)
    with pytest.raises(RunError, match=r"config\.json"):
        resume(directory)


def test_directories_without_later_fields_and_with_other_names_go_on(stopped, whole, tmp_path):
    """Newer settings get their defaults; lanes keep their original names."""
    directory = copy(stopped, tmp_path)
    for path in (directory / "config.json", directory / "checkpoints" / "config.json"):
        value = files.read_json(path)
        for name in ("critic_actions", "action_low", "action_high"):
            del value["config"][name]
        files.write_json(path, value)
    wanted = small_run(chunk=1)
    lanes = tuple(dataclasses.replace(lane, name="another") for lane in wanted.lanes)
    wanted = dataclasses.replace(wanted, lanes=lanes)
    execution.execute(wanted, directory, resume=True, progress=False)
    same(directory, whole)
    assert run.read_run(directory) == small_run(chunk=2)


def test_an_edited_configuration_is_not_followed(stopped, tmp_path):
    directory = copy(stopped, tmp_path)
    for path in (directory / "config.json", directory / "checkpoints" / "config.json"):
        value = files.read_json(path)
        value["config"]["hidden"] = [32, 32]
        files.write_json(path, value)  # even with the right digest
    edited = run.read_run(directory)
    with pytest.raises(RunError, match="other settings"):
        execution.execute(edited, directory, resume=True, progress=False)
    with pytest.raises(RunError, match=r"other settings \(config"):
        resume(directory)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"lanes": []}, "it has no lanes"),
        ({"lanes": [{}]}, "lane 0 has no "),
        ({"chunk": -1}, "chunk=-1"),
        ({"env": "\udcff"}, "surrogates not allowed"),
    ],
)
def test_an_impossible_configuration_is_refused(stopped, tmp_path, edit, message):
    directory = copy(stopped, tmp_path)
    for path in (directory / "config.json", directory / "checkpoints" / "config.json"):
        files.write_json(path, files.read_json(path) | edit)
    with pytest.raises(RunError, match=message):
        run.read_run(directory)


@pytest.mark.parametrize("field", ["copies", "progress"])
def test_checkpoints_of_another_form_are_refused(stopped, tmp_path, field):
    directory = copy(stopped, tmp_path)
    for path in (directory / "checkpoints" / "states").glob("*/meta.json"):
        meta = files.read_json(path)
        files.write_json(path, {k: v for k, v in meta.items() if k != field})
    with pytest.raises(RunError, match=r"none of the checkpoints|version that wrote it"):
        resume(directory)


def test_other_versions_and_flags_are_reported(stopped, tmp_path, monkeypatch):
    directory = copy(stopped, tmp_path)
    real = fingerprint.fingerprint()
    monkeypatch.setattr(
        fingerprint, "fingerprint", lambda: real | {"jaxlib": "9.9", "XLA_FLAGS": "--other"}
    )
    _, said = resume(directory)
    assert any("jaxlib was" in line and "9.9" in line for line in said)
    assert any("XLA_FLAGS" in line for line in said)
    machines = json.loads((directory / "summary.json").read_text())["machines"]
    assert [(m["step"] > 0, m["jaxlib"]) for m in machines] == [
        (False, real["jaxlib"]),
        (True, "9.9"),
    ]
    directory = shutil.copytree(stopped, tmp_path / "again")
    monkeypatch.setattr(fingerprint, "fingerprint", lambda: real | {"jax_enable_x64": "True"})
    with pytest.raises(RunError, match="JAX_ENABLE_X64"):
        resume(directory)


@pytest.mark.fast
@pytest.mark.parametrize("error", [AssertionError(), RuntimeError("no backend 'cuda'\nmore")])
def test_a_missing_device_is_an_error_of_one_line(monkeypatch, error):
    def fail():
        raise error

    monkeypatch.setattr(jax, "default_backend", fail)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    with pytest.raises(ValueError, match=r"^JAX finds no device .* JAX_PLATFORMS is cuda; set"):
        fingerprint.fingerprint()


@pytest.mark.fast
def test_the_command_that_continues_a_run_can_be_pasted_into_a_shell(tmp_path):
    directory = tmp_path / "my runs; ls"
    plain, imported = small_run(), small_run("module:Task-v0")
    words = shlex.split(run.resume_command(plain, directory))
    assert words == ["rlx2", "resume", str(directory)]
    assert run.resume_command(plain, Path("-x")) == "rlx2 resume --logdir=-x"
    assert run.resume_command(imported, tmp_path).endswith(" --allow_imports")


def test_checkpoints_of_older_versions_are_continued(whole, stopped, tmp_path):
    """They lack the time of evaluations, the machines and the CPU's instructions."""
    directory = copy(stopped, tmp_path)
    for path in (directory / "checkpoints" / "states").glob("*/meta.json"):
        meta = files.read_json(path)
        del meta["machines"], meta["fingerprint"]["instructions"]
        for progress in meta["progress"]:
            del progress["judged"]
        files.write_json(path, meta)
    _, said = resume(directory)
    assert not any("warning" in line for line in said)
    same(directory, whole)
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["evaluation_seconds"] is None and summary["training_seconds"] > 0
    assert [machine["step"] for machine in summary["machines"]] == [None]


def test_tables_keep_the_columns_that_they_began_with(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("lane,step\r\n0,1\r\n")
    log = files.Log(path, print, path.stat().st_size)
    logging.Table(log).write([{"lane": 0, "step": 2, "weights": "ab"}])
    log.flush()
    assert path.read_text().splitlines()[-1] == "0,2"


def test_resuming_a_copy_of_hard_links_leaves_the_original_alone(whole, stopped, tmp_path):
    original = copy(stopped, tmp_path)
    linked = shutil.copytree(original, tmp_path / "linked", copy_function=os.link)
    before = {p: p.read_bytes() for p in original.rglob("*") if p.is_file()}
    resume(linked)
    same(linked, whole)
    assert before == {p: p.read_bytes() for p in original.rglob("*") if p.is_file()}


def test_weights_are_restored_from_their_copies(whole, stopped, tmp_path):
    directory = copy(stopped, tmp_path)
    (directory / "initial" / "lane-1.npz").write_bytes(b"")
    (directory / "initial" / "lane-2.npz").unlink()
    (directory / "final" / "lane-0.npz").write_bytes(b"0")
    damaged = directory / "checkpoints" / "data" / "copy-final-lane-1.npz"
    damaged.write_bytes(b"1")
    _, said = resume(directory)
    assert sum("has been restored" in line for line in said) == 4
    same(directory, whole)
    assert damaged.read_bytes() == (directory / "final" / "lane-1.npz").read_bytes()


def test_a_file_in_the_place_of_a_folder_is_replaced(whole, stopped, tmp_path):
    directory = copy(stopped, tmp_path)
    for name in ("initial", "final"):
        shutil.rmtree(directory / name)
        (directory / name).write_text("not a folder")
    _, said = resume(directory)
    assert any("lane-0.npz was missing or damaged and has been restored" in line for line in said)
    same(directory, whole)


def test_a_damaged_log_segment_is_copied_from_the_log(whole, stopped, tmp_path):
    directory = copy(stopped, tmp_path)
    data = directory / "checkpoints" / "data"
    for path in data.glob("log-*"):
        path.write_bytes(b"x")
    _, said = resume(directory)
    assert any("copied from metrics.csv" in line for line in said)
    same(directory, whole)


def test_a_full_disk_costs_checkpoints_but_not_the_run(whole, tmp_path, monkeypatch):
    """Every write fails for a while; what is missing is written when there is room again."""
    write, refused = files.write_blocks, []
    saves = iter(range(10**9))

    def failing(path, blocks):
        if 20 <= next(saves) < 25:
            refused.append(path.name)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, blocks)

    monkeypatch.setattr(files, "write_blocks", failing)
    said = []
    execution.execute(small_run(chunk=2), tmp_path, say=said.append, progress=False)
    assert refused and any("the last good one" in line for line in said)
    assert any("checkpoints work again" in line for line in said)
    same(tmp_path, whole)


def test_a_disk_that_stays_full_is_reported_at_the_end(whole, tmp_path, monkeypatch):
    write = files.Log._write
    with monkeypatch.context() as patch:

        def full(self):
            if "metrics" in self.path.name:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write(self)

        patch.setattr(files.Log, "_write", full)
        with pytest.raises(
            execution.Unwritten, match=r"metrics\.csv, summary\.json could not be written"
        ):
            execution.execute(small_run(chunk=2), tmp_path, say=print, progress=False)
    assert not (tmp_path / "summary.json").exists()
    resume(tmp_path)
    same(tmp_path, whole)


def test_closing_files_are_tried_again_at_once(whole, tmp_path, monkeypatch):
    write, refused = files.write_blocks, []

    def failing(path, blocks):
        if path.name in ("curves.png", "summary.json") and path.name not in refused:
            refused.append(path.name)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return write(path, blocks)

    monkeypatch.setattr(files, "write_blocks", failing)
    execution.execute(small_run(chunk=2), tmp_path, say=print, progress=False)
    assert refused == ["curves.png", "summary.json"]
    same(tmp_path, whole)


def test_stopping_an_evaluation_costs_nothing(whole, tmp_path, monkeypatch):
    call, calls = evaluation.HostEvaluator.__call__, iter(range(10**9))

    def stopping(self, state, stop):
        if next(calls) == 2:  # SIGTERM comes
            stop.signal = signal.SIGTERM
        return call(self, state, stop)

    with monkeypatch.context() as patch:
        patch.setattr(evaluation.HostEvaluator, "__call__", stopping)
        with pytest.raises(guards.Stopped):
            execution.execute(small_run(chunk=2), tmp_path, progress=False)
    assert {row["step"] for row in rows(tmp_path / "evaluations.csv")} == {"0"}
    resume(tmp_path)
    same(tmp_path, whole)


class Awkward(gymnasium.Env):
    """Fails on request. Has InvertedPendulum's shapes, so that programs are shared."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))
    fails, calls, ends, after = "", 0, True, 0

    def __init__(self):
        if Awkward.fails == "make":
            raise RuntimeError("no licence")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        Awkward.calls += 1
        if Awkward.fails == "reset" and Awkward.calls > Awkward.after:
            raise RuntimeError("door is stuck")
        return np.zeros(4, np.float32), {}

    def step(self, action):
        ended = Awkward.ends and bool(self.np_random.random() < 0.1)
        return np.zeros(4, np.float32), 1.0, ended, False, {}


@pytest.fixture
def awkward():
    if "Awkward-v0" not in gymnasium.registry:
        gymnasium.register("Awkward-v0", lambda **_: Awkward())
    Awkward.fails, Awkward.calls, Awkward.ends, Awkward.after = "", 0, True, 0
    yield Awkward
    Awkward.fails = ""


@pytest.mark.parametrize(
    ("fails", "after", "message"),
    [
        ("make", 0, "set-up: .*no licence"),
        ("reset", 0, "lane rlx2, seed 0, reset: .*door is stuck"),
        ("reset", 4, "lane rlx2, seed 0, evaluation at step 0: .*door is stuck"),
    ],
)
def test_environment_errors_outside_steps_are_reported(awkward, tmp_path, fails, after, message):
    awkward.fails, awkward.after = fails, after
    with pytest.raises(LaneFailure, match=message):
        execution.execute(small_run("Awkward-v0"), tmp_path, say=print, progress=False)
    awkward.fails = ""
    found = execution.execute(
        small_run("Awkward-v0"), tmp_path, resume=True, say=print, progress=False
    )
    assert len(found["lanes"]) == 4


def test_checkpoints_deleted_while_a_run_trains_are_written_again(whole, tmp_path, monkeypatch):
    report, directory = execution._Execution._report, tmp_path / "run"

    def deleting(self, chunk, loop):
        report(self, chunk, loop)
        if chunk.index == 1:
            shutil.rmtree(directory / "checkpoints")
            (directory / "config.json").unlink()

    with monkeypatch.context() as patch:
        patch.setattr(execution._Execution, "_report", deleting)
        stop_in_chunk_two(patch)
        with pytest.raises(guards.Stopped):
            execution.execute(small_run(chunk=2), directory, say=print, progress=False)
    assert not {"config.json", "run.lock"} - set(os.listdir(directory))
    execution.execute(read_run(directory), directory, resume=True, say=print, progress=False)
    for name in ("evaluations.csv", "metrics.csv"):
        assert (directory / name).read_text() == (whole / name).read_text()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_directory_moved_while_its_run_trains_is_not_split(
    whole, tmp_path, monkeypatch, replaced
):
    report, directory, away = execution._Execution._report, tmp_path / "run", tmp_path / "away"
    reports, said = iter(range(10**9)), []

    def moving(self, chunk, loop):
        report(self, chunk, loop)
        number = next(reports)
        if number == 1:
            directory.rename(away)
            if replaced:
                directory.mkdir()
        if number == 3:
            assert not directory.exists() or not any(directory.iterdir())
            if replaced:
                directory.rmdir()
            away.rename(directory)

    monkeypatch.setattr(execution._Execution, "_report", moving)
    execution.execute(small_run(chunk=2), directory, say=said.append, progress=False)
    assert any("the run directory was moved or deleted: move it back" in line for line in said)
    same(directory, whole)


def test_an_unavailable_directory_is_reported_at_the_end(whole, tmp_path, monkeypatch):
    report, directory, away = execution._Execution._report, tmp_path / "run", tmp_path / "away"

    def moving(self, chunk, loop):
        report(self, chunk, loop)
        if chunk.index == 1 and directory.exists():
            directory.rename(away)

    with monkeypatch.context() as patch:
        patch.setattr(execution._Execution, "_report", moving)
        with pytest.raises(execution.Unwritten, match="could not be written"):
            execution.execute(small_run(chunk=2), directory, say=print, progress=False)
    assert not directory.exists()
    resume(away)
    same(away, whole)


def test_an_evaluation_that_never_ends_is_bounded(awkward, tmp_path, monkeypatch):
    awkward.ends = False
    monkeypatch.setattr(rollout, "LONGEST", 50)
    run = small_run("Awkward-v0")
    with pytest.raises(LaneFailure, match=r"50 steps .*--max_episode_steps"):
        execution.execute(run, tmp_path, say=print, progress=False)
    said = []
    limited = with_time_limit(run, 7)  # as `rlx2 resume --max_episode_steps=7` does
    execution.execute(limited, tmp_path, resume=True, say=said.append, progress=False)
    assert any("episodes now end after 7 steps" in line for line in said)
    assert {row["mean_length"] for row in rows(tmp_path / "evaluations.csv")} == {"7"}
    assert with_time_limit(read_run(tmp_path), 7) == read_run(tmp_path)
    with pytest.raises(RunError, match="end after 7 steps, which cannot be changed"):
        with_time_limit(read_run(tmp_path), 8)


def test_a_device_loop_stopped_before_its_first_step_writes_rows_once(tmp_path, monkeypatch):
    short = dataclasses.replace(
        small_run("inverted_pendulum", backend="brax"), eval_interval=60, episodes=2
    )
    with monkeypatch.context() as patch:
        stop_after(patch, 0)
        with pytest.raises(guards.Stopped):
            execution.execute(short, tmp_path, progress=False)
    found = rows(tmp_path / "evaluations.csv")
    assert len(found) == len(short.lanes)
    assert snapshots(tmp_path)[0].time == 0
