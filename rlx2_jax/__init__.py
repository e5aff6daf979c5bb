"""Sparse deep reinforcement learning in functional JAX, sparse from the first step.

    import rlx2_jax as rlx2

    tx = rlx2.sparsify(optax.adam(1e-3), 0.9, interval=100, t_end=10_000)
    train = rlx2.make_train(env, rlx2.make_config(env, "td3", steps=100_000))
    rlx2.train("Hopper-v5", method="rlx2", seeds=8)

Names are imported when they are first used; no environment, checkpoint or plotting package is
imported before it is needed.
"""

import importlib
from typing import TYPE_CHECKING, Any

from rlx2_jax._version import __version__

if TYPE_CHECKING:
    from rlx2_jax.agents import bc as bc
    from rlx2_jax.agents import register_algorithm as register_algorithm
    from rlx2_jax.agents import sac as sac
    from rlx2_jax.agents import td3 as td3
    from rlx2_jax.config import Config as Config
    from rlx2_jax.config import Hyper as Hyper
    from rlx2_jax.config import Lane as Lane
    from rlx2_jax.config import hyper as hyper
    from rlx2_jax.export.exporters import register_exporter as register_exporter
    from rlx2_jax.export.load import load_policy as load_policy
    from rlx2_jax.networks import register_architecture as register_architecture
    from rlx2_jax.replay import buffer as buffer
    from rlx2_jax.replay import returns as returns
    from rlx2_jax.sparse import masks as masks
    from rlx2_jax.sparse import methods as methods
    from rlx2_jax.sparse import rules as rules
    from rlx2_jax.sparse import topology as topology
    from rlx2_jax.sparse.optimizer import sparsify as sparsify
    from rlx2_jax.sparse.rules import register_drop as register_drop
    from rlx2_jax.sparse.rules import register_grow as register_grow
    from rlx2_jax.sparse.state import mask as mask
    from rlx2_jax.sparse.state import masks_of as masks_of
    from rlx2_jax.sparse.state import sparsity as sparsity
    from rlx2_jax.sparse.state import summary as summary
    from rlx2_jax.trackers import register_tracker as register_tracker
    from rlx2_jax.training.functional import TrainResult as TrainResult
    from rlx2_jax.training.functional import make_config as make_config
    from rlx2_jax.training.functional import make_train as make_train
    from rlx2_jax.training.metrics import register_metric as register_metric
    from rlx2_jax.training.train import train as train
    from rlx2_jax.types import Batch as Batch
    from rlx2_jax.types import TimeStep as TimeStep
    from rlx2_jax.types import Transition as Transition

# The module of each public name, or the package of each public module.
_HOMES = {
    **dict.fromkeys(("masks", "methods", "rules", "topology"), "sparse"),
    **dict.fromkeys(("buffer", "returns"), "replay"),
    **dict.fromkeys(("bc", "sac", "td3"), "agents"),
    **dict.fromkeys(("Config", "Hyper", "Lane", "hyper"), "config"),
    **dict.fromkeys(("Batch", "TimeStep", "Transition"), "types"),
    **dict.fromkeys(("TrainResult", "make_config", "make_train"), "training.functional"),
    **dict.fromkeys(("register_drop", "register_grow"), "sparse.rules"),
    **dict.fromkeys(("mask", "masks_of", "sparsity", "summary"), "sparse.state"),
    "sparsify": "sparse.optimizer",
    "load_policy": "export.load",
    "register_algorithm": "agents",
    "register_architecture": "networks",
    "register_exporter": "export.exporters",
    "register_metric": "training.metrics",
    "register_tracker": "trackers",
    "train": "training.train",
}
_MODULES = ("bc", "buffer", "masks", "methods", "returns", "rules", "sac", "td3", "topology")
__all__ = ["__version__", *_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = f"{__name__}.{_HOMES[name]}"
    if name in _MODULES:
        return importlib.import_module(f"{home}.{name}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
