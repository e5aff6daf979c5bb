"""Checks that a run fits this machine, for `--dry_run` and before every start."""

import os
import shutil
from collections import Counter
from pathlib import Path

from rlx2_jax import checks, envs
from rlx2_jax.algorithms import NETWORK_USE
from rlx2_jax.config import Config
from rlx2_jax.option_table import MAX_LANES, SIZES
from rlx2_jax.options import NEVER
from rlx2_jax.training import fingerprint, guards, weights
from rlx2_jax.training import lane as lanes_
from rlx2_jax.training.run import (
    CONFIG,
    Run,
    available_memory,
    chunk_size,
    disk_bytes,
    room_for_lanes,
)
from rlx2_jax.training.settings import SettingError

# Measured: peak bytes per link of a masked network, per MuJoCo environment of Gymnasium, and for
# the records of one 1000-step episode.
_LINK_BYTES, _ENV_BYTES, _EPISODE_BYTES = 90, 1_000_000, 32_000


def check_lanes(count: int) -> None:
    """Raises if there are no lanes, or more than a run can have."""
    if not 1 <= count <= MAX_LANES:
        raise SettingError(
            f"{count:,} lanes: a run has at least one and at most {MAX_LANES:,}; use several runs, "
            f"with --first_seed or shorter lists"
        )


def check_window(config: Config) -> None:
    """Raises if warm-up is too short: the first update needs a window of n steps."""
    if lanes_.warmup_time(config) + 1 < config.n_max:
        raise SettingError(
            f"--warmup={config.warmup} gives fewer steps than a window of n={config.n_max} when "
            f"updates begin: use at least --warmup={(config.n_max - 1) * config.num_envs}"
        )


def check_size(config: Config, episodes: int, memory: int, *, backend: str = "gymnasium") -> None:
    """Raises if a single lane needs more than `memory` bytes."""
    needs = lane_needs(config, episodes, on_host=backend in envs.HOST_BACKENDS)
    total = sum(needs.values())
    if total > memory:
        flag, most = max(needs.items(), key=lambda item: item[1])
        raise SettingError(
            f"{flag}: a lane needs about {_gigabytes(total)} of memory, {_gigabytes(most)} of it "
            f"for this setting, and {_gigabytes(memory)} are available: use a smaller "
            f"{flag.split('=')[0]}"
        )


def lane_needs(config: Config, episodes: int, *, on_host: bool = True) -> dict[str, int]:
    """Estimated bytes of one lane, by the flag that determines them; fast for any size."""
    obs, act, rows = config.obs_dim, config.action_dim, config.batch_size
    layers = (config.actor_layers, config.critic_layers)
    actor, critic = (sum((i + 1) * o for _, (i, o) in net) for net in layers)
    outputs = [o for _, (_, o) in config.critic_layers[:-1]]
    units, widest = sum(outputs), max(outputs)
    # SAC's targets need the policy at every step of a window.
    passes = config.n_max if NETWORK_USE[config.algo].target_every_step else 1
    batch = 2 * (config.n_max + 1) * (obs + act + 2) + (6 + passes) * units
    flag = next(name for name in SIZES if getattr(config, name) is not None)
    size = str(getattr(config, flag)).strip("()").replace(" ", "").rstrip(",")
    each = _ENV_BYTES if on_host else 100 * (obs + act)
    oldest = 8 * config.oldest_k * (obs + 2 * act + 2 * widest)
    follows = config.oldest_k == min(8 * rows, NEVER)  # derived from the batch size
    return {
        # Weights, moments, targets, masks, gradients, scores, and the copies of a checkpoint.
        f"--{flag}={size}": _LINK_BYTES * (actor + config.critics * critic),
        f"--batch_size={rows}": 4 * rows * batch + (oldest if follows else 0),
        f"--oldest_k={config.oldest_k}": 0 if follows else oldest,
        f"--capacity={config.capacity}": config.capacity * (4 * (obs + act + 1) + 2 * act + 2),
        f"--num_envs={config.num_envs}": config.num_envs * each,
        f"--episodes={episodes}": episodes * (each + _EPISODE_BYTES),
    }


def check(run: Run, logdir: Path | None = None) -> list[str]:
    """Raises if this machine cannot execute the run now; returns warnings, one line each.

    Args:
      logdir: the directory of a run that is about to start, or None.
    """
    fingerprint.device()
    check_window(run.config)
    for path in dict.fromkeys(lane.expert for lane in run.lanes if lane.expert):
        weights.check_expert(path, run.config)
    memory = available_memory()
    check_size(run.config, run.episodes, room_for_lanes(run, memory), backend=run.backend)
    chunk_size(run, memory)
    if logdir is not None:
        _check_directory(logdir)
    check_disk(run, logdir or Path())
    return warnings(run)


def warnings(run: Run) -> list[str]:
    """Settings that never take effect; lanes with the same message are listed together."""
    affected: dict[str, list[int]] = {}
    for i, lane in enumerate(run.lanes):
        for message in checks.never_effective(run.config, lane):
            affected.setdefault(message, []).append(i)
    return [f"{_name_lanes(run, lanes)}{message}" for message, lanes in affected.items()]


def check_disk(run: Run, directory: Path) -> None:
    """Raises if the run's checkpoints do not fit on the disk."""
    need, free = disk_bytes(run), shutil.disk_usage(_existing(directory)).free
    if need > free:
        raise SettingError(
            f"checkpoints will take about {_gigabytes(need)} and {directory} has "
            f"{_gigabytes(free)} free: use a smaller --capacity (now {run.config.capacity}) or "
            f"--keep (now {run.keep}), fewer lanes, or another --logdir"
        )


def _check_directory(logdir: Path) -> None:
    guards.check_name(logdir)
    try:
        taken = (logdir / CONFIG).exists()
        parent = _existing(logdir)
    except (OSError, ValueError) as error:
        raise SettingError(f"--logdir={logdir}: {error}") from error
    if taken:
        raise SettingError(
            f"{logdir} already holds a run: continue it with rlx2 resume, or choose another "
            f"--logdir"
        )
    if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
        raise SettingError(
            f"--logdir={logdir}: {parent} is not a writable directory, choose another"
        )


def _existing(path: Path) -> Path:
    """The nearest existing path at or above `path`."""
    path = path.absolute()
    return next((p for p in (path, *path.parents) if p.exists()), Path("/"))


def _name_lanes(run: Run, lanes: list[int]) -> str:
    """The prefix that names the lanes of a message; empty if it applies to all lanes."""
    if len(lanes) == len(run.lanes):
        return ""
    methods = ", ".join(Counter(run.lanes[i].name or run.lanes[i].method for i in lanes))
    if len(lanes) <= 4:
        return f"lane {', '.join(map(str, lanes))} ({methods}): "
    return f"{len(lanes)} lanes ({methods}): "


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:,.2f} GB"
