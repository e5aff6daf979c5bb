"""Writes a run's measurements: both CSV tables, TensorBoard scalars, the progress display."""

from collections.abc import Callable, Sequence
from typing import Any

from rlx2_jax.training.chunk import Chunk
from rlx2_jax.training.evaluate import Evaluation, head
from rlx2_jax.training.evaluate import rows as evaluation_rows
from rlx2_jax.training.lane_ledger import lane_ledger
from rlx2_jax.training.logging import Progress, RunLog
from rlx2_jax.training.metrics import METRICS
from rlx2_jax.training.run import Run


class Reporter:
    """Writes reports under the names in `METRICS`."""

    def __init__(self, run: Run, log: RunLog, progress: Progress, say: Callable[[str], None]):
        self._run, self._log, self._progress, self._say = run, log, progress, say

    def evaluation(
        self, chunk: Chunk, found: Evaluation, digests: Sequence[str], time: int
    ) -> None:
        """Writes one row of `evaluations.csv` per lane of a chunk and adds it to the history."""
        step = time * self._run.config.num_envs
        rows = evaluation_rows(found, chunk.lanes, step, digests, chunk.first)
        chunk.history += rows
        chunk.evaluated = time
        self._write(self._log.evaluations.write, chunk, rows, step)
        self._progress.returns(chunk.labels, [row["mean_return"] for row in rows])
        self._progress.update(step, "evaluated", force=True)

    def metrics(self, chunk: Chunk, rows: list[dict[str, Any]], time: int) -> None:
        """Writes one row of `metrics.csv` per lane of a chunk and keeps it as the newest."""
        step = time * self._run.config.num_envs
        chunk.last, chunk.reported = rows, time
        for i, (lane, row) in enumerate(zip(chunk.lanes, rows)):
            if not row["alive"] and i not in chunk.frozen:
                chunk.frozen.append(i)
                self._say(
                    f"lane {chunk.labels[i]}: a gradient was not finite by step {step:,}; its "
                    f"networks are frozen at their last finite values, other lanes continue"
                )
            row["train_flops"] = (
                lane_ledger(self._run.config, lane, updates=row["updates"]).train_flops
                * row["updates"]
            )
        rows = [
            {**head(lane, chunk.first + i, step), **row}
            for i, (lane, row) in enumerate(zip(chunk.lanes, rows))
        ]
        self._write(self._log.metrics.write, chunk, rows, step)

    def _write(
        self, table: Callable[[Any], None], chunk: Chunk, rows: list[dict[str, Any]], step: int
    ) -> None:
        table(rows)
        for name, row in zip(chunk.labels, rows):
            shown = {k: float(v) for k, v in row.items() if k not in METRICS or METRICS[k].tag}
            self._log.events.scalars(step, {f"{name}/{k}": v for k, v in shown.items()})
