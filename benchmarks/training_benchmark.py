"""Whole training steps: environment, add, update, act. Benchmarks `steps`, `pipeline`, `growth`."""

import resource
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import flags

from benchmarks.measure import Peer, Peers, interleaved, over_sbx
from benchmarks.update_benchmark import Scanned, program, sparse_lanes
from rlx2_jax import config as configs
from rlx2_jax import envs
from rlx2_jax.training.host_loop import HostLoop

FLAGS = flags.FLAGS


class EndToEnd:
    """Training of several lanes in Gymnasium environments, without evaluation."""

    def __init__(
        self,
        algo: str,
        lanes: int,
        *,
        form: str = "masked",
        n: int | None = None,
        pipeline: bool = True,
    ):
        host = envs.make_host(FLAGS.bench_env, 1)
        spec = host.spec
        host.close()
        windows: dict[str, Any] = {} if n is None else {"n_max": n}
        config = configs.make(
            algo, spec.obs_dim, spec.action_dim, capacity=100_000, warmup=1000, **windows
        )
        made = sparse_lanes(lanes, n=n, execution=form)
        self.lanes = lanes
        self.shares: list[float] = []  # of the environment, in each turn
        self.loop = HostLoop(
            config, made, lambda n: envs.make_host(FLAGS.bench_env, n), pipeline=pipeline
        )
        self.loop.advance(1500, lambda: False)

    def __call__(self) -> float:
        """Environment steps per second, all lanes together."""
        steps = max(100, FLAGS.bench_steps // self.lanes)
        before, start = self.loop.seconds, time.perf_counter()
        self.loop.advance(self.loop.time + steps, lambda: False)
        jax.block_until_ready([s.acting for s in self.loop.states()])
        seconds = time.perf_counter() - start
        self.shares.append((self.loop.seconds - before) / seconds)
        return self.lanes * steps / seconds


def steps() -> dict[str, Any]:
    """End to end: environment, add, update, act. Masked, compact and SBX alternate in one run.

    1-step targets, as in SBX. Loop overhead is the share of one lane's time spent neither in the
    environment nor in the update (timed in a scan)."""
    out: dict[str, Any] = {"measured": "RLx2 lanes at 98/95 %, 1-step targets as SBX has"}
    forms = ("masked", "compact")
    for algo in ("td3", "sac"):
        ours = {(form, n): EndToEnd(algo, n, form=form, n=1) for form in forms for n in (1, 4, 8)}
        alone = {
            form: Scanned(program(algo, 1, form=form, n=1), FLAGS.bench_steps // 2)
            for form in forms
        }
        subjects: dict[str, Callable[[], float]] = {}
        for form in forms:
            subjects[f"{algo}_{form}_updates"] = lambda form=form, alone=alone: 1 / alone[form]()
            subjects |= {f"{algo}_{form}_{n}_lanes": ours[form, n] for n in (1, 4, 8)}
        with Peers() as peers:
            if FLAGS.sbx:
                options = {"env": FLAGS.bench_env, "steps": FLAGS.bench_steps}
                subjects[f"sbx_{algo}"] = peers.add(Peer("steps", algo, **options))
            results = interleaved(subjects)
        out |= results.medians() | over_sbx(results, algo)
        out[f"{algo}_turns"] = results.values
        for form in forms:
            name = f"{algo}_{form}"
            shares, one = ours[form, 1].shares, f"{name}_1_lanes"
            update = np.divide(results.values[one], results.values[f"{name}_updates"])
            out[f"{name}_8_lanes_over_1"] = results.ratio(f"{name}_8_lanes", one)
            out[f"{name}_environment_share"] = float(np.median(shares))
            out[f"{name}_loop_overhead"] = float(np.median(1 - update - np.array(shares)))
    return out


def pipeline() -> dict[str, Any]:
    """Stepping one half of the lanes while the other learns, against doing both in sequence."""
    subjects = {
        "pipelined": EndToEnd("td3", 8),
        "in_turn": EndToEnd("td3", 8, pipeline=False),
    }
    results = interleaved(dict(subjects))
    return {**results.medians(), "gain": results.ratio("pipelined", "in_turn")}


def growth() -> dict[str, Any]:
    """Time per step and memory, which must not grow, in ten windows of one long run."""
    run = EndToEnd("td3", 1, form="compact")
    windows = []
    for _ in range(10):
        steps = FLAGS.growth_steps // 10
        start = time.perf_counter()
        run.loop.advance(run.loop.time + steps, lambda: False)
        jax.block_until_ready([s.acting for s in run.loop.states()])
        windows.append(
            {
                "step": run.loop.time,
                "us_per_step": 1e6 * (time.perf_counter() - start) / steps,
                "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )
    first, last = (sum(w["us_per_step"] for w in part) / 3 for part in (windows[:3], windows[-3:]))
    return {"windows": windows, "time_ratio": last / first}
