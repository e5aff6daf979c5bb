"""Settings that all lanes of a run share."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from rlx2_jax.option_table import CONFIG, RUN


class SettingError(ValueError):
    """Settings that are invalid or contradict each other."""


def _default(name: str) -> Any:
    return (CONFIG.get(name) or RUN[name]).default


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings that all lanes of a run share."""

    env: str = "InvertedPendulum-v5"
    env_backend: str = "gymnasium"
    algo: str = "td3"
    steps: int = _default("steps")
    warmup: int = _default("warmup")
    num_envs: int = _default("num_envs")
    utd: float = _default("utd")  # gradient updates per environment step
    hidden: tuple[int, ...] | None = None
    batch_size: int = _default("batch_size")
    capacity: int | None = None  # None: the largest b_max, or all steps if these are fewer
    preset: str = "default"
    choices: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # fields of `Config`
    eval_interval: int = _default("eval_interval")
    episodes: int = _default("episodes")
    metrics_interval: int = _default("metrics_interval")
    checkpoint_interval: int = _default("checkpoint_interval")
    keep: int = _default("keep")
    chunk: int = _default("chunk")
    shards: int = _default("shards")
    execution: str = "auto"
    pipeline: bool = True
    env_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
