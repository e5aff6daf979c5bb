"""What tests of several devices do in a process that has them: `python several_devices.py CASE`.

The number of devices is fixed when JAX starts, so it cannot be one of this test process. Prints one
JSON object.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from device_tasks import Still, lanes_of, short_setting
from small_runs import small_run

from rlx2_jax import config
from rlx2_jax.training import devices, plan
from rlx2_jax.training.device_loop import DeviceLoop
from rlx2_jax.training.execute import execute
from rlx2_jax.training.guards import Stopped
from rlx2_jax.training.run import Run, read_run


def environment(count: int) -> dict[str, str]:
    """The environment variables for a process with `count` devices."""
    flag = f"--xla_force_host_platform_device_count={count}"
    whole = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
    own = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": whole, "JAX_COMPILATION_CACHE_DIR": ""}
    return {**os.environ, **own}


def in_a_process(case: str, count: int) -> Any:
    """The output of a case in a process with `count` devices."""
    command = [sys.executable, __file__, case]
    done = subprocess.run(
        command, env=environment(count), capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def logs(directory: Path) -> dict[str, str]:
    """Results that must not depend on devices; evaluations contain digests of weights and masks."""
    return {name: (directory / name).read_text() for name in ("evaluations.csv", "metrics.csv")}


def stopped_at(step: int) -> Callable[[], str | None]:
    """Interrupts a run after a number of calls."""
    calls = iter(range(10**9))
    return lambda: "the test says so" if next(calls) >= step else None


def resumed(run: Run, scratch: Path, numbers: list[int], stop: int) -> dict[str, Any]:
    """A run on `numbers[0]` devices, stopped midway, continued on each of the other numbers."""
    for i, count in enumerate(numbers):
        last = i + 1 == len(numbers)
        more: Any = {} if last else {"interrupt": stopped_at(stop)}
        said: list[str] = []
        try:
            execute(run, scratch, resume=i > 0, devices=count, say=said.append, **more)
            assert last, "the run ended before it was stopped"
        except Stopped as stopped:
            assert not last and "the test says so" in str(stopped)
        assert i == 0 or any("resumed at step" in line for line in said), said
    return logs(scratch)


def compare(run: Run, whole: int, *others: list[int], stop: int = 150) -> dict[str, Any]:
    """Logs of one run on `whole` devices, and whether those of others are the same."""
    with tempfile.TemporaryDirectory() as scratch:
        expected = resumed(run, Path(scratch) / "whole", [whole], stop)
        shards = read_run(Path(scratch) / "whole").shards
        fixed = dataclasses.replace(run, shards=shards)
        found = [resumed(fixed, Path(scratch) / "-".join(map(str, x)), x, stop) for x in others]
    rows = expected["evaluations.csv"].count("\n") - 1
    return {"rows": rows, "shards": shards, "same": [x == expected for x in found]}


def two() -> Any:
    """A run on two devices; on one, stopped, continued on two. Each compiles again, so its
    programs are small."""
    run = small_run()
    cfg = dataclasses.replace(run.config, hidden=(16,), policy_delay=1, target_interval=1)
    return compare(dataclasses.replace(run, config=cfg), 2, [1, 2])


def eight() -> Any:
    """Eight blocks on 8, 1 and 3 devices."""
    run = small_run()
    lanes = [dataclasses.replace(x, seed=s) for x in run.lanes[::2] for s in range(4)]
    run = dataclasses.replace(run, lanes=tuple(lanes))
    return compare(run, 8, [1], [3, 8, 1])


def compact() -> Any:
    """Eight compact lanes in one program, whose kernels share one thread pool."""
    run = small_run()
    cfg = dataclasses.replace(run.config, hidden=(32, 32))
    lanes = [config.Lane(seed=s, b_min=60, t0=100, mask_interval=10) for s in range(8)]
    lanes = plan.choose(cfg, [config.resolve(cfg, x) for x in lanes], "compact")
    return compare(dataclasses.replace(run, config=cfg, lanes=lanes), 8, [1], [2, 5])


def on_the_device() -> Any:
    """Environments on the device, five lanes on four devices: blocks of two lanes and of one."""
    run = small_run("rlx2_jax/Truncation-v0", backend="brax")
    cfg = dataclasses.replace(run.config, obs_dim=1)
    lanes = tuple(dataclasses.replace(run.lanes[0], seed=s) for s in range(5))
    return compare(dataclasses.replace(run, config=cfg, lanes=lanes), 4, [1], [2, 4], stop=3)


PARTITIONS = re.compile(r"num_(?:partitions|replicas) ?= ?(\d+)")
COLLECTIVES = (
    *("all_reduce", "all_gather", "all_to_all", "reduce_scatter", "collective_permute"),
    *("collective_broadcast", "partition_id", "replica_id", "send", "recv"),
)


def communication(text: str) -> list[str]:
    """Collective operations in the text of a lowered (StableHLO) or compiled (HLO) program."""
    text = text.replace("-", "_")
    return [x for x in COLLECTIVES if re.search(rf"\b{x}(_start)?\b\"?[ (<]", text)]


def once() -> Any:
    """Four devices, one compilation: how often each program of the loop was compiled and loaded,
    on how many devices states are, and which programs communicate, lowered for each platform and
    compiled."""
    cfg, lanes = short_setting(), lanes_of("masked", 4)
    env = Still().env()
    loop = DeviceLoop(cfg, lanes, env, devices=devices.choose(4), shards=4)
    loop.advance(12, lambda: False)
    steps = loop._groups[0]._steps
    own = (steps.plain, steps.event)
    places = {devices.device_of(state) for state in loop.states()}
    group = loop._groups[1]
    carry, t, rest = (group.state, group.env_state), jnp.int32(20), (group.program.hyper,)
    static = (group.program.config, True)
    traced = [
        steps.plain.jitted.trace(carry, t, t, *rest, *static),
        steps.event.jitted.trace(carry, t, *rest, *static),
    ]
    texts = [
        x.lower(lowering_platforms=(platform,)).as_text()
        for x in traced
        for platform in ("cpu", "cuda", "tpu")
    ]
    texts += [str(c.as_text()) for x in own for c in x._compiled.values()]
    return {
        "programs": len(texts),
        "communicate": [communication(text) for text in texts if communication(text)],
        "partitions": sorted({int(n) for x in texts for n in PARTITIONS.findall(x)}),
        "compiled": [len(x._compiled) for x in own],
        "loaded": [len(x._loaded) for x in own],
        "jit": [x.jitted._cache_size() for x in own],  # pyright: ignore
        "devices": len(places - {None}),
    }


if __name__ == "__main__":
    jax.config.update("jax_numpy_rank_promotion", "raise")
    print(json.dumps(globals()[sys.argv[1]]()))
