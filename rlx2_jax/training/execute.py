"""Executes a run: trains its chunks of lanes one after another, with logs and checkpoints."""

import contextlib
import dataclasses
import shutil
import signal
import time as clock
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rlx2_jax import files
from rlx2_jax.envs import time_limit
from rlx2_jax.files import Damaged
from rlx2_jax.kernels import native
from rlx2_jax.training import fingerprint, logging, manifest, summary, weights
from rlx2_jax.training import lane as lanes_
from rlx2_jax.training.checkpoint import Checkpoints, Saved
from rlx2_jax.training.evaluate import Interrupted
from rlx2_jax.training.evaluate import rows as evaluation_rows
from rlx2_jax.training.guards import Stopped, Stopper, locked
from rlx2_jax.training.lane_group import LaneFailure
from rlx2_jax.training.loop import DeviceLoop, HostLoop, networks
from rlx2_jax.training.program import initial_agent
from rlx2_jax.training.run import (
    CHECKPOINTS,
    CONFIG,
    Run,
    RunError,
    available_memory,
    chunk_size,
    disk_bytes,
    has_run,
    label,
    lane_ledger,
    make_loop,
    memory_bytes,
    read_run,
    resume_command,
    with_paths,
    with_time_limit,
    without_time_limit,
)

SUMMARY, CURVES = "summary.json", "curves.png"
# Fields that a run adds to the metadata of a checkpoint.
_META = {"progress": list, "lanes": list, "exact": bool, "run": str, "fingerprint": dict}
_PNG_END = b"IEND\xaeB`\x82"
_ATTEMPTS, _PAUSE = 3, 0.2  # to write closing files, and seconds between them
_SHOWN = 1000  # steps between redrawings of the progress display


class Unwritten(RunError):
    """The run has ended, but some of its files could not be written."""


def execute(
    run: Run,
    directory: Path,
    *,
    resume: bool = False,
    restart: bool = False,
    say: Callable[[str], None] | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Trains all lanes of `run` in `directory`; returns the summary.

    Args:
      resume: continue the run that the directory holds, which must have the settings of `run`.
      restart: with `resume`, discard its checkpoints and logs and start again.
      say: prints a line for the user; default: above the progress display.

    Raises:
      RunError: it cannot start, or files of the finished run could not be written.
      Stopped: SIGINT, SIGTERM or SIGHUP came; everything is saved.
      LaneFailure: an environment raised; saved as well.
    """
    directory = Path(directory)
    with locked(directory), Stopper() as stop:
        labels = [label(lane, i) for i, lane in enumerate(run.lanes)]
        shown = logging.Progress(run.config.steps, labels, quiet=not progress)
        say = say or shown.say
        run = claim(run, directory, resume=resume, restart=restart, say=say)
        return _Execution(run, directory, stop, say, shown).start(resume)


def claim(
    run: Run, directory: Path, *, resume: bool, restart: bool, say: Callable[[str], None]
) -> Run:
    """Writes the run's settings to its directory, or checks that they match those there.

    Returns the run with its number of lanes per chunk, which is fixed at the first start.
    """
    path, copy = directory / CONFIG, directory / CHECKPOINTS / CONFIG
    resumed = resume and has_run(directory)
    if resumed:
        found = read_run(directory, say, allow_imports=True)  # checked by whoever gave `run`
        found = _add_time_limit(found, run, say)
        check_same_settings(found, run, directory)
        _check_memory(found)
        if restart:
            _discard(directory)
    else:
        _refuse_other_files(directory)
        found = dataclasses.replace(run, chunk=chunk_size(run, available_memory()))
        _check_disk(found, directory)
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        for file in (path, copy):
            if not _holds(file, found):
                files.write_json(file, found.to_json())
        if restart or not resumed:
            Checkpoints(copy.parent).begin()
    except OSError as error:
        raise RunError(
            f"cannot write {CONFIG} to {directory} ({files.first_line(error)}): free some space, "
            f"or choose another --logdir"
        ) from error
    return found


def _add_time_limit(found: Run, wanted: Run, say: Callable[[str], None]) -> Run:
    """The run in the directory, with the time limit that `wanted` adds to it."""
    before = found.env_options
    if wanted.env_options == before or without_time_limit(wanted).env_options != before:
        return found
    (name,) = time_limit(found.backend, 1)
    steps = wanted.env_options[name]
    say(f"warning: episodes end after {steps:,} steps from now on; before, they had no limit")
    return with_time_limit(found, steps)


def _holds(path: Path, run: Run) -> bool:
    try:
        return Run.from_json(files.read_json(path)) == run
    except (Damaged, RunError):
        return False


def _refuse_other_files(directory: Path) -> None:
    names = (CONFIG, f"{CHECKPOINTS}/{CONFIG}", f"{CHECKPOINTS}/states", *logging.LOGS, SUMMARY)
    held = [name for name in names if (directory / name).exists()]
    if held:
        raise RunError(
            f"{directory} already holds a run ({held[0]}): continue it with rlx2 resume, "
            f"or choose another --logdir"
        )


def check_same_settings(found: Run, wanted: Run, directory: Path) -> None:
    """The form of execution, the chunk and names of lanes may differ: the run keeps those that it
    began with."""

    def plain(run: Run) -> dict[str, Any]:
        own = [dataclasses.replace(x, execution="masked", name="") for x in run.lanes]
        return dataclasses.replace(run, lanes=tuple(own), chunk=0).to_json()

    ours, theirs = plain(wanted), plain(found)
    other = [name for name in ours if ours[name] != theirs[name]]
    if other:
        raise RunError(
            f"{directory} holds a run with other settings ({', '.join(other)} differ): choose "
            f"another --logdir, or use the same settings"
        )
    if any(lane.execution == "compact" for lane in found.lanes) and native.execution() == "off":
        raise RunError(
            "this run has compact lanes, but RLX2_COMPACT=off switches them off: unset RLX2_COMPACT"
        )


def _check_memory(run: Run) -> None:
    need, free = memory_bytes(run), available_memory()
    if need > free:
        raise RunError(
            f"this run needs about {need / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are "
            f"available: free some, then resume again"
        )


def _check_disk(run: Run, directory: Path) -> None:
    need, free = disk_bytes(run), shutil.disk_usage(directory).free
    if need > free:
        raise RunError(
            f"checkpoints will take about {need / 1e9:.1f} GB and {directory} has "
            f"{free / 1e9:.1f} GB free: free some, lower --capacity, or choose another --logdir"
        )


def _discard(directory: Path) -> None:
    """Deletes the output of a run, but not its settings."""
    for name in ("states", "data"):
        shutil.rmtree(directory / CHECKPOINTS / name, ignore_errors=True)
    for name in ("initial", "final"):
        shutil.rmtree(directory / name, ignore_errors=True)
    for name in (*logging.LOGS, SUMMARY, CURVES):
        files.discard(directory / name)


@dataclasses.dataclass
class _Chunk:
    """Lanes that are trained together, and their progress."""

    run: Run
    index: int
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # evaluation rows
    last: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # newest report
    frozen: list[int] = dataclasses.field(default_factory=list)
    seconds: float = 0.0  # of training
    judged: float | None = 0.0  # seconds of evaluation; None: not known for all of it
    evaluated: int = -1  # time of the last evaluation
    reported: int = 0  # time of the last row of metrics

    def __post_init__(self) -> None:
        self.first = self.index * self.run.chunk
        self.lanes = list(self.run.lanes[self.first : self.first + self.run.chunk])
        self.labels = [label(lane, self.first + i) for i, lane in enumerate(self.lanes)]

    def progress(self) -> dict[str, Any]:
        """The fields that a checkpoint stores."""
        names = ("history", "last", "frozen", "seconds", "judged", "evaluated", "reported")
        return {name: getattr(self, name) for name in names}

    def results(self) -> list[summary.LaneResult]:
        return [
            summary.LaneResult(
                self.first + i,
                lane,
                [row for row in self.history if row["lane"] == self.first + i],
                self.last[i],
                self.seconds,
            )
            for i, lane in enumerate(self.lanes)
        ]


class _Execution:
    def __init__(
        self,
        run: Run,
        directory: Path,
        stop: Stopper,
        say: Callable[[str], None],
        progress: logging.Progress,
    ):
        self.run, self.directory, self.stop = run, directory, stop
        self.say, self.progress = say, progress
        self.resume_command = resume_command(run, directory)
        self.store = Checkpoints(directory / CHECKPOINTS, keep=run.keep)
        self.outbox = files.Outbox(say)
        self.fingerprint = fingerprint.fingerprint()
        self.digest = run.digest  # of the settings that the run began with
        self.machines: list[dict[str, Any]] = [{"step": 0, **self.fingerprint}]
        self.end = lanes_.total_time(run.config)
        self.chunks = [_Chunk(run, i) for i in range(-(-len(run.lanes) // run.chunk))]
        self.fresh: dict[str, bytes] = {}  # weights that no checkpoint has yet, by file name
        self.saved_at = 0  # environment steps at the last checkpoint
        self.unsaved = False  # whether the last checkpoint failed
        self.log: logging.RunLog

    def start(self, resume: bool) -> dict[str, Any]:
        saved = self._newest() if resume else None
        self.store.clean()
        sizes = {
            name: self.store.restore_log(saved, self.directory / name, self.say)
            for name in logging.LOGS
        }
        self.log = logging.RunLog(self.directory, self.say, sizes)
        first = self._restore_progress(saved) if saved else 0
        for chunk in self.chunks[first:]:
            self._train(chunk, saved if chunk.index == first else None)
        return self._finish()

    def _newest(self) -> Saved | None:
        """The newest good checkpoint, checked against the run."""
        begin_again = f"start again with {self.resume_command} --restart"
        try:
            saved = self.store.newest(self.say)
        except Damaged as error:
            raise RunError(f"{error}: restore them from a copy, or {begin_again}") from error
        if saved is None:
            if _trained(self.directory):
                if not self.store.begun_only:
                    raise RunError(
                        f"{self.directory} has results but no checkpoint to continue from: restore "
                        f"{CHECKPOINTS}/ from a copy, or {begin_again}"
                    )
                self.say("warning: this run had not saved a checkpoint yet: it begins again")
            return None
        try:
            manifest.check_fields(saved.meta, _META)
        except Damaged as error:
            raise RunError(f"{error}: resume it with the version that wrote it") from error
        own = (self.run.digest, without_time_limit(self.run).digest)
        if saved.meta["run"] not in own or saved.meta["chunk"] >= len(self.chunks):
            raise RunError(
                f"the checkpoints in {self.directory} belong to a run with other settings than "
                f"its {CONFIG}, or to another version of the program: restore the right "
                f"{CONFIG}, or resume with the version that wrote them"
            )
        self.digest = saved.meta["run"]
        before, now = saved.meta["fingerprint"], self.fingerprint
        was, is_ = before.get("jax_enable_x64"), now["jax_enable_x64"]
        if was != is_:
            raise RunError(
                f"this run was started with JAX_ENABLE_X64={was}, now it is {is_}: set it as it was"
            )
        for line in fingerprint.differences(before, now):
            self.say(f"warning: {line}; results may differ from those of an uninterrupted run")
        return saved

    def _restore_progress(self, saved: Saved) -> int:
        """Restores everything but the lanes themselves; returns the chunk to continue."""
        meta = saved.meta
        for chunk, before in zip(self.chunks, meta["progress"]):
            for name in chunk.progress():
                setattr(chunk, name, before.get(name))
        before, step = meta["fingerprint"], saved.position % (self.end + 1)
        self.machines = meta.get("machines") or [{"step": None, **before}]
        if fingerprint.differences(before, self.fingerprint):
            here = {"step": step * self.run.config.num_envs, **self.fingerprint}
            self.machines = [*self.machines, here]
        self.store.restore_copies(saved, self.say)
        return meta["chunk"]

    def _train(self, chunk: _Chunk, saved: Saved | None) -> None:
        limited = self.digest == self.run.digest
        loop = make_loop(self.run, chunk.lanes, self.directory, limited=limited)
        try:
            if saved:
                try:
                    snapshots = self.store.load(saved, loop.snapshots())
                except Damaged as error:
                    raise RunError(
                        f"checkpoint {saved.position} does not fit this version of the program "
                        f"({error}): resume it with the version that wrote it"
                    ) from error
                loop.restore(snapshots, exact=saved.meta["exact"])
                if not (saved.meta["exact"] and loop.exact_restore):
                    self.say("the environments cannot be restored exactly: new episodes start")
                self.saved_at = loop.time * self.run.config.num_envs
                self.say(f"resumed at step {self.saved_at:,}")
            else:
                for i in range(len(chunk.lanes)):
                    self._keep_initial(chunk.first + i)
            self.progress.start(loop.time * self.run.config.num_envs)
            self._go(chunk, loop)
        finally:
            loop.close()

    def _go(self, chunk: _Chunk, loop: HostLoop | DeviceLoop) -> None:
        """Trains from the loop's time to the end, pausing at each event."""
        run, envs = self.run, self.run.config.num_envs
        intervals = (run.eval_interval, run.metrics_interval, run.checkpoint_interval, _SHOWN)
        every = [max(1, steps // envs) for steps in intervals]
        while True:
            self._events(chunk, loop, *every[:3])
            if loop.time >= self.end:
                break
            start = clock.perf_counter()
            with self._saving_failures(chunk, loop, exact=False):
                loop.advance(min(self.end, *((loop.time // x + 1) * x for x in every)), self.stop)
            chunk.seconds += clock.perf_counter() - start
            self.progress.update(loop.time * envs)
        self._keep_final(loop, chunk)

    def _events(
        self, chunk: _Chunk, loop: HostLoop | DeviceLoop, evaluate: int, report: int, save: int
    ) -> None:
        """What is due at this time and was not done before."""
        t, last = loop.time, loop.time >= self.end
        if t > chunk.reported and (t % report == 0 or last):
            self._report(chunk, loop)
        if t > chunk.evaluated and (t % evaluate == 0 or last):
            with self._saving_failures(chunk, loop, exact=True):
                self._evaluate(chunk, loop)
        self.log.flush()
        self.outbox.flush()
        if t % save == 0 or last or self.unsaved or self.stop():
            self._save(chunk, loop)
        if self.stop():
            number = self.stop.signal or signal.SIGINT
            raise Stopped(
                f"stopped by {signal.Signals(number).name} at step "
                f"{t * self.run.config.num_envs:,}, saved at step {self.saved_at:,}: continue "
                f"with {self.resume_command}",
                number,
            )

    @contextlib.contextmanager
    def _saving_failures(
        self, chunk: _Chunk, loop: HostLoop | DeviceLoop, *, exact: bool
    ) -> Iterator[None]:
        """Saves before an environment's error ends the run."""
        try:
            yield
        except LaneFailure as failure:
            self.log.flush()
            if self._save(chunk, loop, exact=exact):
                hint = "Everything before that is saved: correct the environment and continue with"
            else:
                hint = f"The last checkpoint is of step {self.saved_at:,}: continue from there with"
            raise LaneFailure(f"{failure}\n{hint} {self.resume_command}") from failure

    def _keep_initial(self, number: int) -> None:
        """The dense initial weights and first masks of a lane, so that they can be rewound."""
        config = dataclasses.replace(self.run.config, execution="masked")
        lane = self.run.lanes[number]
        own = with_paths(lane, self.directory)
        begun = weights.of_agent(weights.given(initial_agent(config, lane), config, own))
        if not lane.tiny:  # a dense lane of the same seed has the weights off the mask as well
            none = {"actor_sparsity": 0.0, "critic_sparsity": 0.0, "masks": None}
            dense = dataclasses.replace(own, **none)
            whole = initial_agent(config, dense)
            every = weights.of_agent(weights.given(whole, config, dense))
            begun = {k: weights.Weights(every[k].weights, v.mask) for k, v in begun.items()}
        self._keep(f"initial/lane-{number}.npz", begun)

    def _keep_final(self, loop: HostLoop | DeviceLoop, chunk: _Chunk) -> None:
        """The networks that every lane ended with."""
        for i, found in enumerate(networks(loop)):
            self._keep(f"final/lane-{chunk.first + i}.npz", found)

    def _keep(self, name: str, found: dict[str, weights.Weights]) -> None:
        self.fresh[name] = weights.to_bytes(found)
        self.outbox.write(self.directory / name, self.fresh[name])

    def _evaluate(self, chunk: _Chunk, loop: HostLoop | DeviceLoop) -> None:
        start = clock.perf_counter()
        try:
            found = loop.evaluate(self.stop)
        except Interrupted:
            return  # due again when the run is resumed
        step = loop.time * self.run.config.num_envs
        digests = [weights.digest(x) for x in networks(loop)]
        rows = evaluation_rows(found, chunk.lanes, step, digests, chunk.first)
        if chunk.judged is not None:
            chunk.judged += clock.perf_counter() - start
        chunk.history += rows
        chunk.evaluated = loop.time
        self.log.evaluations.write(rows)
        for row, name in zip(rows, chunk.labels):
            keys = ("mean_return", "mean_length", "value_bias", "value_spread")
            self.log.events.scalars(step, {f"{name}/{k}": row[k] for k in keys})
        self.progress.returns(chunk.labels, [row["mean_return"] for row in rows])
        self.progress.update(step, "evaluated", force=True)

    def _report(self, chunk: _Chunk, loop: HostLoop | DeviceLoop) -> None:
        step = loop.time * self.run.config.num_envs
        chunk.last, chunk.reported = loop.report(), loop.time
        rows = []
        for i, (lane, row) in enumerate(zip(chunk.lanes, chunk.last)):
            if not row["alive"] and i not in chunk.frozen:
                chunk.frozen.append(i)
                self.say(
                    f"lane {chunk.labels[i]}: a gradient was not finite by step {step:,}; its "
                    f"networks are frozen at their last finite values, other lanes continue"
                )
            ledger = lane_ledger(self.run.config, lane)
            row["train_flops"] = ledger.train_flops * row["updates"]
            head = {
                "lane": chunk.first + i,
                "method": lane.method,
                "seed": lane.seed,
                "step": step,
            }
            rows.append({**head, **row})
            tags = {f"{chunk.labels[i]}/{k}": float(v) for k, v in row.items()}
            self.log.events.scalars(step, tags)
        self.log.metrics.write(rows)

    def _save(self, chunk: _Chunk, loop: HostLoop | DeviceLoop, *, exact: bool = True) -> bool:
        """A checkpoint; a failure costs this one, not the run and not the last good one."""
        snapshots = loop.snapshots()
        step = loop.time * self.run.config.num_envs
        position = chunk.index * (self.end + 1) + max(s.time for s in snapshots)
        meta = {
            "progress": [c.progress() for c in self.chunks[: chunk.index + 1]],
            "lanes": loop.lanes,
            "exact": exact,
            "run": self.digest,
            "fingerprint": self.fingerprint,
            "machines": self.machines,
        }
        for path in (self.directory / CONFIG, self.directory / CHECKPOINTS / CONFIG):
            if not path.exists():  # deleted by somebody
                self.outbox.write(path, files.to_json(self.run.to_json()).encode())
        try:
            logs = self.log.logs
            self.store.save(position, chunk.index, snapshots, logs, meta, self.fresh)
        except Exception as error:  # a failed checkpoint never ends the run
            if not self.unsaved:
                self.say(
                    f"warning: the checkpoint at step {step:,} failed ({files.first_line(error)}); "
                    f"the last good one, of step {self.saved_at:,}, is kept, training continues"
                )
            self.unsaved = True
            return False
        if self.unsaved:
            self.say(f"checkpoints work again: saved at step {step:,}")
        self.unsaved, self.saved_at = False, step
        self.fresh.clear()
        return True

    def _finish(self) -> dict[str, Any]:
        """Writes the closing files, the summary last: its presence marks a complete run."""
        results = [result for chunk in self.chunks for result in chunk.results()]
        judged = [chunk.judged for chunk in self.chunks if chunk.judged is not None]
        found = summary.summarize(
            self.run,
            results,
            training_seconds=sum(chunk.seconds for chunk in self.chunks),
            evaluation_seconds=sum(judged) if len(judged) == len(self.chunks) else None,
            machines=self.machines,
        )
        self.outbox.write(self.directory / CURVES, summary.plot(self.run, results))
        text = files.to_json(found).encode()
        for attempt in range(_ATTEMPTS):  # nothing follows that would try again
            clock.sleep(_PAUSE * bool(attempt))
            if self.log.flush() and self.outbox.flush():
                self.outbox.write(self.directory / SUMMARY, text)
                if not self.outbox.missing:
                    break
        missing = [*self.log.missing, *self.outbox.missing]
        if missing:
            names = dict.fromkeys([*(str(p.relative_to(self.directory)) for p in missing), SUMMARY])
            again = f"repeats the steps after {self.saved_at:,} and writes" * self.unsaved
            raise Unwritten(
                f"training has ended, but {', '.join(names)} could not be written: free some "
                f"space, then {self.resume_command} {again or 'writes'} them"
            )
        return found


def damaged(directory: Path) -> list[str]:
    """Results of a finished run that are missing or were changed, by name: resuming it restores
    them. Where its checkpoints were deleted, nothing is known of them and nothing is listed."""
    store = Checkpoints(directory / CHECKPOINTS)
    if not store.positions():
        return []
    run = read_run(directory, allow_imports=True)
    found = ([] if _holds(directory / CONFIG, run) else [CONFIG]) + store.damaged()
    for number in range(len(run.lanes)):
        name = f"final/lane-{number}.npz"
        try:
            weights.load(directory / name)
        except ValueError:
            found.append(name)
    try:
        whole = (directory / CURVES).read_bytes().endswith(_PNG_END)
    except OSError:
        whole = False
    return found if whole else [*found, CURVES]


def _trained(directory: Path) -> bool:
    """Whether a run has progressed beyond the evaluation before its first step."""
    if (directory / SUMMARY).exists() or (directory / logging.METRICS).exists():
        return True
    path = directory / logging.EVALUATIONS
    with contextlib.suppress(OSError):
        steps = {line.split(",")[3] for line in path.read_text().splitlines()[1:]}
        return bool(steps - {"0"})
    return False
