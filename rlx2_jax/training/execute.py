"""Executes a run: trains its chunks of lanes in sequence, with logs and checkpoints."""

import contextlib
import dataclasses
import time as clock
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rlx2_jax import files
from rlx2_jax.files import Damaged
from rlx2_jax.training import devices as devices_
from rlx2_jax.training import fingerprint, heartbeat, logging, summary, weights
from rlx2_jax.training import lane as lanes_
from rlx2_jax.training.checkpoint import Checkpoints, Saved
from rlx2_jax.training.chunk import Chunk
from rlx2_jax.training.claim import CURVES, SUMMARY, claim, newest_checkpoint
from rlx2_jax.training.evaluate import Interrupted
from rlx2_jax.training.guards import Stopped, Stopper, locked
from rlx2_jax.training.lane_group import LaneFailure
from rlx2_jax.training.loop import Loop, networks
from rlx2_jax.training.reporter import Reporter
from rlx2_jax.training.run import (
    CHECKPOINTS,
    CONFIG,
    Run,
    RunError,
    initial_networks,
    label,
    make_loop,
    resume_command,
)
from rlx2_jax.training.tracking import Track, Tracking
from rlx2_jax.types import Device

_ATTEMPTS, _PAUSE = 3, 0.2  # attempts to write the final files, and seconds between them
_SHOWN = 1000  # steps between redraws of the progress display


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
    track: Track | None = None,
    devices: int = 0,
    interrupt: Callable[[], str | None] = lambda: None,
    home: Path | None = None,
) -> dict[str, Any]:
    """Trains all lanes of `run` in `directory`; returns the summary.

    Args:
      resume: continue the run in `directory`, which must have the settings of `run`.
      restart: with `resume`, discard its checkpoints and logs and start over.
      say: prints a line for the user; default: above the progress display.
      track: the trackers to report to; default: those of the previous session.
      devices: how many devices to use, 0 for all. A run may be continued on any number.
      interrupt: returns a reason to save and stop, or None.
      home: the directory that resume hints name, if `run` is a part of another run.

    Raises:
      RunError: the run cannot start, or files of the finished run could not be written.
      Stopped: stopped by SIGINT, SIGTERM or SIGHUP, with everything saved.
      LaneFailure: an environment raised, with everything saved.
    """
    directory, chosen = Path(directory), devices_.choose(devices)
    if not run.shards and len(chosen) > 1:
        run = dataclasses.replace(run, shards=len(chosen))
    with locked(directory) as check, Stopper(interrupt) as stop:
        labels = [label(lane, i) for i, lane in enumerate(run.lanes, run.first)]
        shown = logging.Progress(run.config.steps, labels, quiet=not progress)
        say = say or shown.say
        run = claim(run, directory, resume=resume, restart=restart, say=say)
        total = run.config.steps * run.chunks
        with (
            heartbeat.Heartbeat(directory, total, say, check, stops=(Stopped,)) as pulse,
            Tracking(track, run, directory, say, restart=restart) as tracking,
        ):
            parts = stop, say, shown, check, pulse, tracking, chosen, home or directory
            return _Execution(run, directory, *parts).start(resume)


class _Execution:
    def __init__(
        self,
        run: Run,
        directory: Path,
        stop: Stopper,
        say: Callable[[str], None],
        progress: logging.Progress,
        check: files.Check,
        pulse: heartbeat.Heartbeat,
        tracking: Tracking,
        devices: Sequence[Device],
        home: Path,
    ):
        self.run, self.directory, self.stop = run, directory, stop
        self.say, self.progress, self.check = say, progress, check
        self.pulse, self.tracking, self.devices = pulse, tracking, devices
        self.resume_command = resume_command(run, home)
        self.store = Checkpoints(directory / CHECKPOINTS, keep=run.keep)
        self.outbox = files.Outbox(say, check)
        self.fingerprint = fingerprint.fingerprint()
        self.digest = run.digest  # of the settings that the run started with
        self.machines: list[dict[str, Any]] = [{"step": 0, **self.fingerprint}]
        self.end = lanes_.total_time(run.config)
        self.chunks = [Chunk(run, i) for i in range(run.chunks)]
        self.fresh: dict[str, bytes] = {}  # weights not yet in any checkpoint, by file name
        self.saved_at = 0  # environment steps at the last checkpoint
        self.unsaved = False  # whether the last checkpoint failed
        self.log: logging.RunLog
        self.reporter: Reporter

    def start(self, resume: bool) -> dict[str, Any]:
        saved = None
        if resume:
            saved = newest_checkpoint(
                self.store, self.run, self.directory, self.fingerprint, self.say
            )
        self.store.clean()
        sizes = {
            name: self.store.restore_log(saved, self.directory / name, self.say)
            for name in logging.LOGS
        }
        self.log = logging.RunLog(self.directory, self.say, sizes, self.check)
        self.reporter = Reporter(self.run, self.log, self.progress, self.say)
        first = self._restore_progress(saved) if saved else 0
        for chunk in self.chunks[first:]:
            self._train(chunk, saved if chunk.index == first else None)
        return self._finish()

    def _restore_progress(self, saved: Saved) -> int:
        """Restores everything except the lanes; returns the index of the chunk to continue."""
        meta = saved.meta
        self.digest = meta["run"]
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

    def _train(self, chunk: Chunk, saved: Saved | None) -> None:
        limited = self.digest == self.run.digest
        loop = make_loop(
            self.run, chunk.lanes, self.directory, limited=limited, devices=self.devices
        )
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
                    self.say("the environments cannot be restored exactly: starting new episodes")
                self.saved_at = loop.time * self.run.config.num_envs
                self.say(f"resumed at step {self.saved_at:,}")
            else:
                for i in range(len(chunk.lanes)):
                    nets = initial_networks(self.run.config, chunk.lanes[i], self.directory)
                    self._write_weights(f"initial/lane-{chunk.first + i}.npz", nets)
            self.progress.start(loop.time * self.run.config.num_envs)
            self._advance(chunk, loop)
        finally:
            loop.close()

    def _advance(self, chunk: Chunk, loop: Loop) -> None:
        """Trains from the loop's time to the end, pausing at each event."""
        run, envs = self.run, self.run.config.num_envs
        intervals = (run.eval_interval, run.metrics_interval, run.checkpoint_interval, _SHOWN)
        every = [max(1, steps // envs) for steps in intervals]
        while True:
            self.pulse.at(chunk.index * run.config.steps + loop.time * envs)
            self._events(chunk, loop, *every[:3])
            if loop.time >= self.end:
                break
            start = clock.perf_counter()
            with self._saving_failures(chunk, loop, exact=False):
                loop.advance(min(self.end, *((loop.time // x + 1) * x for x in every)), self.stop)
            chunk.seconds += clock.perf_counter() - start
            self.progress.update(loop.time * envs)
        self._write_final(loop, chunk)

    def _events(self, chunk: Chunk, loop: Loop, evaluate: int, report: int, save: int) -> None:
        """Handles reports, evaluations, checkpoints and stops due at this time."""
        t, last = loop.time, loop.time >= self.end
        if t > chunk.reported and (t % report == 0 or last):
            self._report(chunk, loop)
        if t > chunk.evaluated and (t % evaluate == 0 or last):
            with self._saving_failures(chunk, loop, exact=True):
                self._evaluate(chunk, loop)
        self.log.flush()
        self.outbox.flush()
        due = t % save == 0 or last or self.unsaved or self.stop()
        if due and self._save(chunk, loop):
            stopping = self.stop.signal is not None  # an evaluation may have been aborted
            before = t * self.run.config.num_envs if stopping else None
            self.tracking.publish(self.log.sizes(), before)
        if self.stop():
            why, number = self.stop.reason
            raise Stopped(
                f"stopped {why} at step "
                f"{t * self.run.config.num_envs:,}, saved at step {self.saved_at:,}: continue "
                f"with {self.resume_command}",
                number,
            )

    @contextlib.contextmanager
    def _saving_failures(self, chunk: Chunk, loop: Loop, *, exact: bool) -> Iterator[None]:
        """Saves a checkpoint before an environment's error ends the run."""
        try:
            yield
        except LaneFailure as failure:
            self.log.flush()
            if self._save(chunk, loop, exact=exact):
                hint = "Everything before that is saved: fix the environment and continue with"
            else:
                hint = f"The last checkpoint is at step {self.saved_at:,}: continue from it with"
            raise LaneFailure(f"{failure}\n{hint} {self.resume_command}") from failure

    def _write_final(self, loop: Loop, chunk: Chunk) -> None:
        """Writes the final networks of every lane."""
        for i, nets in enumerate(networks(loop)):
            self._write_weights(f"final/lane-{chunk.first + i}.npz", nets)

    def _write_weights(self, name: str, nets: dict[str, weights.Weights]) -> None:
        self.fresh[name] = weights.to_bytes(nets)
        self.outbox.write(self.directory / name, self.fresh[name])

    def _evaluate(self, chunk: Chunk, loop: Loop) -> None:
        start = clock.perf_counter()
        try:
            evaluation = loop.evaluate(self.stop)
        except Interrupted:
            return  # repeated when the run is resumed
        digests = [weights.digest(x) for x in networks(loop)]
        if chunk.judged is not None:
            chunk.judged += clock.perf_counter() - start
        self.reporter.evaluation(chunk, evaluation, digests, loop.time)

    def _report(self, chunk: Chunk, loop: Loop) -> None:
        self.reporter.metrics(chunk, loop.report(), loop.time)

    def _save(self, chunk: Chunk, loop: Loop, *, exact: bool = True) -> bool:
        """Saves a checkpoint. A failure affects neither the run nor the previous checkpoint."""
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
            if not path.exists():  # deleted during the run
                self.outbox.write(path, files.to_json(self.run.to_json()).encode())
        try:
            self.check()
            logs = self.log.logs
            self.store.save(position, chunk.index, snapshots, logs, meta, self.fresh)
        except Exception as error:  # a failed checkpoint never ends the run
            if not self.unsaved:
                last = f"the last good one, at step {self.saved_at:,}, is kept"
                kept = last if self.store.positions() else "there is no earlier one"
                self.say(
                    f"warning: the checkpoint at step {step:,} failed ({files.first_line(error)}); "
                    f"{kept} and training continues"
                )
            self.unsaved = True
            return False
        if self.unsaved:
            self.say(f"checkpoints work again: saved at step {step:,}")
        self.unsaved, self.saved_at = False, step
        self.fresh.clear()
        return True

    def _finish(self) -> dict[str, Any]:
        """Writes the final files, the summary last: its presence marks a complete run."""
        results = [result for chunk in self.chunks for result in chunk.results()]
        judged = [chunk.judged for chunk in self.chunks if chunk.judged is not None]
        contents = summary.summarize(
            self.run,
            results,
            training_seconds=sum(chunk.seconds for chunk in self.chunks),
            evaluation_seconds=sum(judged) if len(judged) == len(self.chunks) else None,
            machines=self.machines,
        )
        self.outbox.write(self.directory / CURVES, summary.plot(self.run, results))
        text = files.to_json(contents).encode()
        for attempt in range(_ATTEMPTS):  # the last chance to write them in this session
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
        self.tracking.summary = contents
        return contents
