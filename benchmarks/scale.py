"""Compile time, memory and time per step by number of lanes, and how many lanes fit on a device.

    python -m benchmarks.scale --measure=lanes     # 1 to 256 lanes of a small task on the device
    python -m benchmarks.scale --measure=memory    # a lane of the paper's tasks, compiled only
    python -m benchmarks.scale                     # docs/scale.md and docs/scale.png

The first two write docs/measured/scale-*.json; the page shows those that exist. Only the first
measures times and needs a quiet machine.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from benchmarks.measure import machine
from benchmarks.performance import table
from rlx2_jax import config as configs
from rlx2_jax.cli import crash
from rlx2_jax.config import Config, Lane
from rlx2_jax.envs.probes import device
from rlx2_jax.training import lane as lanes_
from rlx2_jax.training import program, segments
from rlx2_jax.training.device_loop import DeviceLoop
from rlx2_jax.types import TimeStep

FLAGS = flags.FLAGS
LANES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
STEPS = 200  # timed steps
# Observation and action sizes of the -v5 tasks.
TASKS = {
    "Hopper": (11, 3),
    "HalfCheetah, Walker2d": (17, 6),
    "Ant": (105, 8),
    "Humanoid": (348, 17),
}
GIGABYTE = 10**9
ACCELERATORS = {
    "T4": 16,
    "TPU v5e": 16,
    "A100 (40 GB)": 40,
    "A100 (80 GB)": 80,
    "H100": 80,
}
SHARE = 0.75  # fraction of a GPU's memory that JAX preallocates by default
PROCESS = 1  # GB reserved for programs and runtime


def total_bytes(compiled: Any) -> int:
    """Memory of a program: arguments, results that do not reuse donated arguments, temporaries."""
    usage = compiled.memory_analysis()
    kept = usage.output_size_in_bytes - usage.alias_size_in_bytes
    return int(usage.argument_size_in_bytes + kept + usage.temp_size_in_bytes)


def small(count: int) -> tuple[Config, list[Lane]]:
    """RLx2-TD3 on a task with a one-number state, so that the lanes cause nearly all the cost."""
    fields = {"steps": 100_000, "warmup": 100, "capacity": 10_000, "hidden": (32, 32)}
    cfg = configs.make("td3", 1, 1, batch_size=32, **fields)
    return cfg, [Lane(seed=i, actor_sparsity=0.5, critic_sparsity=0.5) for i in range(count)]


def lanes_row(count: int) -> dict[str, float]:
    """The loop of plain steps with `count` lanes."""
    cfg, lanes = small(count)
    (group,) = DeviceLoop(cfg, lanes, device("rlx2_jax/Truncation-v0"))._groups
    group.advance(100, False)  # warm-up, so that replay has something to sample
    rest = (group.program.hyper, group.program.config, True)
    carry = (group.state, group.env_state)
    start = time.perf_counter()
    lowered = group._steps.plain.jitted.trace(carry, *_span(100, 100), *rest).lower()
    traced = time.perf_counter()
    compiled = lowered.compile()
    seconds = time.perf_counter() - traced
    rest = (group.program.hyper,)
    for begin, end in ((100, 120), (120, 120 + STEPS)):  # the first call warms up
        start_steps = time.perf_counter()
        state, env_state, _ = compiled(carry, *_span(begin, end), *rest)
        carry = jax.block_until_ready((state, env_state))
        step = (time.perf_counter() - start_steps) / (end - begin)
    return {
        "lanes": count,
        "trace_seconds": traced - start,
        "compile_seconds": seconds,
        "bytes": total_bytes(compiled),
        "us_per_step": 1e6 * step,
    }


def _span(time_: int, until: int) -> tuple[Any, Any]:
    return np.int32(time_), np.int32(until)


def abstract_lanes(cfg: Config, lane: Lane, count: int) -> tuple[Any, Any, Any]:
    """Shapes of the states, hyper-parameters and time steps of `count` lanes."""

    def stacked(make: Any) -> Any:
        shapes = jax.eval_shape(make)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape), x.dtype), shapes)

    obs = jnp.zeros((cfg.num_envs, cfg.obs_dim))
    state = stacked(lambda: lanes_.init(cfg, lane, obs, horizon=1000))
    ends = jnp.zeros(cfg.num_envs, bool)
    after = stacked(lambda: TimeStep(obs, obs, jnp.zeros(cfg.num_envs), ends, ends))
    return state, stacked(lambda: configs.hyper(cfg, lane)), after


def memory_row(name: str, lanes: int = 2, **fields: Any) -> dict[str, Any]:
    """A lane of one of the paper's tasks: TD3, 256 x 256 units, a million transitions. The larger
    of the two programs that the host dispatches (plain step, step with a mask update)."""
    obs, act = TASKS[name]
    cfg = configs.make("td3", obs, act, **fields)
    lane = configs.resolve(cfg, Lane(actor_sparsity=0.9, critic_sparsity=0.85))
    state, hyper, after = abstract_lanes(cfg, lane, lanes)
    t = jax.ShapeDtypeStruct((), jnp.int32)
    phase = segments.phases(cfg, True)[-1]
    traced = {
        "plain": program._plain.jitted.trace(state, after, t, hyper, cfg, phase),
        "event": program._step.jitted.trace(state, after, t, hyper, cfg, True),
    }
    results = {kind: total_bytes(x.lower().compile()) // lanes for kind, x in traced.items()}
    size = lambda tree: sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))  # noqa: E731
    return {
        "task": name,
        "replay_bytes": size(state.replay) // lanes,
        "state_bytes": size(state) // lanes,
        **{f"{kind}_bytes": value for kind, value in results.items()},
    }


def fits(gigabytes: float, bytes_per_lane: float) -> int:
    """Lanes that fit on an accelerator with `gigabytes` of memory."""
    return int((SHARE * gigabytes - PROCESS) * GIGABYTE // bytes_per_lane)


def measure(kind: str) -> dict[str, Any]:
    about = machine()
    if kind == "memory":
        os.environ["RLX2_COMPACT"] = "off"  # accelerators use XLA's products
        rows = [_shown(memory_row(name)) for name in TASKS]
    else:
        rows = [_shown(lanes_row(count)) for count in LANES]
    return {"rows": rows, "machine": about}


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    print(row, file=sys.stderr, flush=True)
    return row


def page(lanes: dict[str, Any] | None, memory: dict[str, Any] | None) -> str:
    """docs/scale.md: a section for each measurement that exists."""
    sections = [
        "# Scale",
        "",
        "Lanes share one compiled program, so compile time should not grow with them, and memory",
        "should grow in proportion. This page is written by `python -m benchmarks.scale` from",
        "`docs/measured/scale-*.json`.",
    ]
    if lanes is not None:
        sections += _lanes_section(lanes)
    if memory is not None:
        sections += _memory_section(memory)
    return "\n".join([*sections, ""])


def _lanes_section(lanes: dict[str, Any]) -> list[str]:
    return [
        "",
        "## 1 to 256 lanes",
        "",
        "RLx2-TD3 with 32 x 32 units, batches of 32 and room for 10,000 transitions, in the",
        "compiled loop of lanes and environments, on a task with a one-number state.",
        _machine(lanes),
        "",
        "![Compile time, memory and time per step against lanes](scale.png)",
        "",
        table(
            ["lanes", "compile, s", "memory, MB", "per lane, MB", "step, µs", "per lane, µs"],
            [_lanes_cells(row) for row in lanes["rows"]],
        ),
        "",
        "Memory is that of the compiled program (`memory_analysis()`): state, replay and",
        "temporaries.",
    ]


def _memory_section(memory: dict[str, Any]) -> list[str]:
    return [
        "",
        "## How many lanes fit on an accelerator",
        "",
        "**Derived, not measured on these accelerators.** The bytes per lane are those of the",
        "programs that train it, compiled for a CPU without the CPU's kernels: masked TD3,",
        "256 x 256 units, batches of 256, a replay buffer of 1,000,000 transitions. Each",
        f"device gives {SHARE:.0%} of its memory to JAX (the default on GPUs), of which",
        f"{PROCESS} GB is reserved for programs and runtime. Compilers for accelerators plan",
        "temporaries differently, but these are a small part here.",
        "",
        table(
            ["task", "replay, GB", "all, GB", *ACCELERATORS],
            [_memory_cells(row) for row in memory["rows"]],
        ),
        "",
        "Memory is proportional to `--capacity`. With several devices, each holds this",
        "many lanes (`--devices`).",
    ]


def _machine(results: dict[str, Any]) -> str:
    about = results["machine"]
    return (
        f"Measured on {about.get('cores')} cores of {about.get('processor')}, jax "
        f"{about.get('jax')}, load {about.get('load_before', float('nan')):.1f} when it began."
    )


def _lanes_cells(row: dict[str, Any]) -> list[str]:
    count, size, step = row["lanes"], row["bytes"] / 1e6, row["us_per_step"]
    return [
        str(count),
        f"{row['compile_seconds']:.1f}",
        f"{size:,.1f}",
        f"{size / count:.2f}",
        f"{step:,.0f}",
        f"{step / count:,.0f}",
    ]


def bytes_per_lane(row: dict[str, Any]) -> int:
    return max(row["plain_bytes"], row["event_bytes"])


def _memory_cells(row: dict[str, Any]) -> list[str]:
    size = bytes_per_lane(row)
    sizes = [f"{row['replay_bytes'] / 1e9:.2f}", f"{size / 1e9:.2f}"]
    return [row["task"], *sizes, *(str(fits(x, size)) for x in ACCELERATORS.values())]


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Three plots over the number of lanes, with logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    counts = [row["lanes"] for row in rows]
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    shown = (
        ("compile time, s", [row["compile_seconds"] for row in rows]),
        ("memory of the program, MB", [row["bytes"] / 1e6 for row in rows]),
        ("time per step of all lanes, µs", [row["us_per_step"] for row in rows]),
    )
    for axis, (title, values) in zip(axes, shown):
        axis.plot(counts, values, "o-", ms=4)
        axis.set(xscale="log", xlabel="lanes", title=title, xticks=counts)
        axis.set_xticks([], minor=True)
        axis.set_xticklabels(counts)
        axis.grid(alpha=0.3)
        if title.startswith("compile"):
            axis.set_ylim(0, 1.2 * max(values))
        else:
            axis.set_yscale("log")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(_: Sequence[str]) -> int:
    docs = Path(FLAGS.docs)
    files = {kind: docs / "measured" / f"scale-{kind}.json" for kind in ("lanes", "memory")}
    if FLAGS.measure:
        results = measure(FLAGS.measure)
        files[FLAGS.measure].write_text(json.dumps(results, indent=1) + "\n")
        return 0
    found = {k: json.loads(path.read_text()) for k, path in files.items() if path.exists()}
    if not found:
        print("nothing measured yet: use --measure=memory or --measure=lanes", file=sys.stderr)
        return 2
    (docs / "scale.md").write_text(page(found.get("lanes"), found.get("memory")))
    if "lanes" in found:
        plot(found["lanes"]["rows"], docs / "scale.png")
    return 0


if __name__ == "__main__":
    flags.DEFINE_enum(
        "measure", None, ["lanes", "memory"], "What to measure; unset: write the page."
    )
    flags.DEFINE_string("docs", "docs", "Directory of the page and of measured/.")
    crash.run(main)
