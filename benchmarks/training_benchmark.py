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
    """Training of some lanes in real environments, evaluation left out."""

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
    """End to end: environment, add, update, act. Both forms and SBX take turns in one run.

    1-step targets, as SBX has. A form's loop overhead is the share of one lane's time that goes
    neither to the environment nor to the update, as that runs in a scan."""
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
            found = interleaved(subjects)
        out |= found.medians() | over_sbx(found, algo)
        out[f"{algo}_turns"] = found.values
        for form in forms:
            name = f"{algo}_{form}"
            shares, one = ours[form, 1].shares, f"{name}_1_lanes"
            update = np.divide(found.values[one], found.values[f"{name}_updates"])
            out[f"{name}_8_lanes_over_1"] = found.ratio(f"{name}_8_lanes", one)
            out[f"{name}_environment_share"] = float(np.median(shares))
            out[f"{name}_loop_overhead"] = float(np.median(1 - update - np.array(shares)))
    return out


def pipeline() -> dict[str, Any]:
    """Stepping one half while the other learns, against one after the other."""
    subjects = {
        "pipelined": EndToEnd("td3", 8),
        "in_turn": EndToEnd("td3", 8, pipeline=False),
    }
    found = interleaved(dict(subjects))
    return {**found.medians(), "gain": found.ratio("pipelined", "in_turn")}


def growth() -> dict[str, Any]:
    """Time per step and memory in ten windows of one long run, which must not grow."""
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
