"""What a run is: its environment, lanes and intervals, and what it will need."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rlx2_jax import accounting, envs
from rlx2_jax import config as configs
from rlx2_jax import lane as lanes_
from rlx2_jax.config import Config, Lane
from rlx2_jax.runtime.loop import DeviceLoop, HostLoop

FORMAT = 4  # of the run directory


class RunError(Exception):
    """A run cannot start or go on; the message says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What to run. Everything that `config.json` holds."""

    env: str
    config: Config
    lanes: tuple[Lane, ...]
    backend: str = "gymnasium"
    eval_interval: int = 5000  # environment steps
    metrics_interval: int = 5000
    checkpoint_interval: int = 50_000
    episodes: int = 10
    keep: int = 2
    chunk: int = 0  # lanes per program; 0: as many as fit memory
    pipeline: bool = True
    env_options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **dataclasses.asdict(self)}

    @staticmethod
    def from_json(value: dict[str, Any]) -> "Run":
        if value.get("format") != FORMAT:
            raise RunError(
                f"the run directory has format {value.get('format')}, this version reads {FORMAT}: "
                f"resume it with the version that wrote it"
            )
        fields = {k: v for k, v in value.items() if k != "format"}

        def tuples(d: dict[str, Any]) -> dict[str, Any]:
            return {k: tuple(v) if isinstance(v, list) else v for k, v in d.items()}

        fields["config"] = Config(**tuples(fields["config"]))
        fields["lanes"] = tuple(Lane(**tuples(lane)) for lane in fields["lanes"])
        return Run(**fields)


def label(lane: Lane, index: int) -> str:
    """A lane's short name in tables and plots."""
    return f"{index}:{lane.name or lane.method}/s{lane.seed}"


def make_loop(run: Run, lanes: Sequence[Lane], directory: Path) -> HostLoop | DeviceLoop:
    """The loop of the run's backend; files that lanes name are relative to `directory`."""
    lanes = [with_paths(lane, directory) for lane in lanes]
    if run.backend in envs.DEVICE_BACKENDS:
        env = envs.make_device(run.env, run.backend, **run.env_options)
        return DeviceLoop(run.config, list(lanes), env, episodes=run.episodes)

    def make(count: int) -> envs.HostEnvs:
        return envs.make_host(run.env, count, run.backend, **run.env_options)

    return HostLoop(run.config, list(lanes), make, episodes=run.episodes, pipeline=run.pipeline)


def with_paths(lane: Lane, directory: Path) -> Lane:
    names = ("weights", "masks", "expert")
    files = {name: getattr(lane, name) for name in names if getattr(lane, name)}
    return dataclasses.replace(lane, **{k: str(directory / v) for k, v in files.items()})


def lane_bytes(run: Run, horizon: int | None = 1000) -> int:
    """Memory of one lane: its replay buffer, networks and moments."""
    config = run.config
    obs = jax.ShapeDtypeStruct((config.num_envs, config.obs_dim), np.float32)
    make = lambda obs: lanes_.init(config, run.lanes[0], obs, horizon=horizon)  # noqa: E731
    return sum(
        math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(jax.eval_shape(make, obs))
    )


def chunk_size(run: Run, memory: int) -> int:
    """How many lanes one program takes, so that a chunk fits two thirds of `memory` bytes."""
    each = lane_bytes(run)
    fits = int(memory * 2 / 3 // each)
    if fits < 1 or (run.chunk and run.chunk > fits):
        wanted = run.chunk or 1
        raise RunError(
            f"{wanted} lane(s) of {each / 1e9:.2f} GB do not fit {memory / 1e9:.1f} GB of memory: "
            f"use a smaller --capacity (now {run.config.capacity}), or --chunk={max(fits, 1)}"
        )
    return min(run.chunk or fits, len(run.lanes))


def available_memory() -> int:
    """Bytes of memory that a run may take."""
    with contextlib.suppress(OSError, StopIteration), open("/proc/meminfo") as file:
        line = next(x for x in file if x.startswith("MemAvailable"))
        return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def lane_ledger(config: Config, lane: Lane) -> accounting.Ledger:
    """Parameters and FLOPs of one lane: of each layer's own sparsity, and of what the lane does.

    A mask that never changes, or grows links at random, costs nothing; nor does a buffer that is
    never trimmed. Iterations are updates.
    """
    lane = configs.resolve(config, lane)
    last = min(config.updates + 1, lane.t_end or 0)

    def mask_interval(delay: int) -> float:
        """Δ_m of a network that has every `delay`-th update, or never."""
        interval = lane.mask_interval or config.mask_interval
        return interval if lane.zeta0 and interval < last // delay else math.inf

    interval = lane.buffer_interval or config.buffer_interval
    checks = max(interval // config.num_envs, 1) * config.updates_per_step
    return accounting.ledger(
        config.algo,
        config.obs_dim,
        config.action_dim,
        config.hidden,
        lane.actor_sparsity,
        lane.critic_sparsity,
        method=lane.method,
        batch_size=config.batch_size,
        n_step=lane.n,
        mask_interval=(mask_interval(config.policy_delay), mask_interval(1)),
        buffer_interval=checks,
        oldest_k=config.oldest_k,
        policy_delay=config.policy_delay,
        distribution=lane.distribution,
        dense_gradient=not lane.random_growth,
        dynamic_buffer=bool(lane.trim_ratio) and interval <= config.steps,
    )


def disk_bytes(run: Run) -> int:
    """Disk that the checkpoints of a run take at most: the replay rows once, the rest a few
    times."""
    each = lane_bytes(run)
    return len(run.lanes) * each + (run.keep + 1) * len(run.lanes) * 4_000_000
