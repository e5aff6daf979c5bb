"""Logs and tracks 32 lanes as a run does, without training: tracked_process.py DIRECTORY TRACKER.

Rows beyond the last checkpoint are cut off when it starts again, as in a run.
"""

import dataclasses
import sys
import time
from pathlib import Path

from small_runs import small_run

from rlx2_jax.training import logging, tracking
from rlx2_jax.training.tracking import Track, Tracking

LANES, STEPS, EVERY = 32, 2000, 20
CHECKPOINT = 100


def main(directory: Path, tracker: str) -> None:
    run = small_run()
    run = dataclasses.replace(run, lanes=run.lanes * (LANES // len(run.lanes)))
    kept = directory / "checkpoint"
    step, *sizes = map(int, kept.read_text().split()) if kept.exists() else (0, 0, 0, 0)
    for name, size in zip(logging.LOGS, sizes):
        path = directory / name
        if path.exists():
            path.write_bytes(path.read_bytes()[:size])
    log = logging.RunLog(directory, print, dict(zip(logging.LOGS, sizes)))
    with Tracking(Track((tracker,)), run, directory, print) as sent:
        sent.publish(log.sizes())  # a run does this with its next checkpoint, or at its end
        while step < STEPS:
            step += EVERY
            for lane, own in enumerate(run.lanes):
                head = {"lane": lane, "method": own.method, "seed": own.seed, "step": step}
                values = {"q": 0.1 * step + lane, "alpha": float("nan"), "trims": step // 7}
                log.metrics.write([{**head, **values}])
                if step % (2 * EVERY) == 0:
                    more = {"mean_return": step / 3 - lane, "weights": "abc"}
                    log.evaluations.write([{**head, **more}])
            log.flush()
            if step % CHECKPOINT == 0:
                text = " ".join(map(str, [step, *log.sizes().values()]))
                (directory / "partial").write_text(text)
                (directory / "partial").rename(kept)
                sent.publish(log.sizes())
            time.sleep(0.1)
        sent.summary = {"lanes": [{"final_score": float(i)} for i in range(LANES)]}


if __name__ == "__main__":
    tracking._PATIENCE = 600.0
    main(Path(sys.argv[1]), sys.argv[2])
