"""Whole training steps: environment, add, update, act. Benchmarks `steps`, `pipeline`, `growth`."""

import resource
import time
from collections.abc import Callable
from typing import Any

import jax
from absl import flags

from experiments.measure import Peer, Peers, interleaved, over_sbx
from rlx2_jax import config as configs
from rlx2_jax import envs
from rlx2_jax.runtime.loop import HostLoop

FLAGS = flags.FLAGS


def sparse_lanes(
    count: int, sparsity: tuple[float, float] = (0.98, 0.95), **fields: Any
) -> list[configs.Lane]:
    """RLx2 lanes, at the paper's Hopper sparsities or others."""
    actor, critic = sparsity
    return [
        configs.Lane(seed=i, actor_sparsity=actor, critic_sparsity=critic, **fields)
        for i in range(count)
    ]


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
        self.loop = HostLoop(
            config, made, lambda n: envs.make_host(FLAGS.bench_env, n), pipeline=pipeline
        )
        self.loop.advance(1500, lambda: False)

    def __call__(self) -> float:
        """Environment steps per second, all lanes together."""
        steps = max(100, FLAGS.bench_steps // self.lanes)
        start = time.perf_counter()
        self.loop.advance(self.loop.time + steps, lambda: False)
        jax.block_until_ready([s.acting for s in self.loop.states()])
        return self.lanes * steps / (time.perf_counter() - start)


def steps() -> dict[str, Any]:
    """End to end: environment, add, update, act. Both forms and SBX take turns in one run.

    1-step targets, as SBX has. A form's loop overhead is the share of one lane's time that is
    neither the environment nor waiting for the device."""
    out: dict[str, Any] = {"measured": "RLx2 lanes at 98/95 %, 1-step targets as SBX has"}
    for algo in configs.ALGORITHMS:
        ours = {
            (form, n): EndToEnd(algo, n, form=form, n=1)
            for form in ("masked", "compact")
            for n in (1, 4, 8)
        }
        subjects: dict[str, Callable[[], float]] = {
            f"{algo}_{form}_{n}_lanes": run for (form, n), run in ours.items()
        }
        with Peers() as peers:
            if FLAGS.sbx:
                options = {"env": FLAGS.bench_env, "steps": FLAGS.bench_steps}
                subjects[f"sbx_{algo}"] = peers.add(Peer("steps", algo, **options))
            found = interleaved(subjects)
        out |= found.medians() | over_sbx(found, algo)
        out[f"{algo}_turns"] = found.values
        for form in ("masked", "compact"):
            name = f"{algo}_{form}"
            out[f"{name}_8_lanes_over_1"] = found.ratio(f"{name}_8_lanes", f"{name}_1_lanes")
            out |= {f"{name}_{k}": v for k, v in shares(ours[form, 1].loop).items()}
    return out


def shares(loop: HostLoop) -> dict[str, float]:
    """Where the time of a loop goes: its own overhead, and the environment."""
    before, start = dict(loop.seconds), time.perf_counter()
    loop.advance(loop.time + FLAGS.bench_steps, lambda: False)
    whole = time.perf_counter() - start
    spent = {k: loop.seconds[k] - before[k] for k in before}
    return {
        "loop_overhead": 1 - sum(spent.values()) / whole,
        "environment_share": spent["environment"] / whole,
    }


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
