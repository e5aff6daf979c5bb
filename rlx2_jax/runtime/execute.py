"""Carries a run out: chunks of lanes one after another, watched, saved and resumed."""

import contextlib
import dataclasses
import json
import shutil
import signal
import time as clock
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlx2_jax import lane as lanes_
from rlx2_jax.config import Lane
from rlx2_jax.runtime import checkpoint, logging, summary, weights
from rlx2_jax.runtime.evaluate import Evaluation
from rlx2_jax.runtime.evaluate import rows as evaluation_rows
from rlx2_jax.runtime.group import LaneFailure
from rlx2_jax.runtime.guards import Stopped, Stopper, locked
from rlx2_jax.runtime.loop import DeviceLoop, HostLoop
from rlx2_jax.runtime.program import initial_agent, unstack
from rlx2_jax.runtime.run import (
    Run,
    RunError,
    available_memory,
    chunk_size,
    disk_bytes,
    label,
    lane_ledger,
    make_loop,
    with_paths,
)

CONFIG, SUMMARY = "config.json", "summary.json"


class _Chunk:
    """One chunk of lanes on its way through the run."""

    def __init__(self, run: Run, directory: Path, index: int, first: int, lanes: Sequence[Lane]):
        self.run, self.first, self.lanes = run, first, list(lanes)
        self.directory = directory / "checkpoints" / f"chunk-{index}"
        self.labels = [label(lane, first + i) for i, lane in enumerate(lanes)]
        self.history: list[dict[str, Any]] = []  # evaluation rows
        self.last: list[dict[str, Any]] = []  # newest report
        self.frozen: set[int] = set()
        self.seconds = 0.0

    @property
    def done(self) -> Path:
        return self.directory / "done.json"

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


def execute(
    run: Run,
    directory: Path,
    *,
    resume: bool = False,
    say: Callable[[str], None] | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Trains all lanes of `run` in `directory`; returns the summary.

    Raises `RunError` where it cannot start, `Stopped` after SIGINT or SIGTERM (everything
    saved), `LaneFailure` where an environment raised (saved as well).
    """
    directory = Path(directory)
    with locked(directory), Stopper() as stop:
        return _Execution(run, directory, stop, say, progress).start(resume)


class _Execution:
    def __init__(
        self,
        run: Run,
        directory: Path,
        stop: Stopper,
        say: Callable[[str], None] | None,
        progress: bool,
    ):
        self.run, self.directory, self.stop = run, directory, stop
        all_labels = [label(lane, i) for i, lane in enumerate(run.lanes)]
        self.progress = logging.Progress(run.config.steps, all_labels, quiet=not progress)
        self.say = say or self.progress.say

    def start(self, resume: bool) -> dict[str, Any]:
        directory = self.directory
        size = chunk_size(self.run, available_memory())
        self.run = run = dataclasses.replace(self.run, chunk=size)  # the same when resumed
        chunks = [
            _Chunk(run, directory, i, first, run.lanes[first : first + size])
            for i, first in enumerate(range(0, len(run.lanes), size))
        ]
        self._check_disk()
        if (directory / CONFIG).exists() and not resume:
            raise RunError(
                f"{directory} already holds a run: continue it with --resume, "
                f"or choose another --logdir"
            )
        if not (directory / CONFIG).exists():
            logging.write_json(directory / CONFIG, run.to_json())
        began, sizes = False, {}
        for chunk in chunks:
            if chunk.done.exists():
                saved = json.loads(chunk.done.read_text())
                chunk.history, chunk.last = saved["history"], saved["last"]
                chunk.seconds, sizes = saved["seconds"], saved["sizes"]
                continue
            if not began:
                began = True
                if chunk is not chunks[0]:
                    logging.cut_back(directory, sizes)
            self._train(chunk, resume)
        results = [result for chunk in chunks for result in chunk.results()]
        found = summary.summarize(run, results)
        logging.write_json(directory / SUMMARY, found)
        summary.plot(run, results, directory / "curves.png")
        return found

    def _check_disk(self) -> None:
        need = disk_bytes(self.run)
        free = shutil.disk_usage(self.directory).free
        if need > free:
            raise RunError(
                f"checkpoints will take about {need / 1e9:.1f} GB and {self.directory} has "
                f"{free / 1e9:.1f} GB free: free some, lower --capacity, or choose another --logdir"
            )

    def _train(self, chunk: _Chunk, resume: bool) -> None:
        run, config, directory = self.run, self.run.config, self.directory
        loop = make_loop(run, chunk.lanes, directory)
        store = checkpoint.Checkpoints(chunk.directory.resolve(), keep=run.keep)
        log = None
        try:
            found = store.restore(loop.snapshots(), warn=self.say) if resume else None
            if found is not None:
                snapshots, meta = found
                logging.cut_back(directory, meta["sizes"])
                chunk.history, chunk.seconds = meta["history"], meta["seconds"]
                chunk.frozen, chunk.last = set(meta["frozen"]), meta["last"]
                loop.restore(snapshots, exact=meta["exact"])
                if not (meta["exact"] and loop.exact_restore):
                    self.say("environments cannot be continued where they were: new episodes begin")
                self.say(f"resumed at step {loop.time * config.num_envs:,}")
            elif resume and chunk.first == 0:
                logging.cut_back(directory, {})
            log = logging.RunLog(directory)
            if found is None:
                self._keep_initial(loop, chunk)
                self._evaluate(chunk, loop, log)
            self.progress.start(loop.time * config.num_envs)
            self._go(chunk, loop, store, log)
        finally:
            with contextlib.suppress(Exception):
                store.close()
            if log is not None:
                log.close()
            loop.close()

    def _go(
        self,
        chunk: _Chunk,
        loop: HostLoop | DeviceLoop,
        store: checkpoint.Checkpoints,
        log: logging.RunLog,
    ) -> None:
        """From the loop's time to the end, stopping at each event on the way."""
        run, config = self.run, self.run.config
        end = lanes_.total_time(config)
        every = lambda steps: max(1, steps // config.num_envs)  # noqa: E731
        evaluations, metrics = every(run.eval_interval), every(run.metrics_interval)
        saves, shown = every(run.checkpoint_interval), every(1000)
        saved_at = loop.time
        while loop.time < end:
            events = [(loop.time // x + 1) * x for x in (evaluations, metrics, saves, shown)]
            start = clock.perf_counter()
            try:
                loop.advance(min(end, *events), self.stop)
            except LaneFailure as failure:
                self._save(chunk, loop, store, log, exact=False)
                store.finish()
                raise LaneFailure(
                    f"{failure}\nEverything before that step is saved: correct the environment "
                    f"and continue with --resume --logdir={self.directory}"
                ) from failure
            chunk.seconds += clock.perf_counter() - start
            t = loop.time
            self.progress.update(t * config.num_envs)
            if t % metrics == 0 or t == end:
                self._report(chunk, loop, log)
            if t % evaluations == 0 or t == end:
                self._evaluate(chunk, loop, log)
            due = t % saves == 0 or t == end or self.stop()
            if due and self._save(chunk, loop, store, log):
                saved_at = t
            if self.stop():
                store.finish()
                name = signal.Signals(self.stop.signal or signal.SIGINT).name
                raise Stopped(
                    f"stopped by {name} at step {t * config.num_envs:,}, saved at step "
                    f"{saved_at * config.num_envs:,}: continue with "
                    f"--resume --logdir={self.directory}",
                    self.stop.signal or signal.SIGINT,
                )
        store.finish()
        self._keep_final(loop, chunk)
        logging.write_json(
            chunk.done,
            {
                "history": chunk.history,
                "last": chunk.last,
                "seconds": chunk.seconds,
                "sizes": log.sizes(),
            },
        )

    def _keep_initial(self, loop: HostLoop | DeviceLoop, chunk: _Chunk) -> None:
        """The dense initial weights and first masks of every lane, so that they can be rewound."""
        config = dataclasses.replace(self.run.config, execution="masked")
        for i, lane in enumerate(chunk.lanes):
            own = with_paths(lane, self.directory)
            first = initial_agent(config, lane)
            begun = weights.of_agent(weights.given(first, config, own))
            if not lane.tiny:  # a dense lane of the same seed has the weights off the mask as well
                none = {"actor_sparsity": 0.0, "critic_sparsity": 0.0, "masks": None}
                dense = dataclasses.replace(own, **none)
                whole = initial_agent(config, dense)
                every = weights.of_agent(weights.given(whole, config, dense))
                begun = {k: weights.Weights(every[k].weights, v.mask) for k, v in begun.items()}
            weights.save(self.directory / "initial" / f"lane-{chunk.first + i}.npz", begun)

    def _keep_final(self, loop: HostLoop | DeviceLoop, chunk: _Chunk) -> None:
        """The networks that every lane ended with."""
        for state, members in zip(loop.states(), loop.lanes):
            for row, i in enumerate(members):
                agent = unstack(state.agent, row)
                path = self.directory / "final" / f"lane-{chunk.first + i}.npz"
                weights.save(path, weights.of_agent(agent))

    def _evaluate(self, chunk: _Chunk, loop: HostLoop | DeviceLoop, log: logging.RunLog) -> None:
        found: Evaluation = loop.evaluate()
        step = loop.time * self.run.config.num_envs
        rows = evaluation_rows(found, chunk.lanes, step, chunk.first)
        chunk.history += rows
        log.evaluations.write(rows)
        for row, name in zip(rows, chunk.labels):
            keys = ("mean_return", "mean_length", "value_bias", "value_spread")
            log.events.scalars(step, {f"{name}/{k}": row[k] for k in keys})
        self.progress.returns(chunk.labels, [row["mean_return"] for row in rows])
        self.progress.update(step, "evaluated", force=True)

    def _report(self, chunk: _Chunk, loop: HostLoop | DeviceLoop, log: logging.RunLog) -> None:
        step = loop.time * self.run.config.num_envs
        chunk.last = loop.report()
        rows = []
        for i, (lane, row) in enumerate(zip(chunk.lanes, chunk.last)):
            if not row["alive"] and i not in chunk.frozen:
                chunk.frozen.add(i)
                self.say(
                    f"lane {chunk.labels[i]}: a gradient was not finite by step {step:,}; its "
                    f"networks are frozen at their last finite values, other lanes go on"
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
            log.events.scalars(step, {f"{chunk.labels[i]}/{k}": float(v) for k, v in row.items()})
        log.metrics.write(rows)

    def _save(
        self,
        chunk: _Chunk,
        loop: HostLoop | DeviceLoop,
        store: checkpoint.Checkpoints,
        log: logging.RunLog,
        *,
        exact: bool = True,
    ) -> bool:
        """A checkpoint; a disk that is full costs this one, not the run and not the last one."""
        meta = {
            "history": chunk.history,
            "seconds": chunk.seconds,
            "sizes": log.sizes(),
            "frozen": sorted(chunk.frozen),
            "last": chunk.last,
            "exact": exact,
            "lanes": loop.lanes,
        }
        try:
            store.save(loop.snapshots(), meta)
        except Exception as error:  # whatever it was, the run is worth more than this checkpoint
            self.say(
                f"checkpoint at step {loop.time * self.run.config.num_envs:,} failed "
                f"({type(error).__name__}: {error}); the last good one is kept, training goes on"
            )
            return False
        return True
