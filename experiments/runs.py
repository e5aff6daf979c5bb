"""From settings to a `Run`: what the launcher and the sweeps have in common."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from experiments import paper
from rlx2_jax import config as configs
from rlx2_jax import envs
from rlx2_jax.config import Config, Lane
from rlx2_jax.runtime import plan
from rlx2_jax.runtime.run import (
    Run,
    available_memory,
    chunk_size,
    disk_bytes,
    label,
    lane_bytes,
    lane_ledger,
)

MASK_INTERVAL, BUFFER_INTERVAL = 10_000, 10_000

# What a preset decides of a Config, each a setting of its own as well (docs/presets.md).
CHOICES = (
    "mask_init",
    "mask_step",
    "moments",
    "regrow",
    "targets",
    "distance",
    "behaviour",
    "trim",
    "b_min_bound",
    "switch",
    "both_ends",
    "exploration",
    "sac_growth",
)


class SettingError(ValueError):
    """Settings that contradict each other, or do not fit."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What all lanes of a run have in common."""

    env: str = "InvertedPendulum-v5"
    env_backend: str = "gymnasium"
    algo: str = "td3"
    steps: int = 3_000_000
    warmup: int = 25_000
    num_envs: int = 1
    utd: float = 1.0  # gradient updates per environment step
    hidden: tuple[int, ...] = (256, 256)
    batch_size: int = 256
    capacity: int | None = None
    preset: str = "default"
    choices: Mapping[str, str] = dataclasses.field(default_factory=dict)
    eval_interval: int = 5000
    episodes: int = 10
    metrics_interval: int = 5000
    checkpoint_interval: int = 50_000
    keep: int = 2
    chunk: int = 0
    execution: str = "auto"
    pipeline: bool = True
    env_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def paper_sparsities(algo: str, env: str) -> dict[str, float]:
    """The paper's actor and critic sparsity for an environment of any version."""
    task = task_name(env)
    for row in paper.load("table2_models"):
        if row["algo"] == algo and row["env"] == task:
            return {k: float(row[k]) for k in ("actor_sparsity", "critic_sparsity")}
    known = sorted({r["env"] for r in paper.load("table2_models") if r["env"] != "average"})
    raise SettingError(
        f"--paper_sparsity: the paper has no sparsities for {env}; it has {', '.join(known)}. "
        f"Give --actor_sparsity and --critic_sparsity instead"
    )


def task_name(env: str) -> str:
    """An environment's name without its version: the paper's tasks are -v3, ours mostly -v5."""
    return re.sub(r"-v\d+$", "", env)


def make_config(settings: Settings, lanes: Sequence[Lane], spec: envs.EnvSpec) -> Config:
    """The one Config that serves all lanes."""
    updates = settings.utd * settings.num_envs
    if updates < 1 or abs(updates - round(updates)) > 1e-9:
        raise SettingError(
            f"--utd={settings.utd} x --num_envs={settings.num_envs} is {updates} updates per time "
            f"step: it must be a whole number of at least 1"
        )
    fields = {**configs.preset(settings.preset, settings.algo), **settings.choices}
    given = [lane.b_max for lane in lanes if lane.b_max is not None]
    default = fields.get("capacity", 1_000_000)
    # A buffer never holds more than the run makes.
    capacity = settings.capacity or min(max(given or [default]), settings.steps)
    algo_n = 2 if settings.algo == "sac" else 3
    n = [
        configs.METHODS.get(x.method, {}).get("n") or algo_n if x.n is None else x.n for x in lanes
    ]
    return Config(
        **{
            **fields,
            "algo": settings.algo,
            "obs_dim": spec.obs_dim,
            "action_dim": spec.action_dim,
            "hidden": tuple(settings.hidden),
            "batch_size": settings.batch_size,
            "oldest_k": 8 * settings.batch_size,
            "num_envs": settings.num_envs,
            "updates_per_step": round(updates),
            "steps": settings.steps,
            "warmup": settings.warmup,
            "capacity": capacity,
            "n_max": max(n),
            "mask_interval": math.gcd(*(x.mask_interval or MASK_INTERVAL for x in lanes)),
            "buffer_interval": math.gcd(*(x.buffer_interval or BUFFER_INTERVAL for x in lanes)),
        }
    )


def env_spec(settings: Settings) -> envs.EnvSpec:
    """Sizes of the environment's spaces."""
    options = settings.env_options
    if settings.env_backend in envs.DEVICE_BACKENDS:
        return envs.make_device(settings.env, settings.env_backend, **options).spec
    host = envs.make_host(settings.env, 1, settings.env_backend, **options)
    host.close()
    return host.spec


def make_run(settings: Settings, lanes: Sequence[Lane]) -> Run:
    """A run of `lanes`; every mistake is found here, before anything is compiled."""
    config = make_config(settings, lanes, env_spec(settings))
    clipped = [
        dataclasses.replace(
            lane,
            b_max=None if lane.b_max is None else min(lane.b_max, config.capacity),
            mask_interval=lane.mask_interval or MASK_INTERVAL,
            buffer_interval=lane.buffer_interval or BUFFER_INTERVAL,
        )
        for lane in lanes
    ]
    return Run(
        env=settings.env,
        backend=settings.env_backend,
        config=config,
        lanes=plan.choose(
            config, [configs.resolve(config, lane) for lane in clipped], settings.execution
        ),
        eval_interval=settings.eval_interval,
        metrics_interval=settings.metrics_interval,
        checkpoint_interval=settings.checkpoint_interval,
        episodes=settings.episodes,
        keep=settings.keep,
        chunk=settings.chunk,
        pipeline=settings.pipeline,
        env_options=dict(settings.env_options),
    )


# Measured on two cores: arithmetic per second of each form, and an environment's step.
_RATE = {"masked": 90e9, "compact": 27e9}
_ENV_SECONDS = 40e-6


def seconds_per_step(run: Run) -> float:
    """A guess of what one environment step of every lane takes on a 2-core CPU."""
    total = 0.0
    for lane in run.lanes:
        method = "dense" if lane.execution == "masked" else lane.method
        ledger = lane_ledger(run.config, dataclasses.replace(lane, method=method))
        update = ledger.train_flops / _RATE[lane.execution]
        total += _ENV_SECONDS + update * run.config.updates_per_step / run.config.num_envs
    return total


def describe(run: Run) -> str:
    """What `--dry_run` prints."""
    config = run.config
    size = chunk_size(run, available_memory())
    each = lane_bytes(run)
    chunks = -(-len(run.lanes) // size)
    lines = [f"{run.env} ({run.backend}), {config.algo}, {config.steps:,} steps per lane", ""]
    lines += ["configuration:"]
    lines += [f"  {k} = {v}" for k, v in dataclasses.asdict(config).items()]
    lines += ["", f"{len(run.lanes)} lanes in {chunks} chunk(s) of up to {size}; programs:"]
    for first in range(0, len(run.lanes), size):
        lines += [f"  {x}" for x in plan.describe(config, run.lanes[first : first + size], first)]
    lines += ["lanes:"]
    for i, lane in enumerate(run.lanes):
        ledger = lane_ledger(config, lane)
        lines.append(
            f"  {label(lane, i):<16} n={lane.n} ζ0={lane.zeta0} D0={lane.d0} "
            f"sparsity {lane.actor_sparsity}/{lane.critic_sparsity}  "
            f"{ledger.total_parameters:,.0f} parameters ({ledger.relative.total_parameters:.3f}x)  "
            f"{ledger.train_flops / 1e6:,.1f} MFLOP per update ({ledger.relative.train_flops:.3f}x)"
        )
    guess = seconds_per_step(run)
    warning = ""
    if config.distance == "l2":
        warning = (
            "\nNote: with --distance=l2 exploration noise alone gives a policy distance of about "
            f"{0.1 * math.sqrt(config.action_dim):.2f}; with D0 = 0.2 the buffer may go to b_min"
        )
    lines += [
        "",
        f"memory: {each / 1e9:.3f} GB per lane, {min(size, len(run.lanes)) * each / 1e9:.2f} GB at "
        f"a time, {available_memory() / 1e9:.1f} GB available",
        f"disk:   up to {disk_bytes(run) / 1e9:.2f} GB of checkpoints",
        f"speed:  about {1 / guess:,.0f} steps/s per lane on two CPU cores, evaluation left out: "
        f"{config.steps * guess / 3600:,.1f} hours" + warning,
    ]
    return "\n".join(lines)
