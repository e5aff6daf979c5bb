"""Builds a `Run` from settings, for the command line, sweeps and `train`."""

import dataclasses
import functools
import math
import os
from collections.abc import Sequence

from rlx2_jax import config as configs
from rlx2_jax import envs
from rlx2_jax.algorithms import NETWORK_USE
from rlx2_jax.config import Config, Lane
from rlx2_jax.option_table import CONFIG, LANE, RUN
from rlx2_jax.options import NEVER
from rlx2_jax.training import fingerprint, plan, preflight
from rlx2_jax.training.lane_ledger import lane_ledger
from rlx2_jax.training.run import (
    Run,
    available_memory,
    chunk_size,
    disk_bytes,
    label,
    lane_bytes,
    memory_bytes,
)
from rlx2_jax.training.settings import SettingError as SettingError
from rlx2_jax.training.settings import Settings as Settings


def make_config(settings: Settings, lanes: Sequence[Lane], spec: envs.EnvSpec) -> Config:
    """The Config that all lanes share."""
    fields = {**configs.preset(settings.preset, settings.algo), **settings.choices}
    default = _default_b_max(settings)
    b_max = [default if lane.b_max is None else lane.b_max for lane in lanes]
    # A buffer never holds more transitions than the run collects.
    collected = -(-settings.steps // settings.num_envs) * settings.num_envs
    capacity = settings.capacity
    if capacity is None:
        capacity = min(max(b_max), collected)
    if fields.get("critic_actions") == "environment":
        fields |= {"action_low": spec.action_low, "action_high": spec.action_high}
    n = [configs.setting(lane, "n") for lane in lanes]
    return Config(
        **{
            "oldest_k": min(8 * settings.batch_size, NEVER),
            **fields,
            "algo": settings.algo,
            "obs_dim": spec.obs_dim,
            "action_dim": spec.action_dim,
            "hidden": settings.hidden and tuple(settings.hidden),
            "batch_size": settings.batch_size,
            "num_envs": settings.num_envs,
            "updates_per_step": _updates_per_step(settings),
            "steps": settings.steps,
            "warmup": 0 if NETWORK_USE[settings.algo].offline else settings.warmup,
            "capacity": capacity,
            "n_max": max(LANE["n"].default_of(settings.algo) if x is None else x for x in n),
            **{
                name: configs.shared_interval(_interval(name, lane) for lane in lanes)
                for name in ("mask_interval", "buffer_interval")
            },
            "grow": _rules("grow", lanes),
            "drop": _rules("drop", lanes),
        }
    )


def _default_b_max(settings: Settings) -> int:
    """B_max of lanes that do not set it: the capacity, if given."""
    preset = configs.preset(settings.preset, settings.algo)
    default = preset.get("capacity", LANE["b_max"].default)
    return default if settings.capacity is None else settings.capacity


def _updates_per_step(settings: Settings) -> int:
    RUN["utd"].check(settings.utd)
    updates = settings.utd * settings.num_envs
    most = CONFIG["updates_per_step"].most or NEVER
    if not 1 <= updates <= most or abs(updates - round(updates)) > 1e-9:
        raise SettingError(
            f"--utd={settings.utd} x --num_envs={settings.num_envs} is {updates:g} updates per "
            f"time step: it must be an integer from 1 to {most}"
        )
    return round(updates)


def _rules(name: str, lanes: Sequence[Lane]) -> tuple[str, ...]:
    """The growth or drop rules that the lanes use."""
    return tuple(sorted({configs.setting(lane, name) for lane in lanes}))


def _interval(name: str, lane: Lane) -> int:
    value = configs.setting(lane, name)
    LANE[name].check(value)
    return value


def env_spec(settings: Settings) -> envs.EnvSpec:
    """The sizes and limits of the environment."""
    options = settings.env_options
    try:
        if settings.env_backend in envs.DEVICE_BACKENDS:
            with envs.failures_of(settings.env, ValueError, ImportError):
                return envs.make_device(settings.env, settings.env_backend, **options).spec
        host = envs.make_host(settings.env, 1, settings.env_backend, **options)
    except (ValueError, ImportError) as error:
        text = f"--env={settings.env} with --env_backend={settings.env_backend}: {error}"
        raise SettingError(text) from error
    except envs.EnvironmentFailure as failure:
        raise SettingError(f"--env={settings.env}: {envs.describe(failure.error)}") from failure
    host.close()
    return host.spec


def make_run(settings: Settings, lanes: Sequence[Lane]) -> Run:
    """A run of `lanes`. Raises on invalid settings before anything is compiled."""
    fingerprint.device()
    preflight.check_lanes(len(lanes))
    for name, option in {**CONFIG, **RUN}.items():
        if name not in ("hidden", "execution") and getattr(settings, name, None) is not None:
            option.check(getattr(settings, name))
    if NETWORK_USE[settings.algo].offline:
        _check_offline(settings, lanes)
    config = make_config(settings, lanes, env_spec(settings))
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    preflight.check_size(config, settings.episodes, installed, backend=settings.env_backend)
    filled = [
        dataclasses.replace(
            lane,
            b_max=_default_b_max(settings) if lane.b_max is None else lane.b_max,
            mask_interval=_interval("mask_interval", lane),
            buffer_interval=_interval("buffer_interval", lane),
        )
        for lane in lanes
    ]
    return Run(
        env=settings.env,
        backend=settings.env_backend,
        config=config,
        lanes=plan.choose(
            config, [configs.resolve(config, lane) for lane in filled], settings.execution
        ),
        eval_interval=settings.eval_interval,
        metrics_interval=settings.metrics_interval,
        checkpoint_interval=settings.checkpoint_interval,
        episodes=settings.episodes,
        keep=settings.keep,
        chunk=settings.chunk,
        shards=settings.shards,
        pipeline=settings.pipeline,
        env_options=dict(settings.env_options),
    )


def _check_offline(settings: Settings, lanes: Sequence[Lane]) -> None:
    if settings.env_backend in envs.DEVICE_BACKENDS:
        raise SettingError(
            f"--env_backend={settings.env_backend}: --algo={settings.algo} runs its expert on the "
            f"host, use one of {envs.HOST_BACKENDS}"
        )
    if settings.num_envs != 1:
        raise SettingError(
            f"--num_envs={settings.num_envs}: --algo={settings.algo} takes no environment steps, "
            f"leave it at 1"
        )
    if any(lane.expert is None for lane in lanes):
        raise SettingError(f"--algo={settings.algo} imitates an expert: give one with --expert")


# Measured on two cores: FLOP/s by execution mode, and seconds per environment step.
_RATE = {"masked": 90e9, "compact": 27e9}
_ENV_SECONDS = 40e-6


_ledger = functools.lru_cache(lane_ledger)  # equal for all seeds


def seconds_per_step(run: Run) -> float:
    """Estimated time of one environment step of all lanes on a 2-core CPU."""
    total = 0.0
    for lane in run.lanes:
        priced = dataclasses.replace(lane, seed=0)
        if lane.execution == "masked":  # as slow as a dense network
            priced = dataclasses.replace(configs.dense_lane(priced), method="dense")
        ledger = _ledger(run.config, priced)
        update = ledger.train_flops / _RATE[lane.execution]
        total += _ENV_SECONDS + update * run.config.updates_per_step / run.config.num_envs
    return total


def describe(run: Run) -> str:
    """The output of `--dry_run`."""
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
        ledger = _ledger(config, dataclasses.replace(lane, seed=0))
        lines.append(
            f"  {label(lane, i):<16} n={lane.n} ζ0={lane.zeta0} D0={lane.d0} "
            f"sparsity {lane.actor_sparsity}/{lane.critic_sparsity}  "
            f"{ledger.total_parameters:,.0f} parameters ({ledger.relative.total_parameters:.3f}x)  "
            f"{ledger.train_flops / 1e6:,.1f} MFLOP per update ({ledger.relative.train_flops:.3f}x)"
        )
    guess = seconds_per_step(run)
    notes = [f"warning: {text}" for text in preflight.warnings(run)]
    if config.distance == "l2":
        notes.append(
            "note: with --distance=l2 exploration noise alone gives a policy distance of about "
            f"{0.1 * math.sqrt(config.action_dim):.2f}; with D0 = 0.2 the buffer may shrink to "
            "b_min"
        )
    lines += [
        "",
        f"memory: {memory_bytes(run, run.lanes[:size]) / 1e9:.2f} GB at most (start, checkpoints, "
        f"resume), {each / 1e9:.3f} GB per lane, {available_memory() / 1e9:.1f} GB available",
        f"disk:   up to {disk_bytes(run) / 1e9:.2f} GB of checkpoints",
        f"speed:  about {1 / guess:,.0f} steps/s per lane on two CPU cores, without evaluation: "
        f"{config.steps * guess / 3600:,.1f} hours",
        *notes,
    ]
    return "\n".join(lines)
