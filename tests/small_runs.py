"""Runs of a few seconds that exercise everything that long runs do."""

import csv
import dataclasses
import signal

from rlx2_jax import config
from rlx2_jax.training import guards
from rlx2_jax.training.run import Run

STEPS = 240


def small_run(env: str = "InvertedPendulum-v5", algo: str = "td3", **fields) -> Run:
    """Evolutions, trims and the n-step switch all happen within `STEPS` steps."""
    cfg = config.make(
        algo,
        4,
        1,
        hidden=(16, 16),
        batch_size=16,
        oldest_k=32,
        steps=STEPS,
        warmup=40,
        capacity=150,
        mask_interval=10,
        buffer_interval=20,
    )
    lanes = [
        config.Lane(seed=s, method=m, b_min=60, d0=1e-4, t0=100, mask_interval=10)
        for m in ("rlx2", "dense")
        for s in (0, 1)
    ]
    run = Run(
        env,
        cfg,
        tuple(config.resolve(cfg, lane) for lane in lanes),
        eval_interval=60,
        metrics_interval=60,
        checkpoint_interval=50,
        episodes=2,
    )
    return dataclasses.replace(run, **fields)


def stop_after(monkeypatch, calls: int):
    """Simulates SIGTERM in the middle of a run."""
    counted = iter(range(10**9))

    def call(self):
        if self.signal is None and next(counted) >= calls:
            self.signal = signal.SIGTERM
        return self.signal is not None

    monkeypatch.setattr(guards.Stopper, "__call__", call)


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
