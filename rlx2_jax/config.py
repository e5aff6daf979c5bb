"""What a run is: a static `Config`, and per lane a `Lane` that becomes a traced `Hyper`.

`Config` decides shapes and code paths: one compiled program per Config. `Hyper` is a pytree of
scalars, so that lanes with different methods, rates, thresholds and seeds share that program.
Defaults are the paper's (table of hyper-parameters, appendix C.2); `PRESETS` hold the choices
where its text and its authors' code differ.
"""

import dataclasses
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from rlx2_jax import accounting, checks, masks
from rlx2_jax.checks import ALGORITHMS as ALGORITHMS
from rlx2_jax.topology import Schedule
from rlx2_jax.types import Array


class Links(NamedTuple):
    """Room for live links in each layer: of the actor, and of each critic."""

    actor: tuple[int, ...]
    critic: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Config:
    """Static choices of one compiled program."""

    algo: str
    obs_dim: int
    action_dim: int
    hidden: tuple[int, ...] = (256, 256)
    batch_size: int = 256
    num_envs: int = 1  # environments per lane
    steps: int = 3_000_000  # environment steps per lane, over its environments together
    warmup: int = 25_000  # of these, steps with random actions and no updates
    updates_per_step: int = 1
    capacity: int = 1_000_000  # transitions; a lane's b_max is at most this
    n_max: int = 3  # the longest n of any lane
    policy_delay: int = 2  # d, the actor's update interval
    target_interval: int = 2
    mask_interval: int = 10_000  # the gcd of the lanes' Δ_m
    buffer_interval: int = 10_000  # the gcd of the lanes' Δ_b, in environment steps
    oldest_k: int = 2048  # K = 8 B, in transitions
    dtype: str = "float32"
    # Where the paper's text and its authors' code differ (the table in the documentation).
    mask_init: str = "random"
    mask_step: str = "skip"
    moments: str = "zero"
    regrow: str = "keep"
    targets: str = "masked"
    distance: str = "mse"
    behaviour: str = "mean"
    trim: str = "ratio"
    trim_full: bool = True
    b_min_bound: str = "hard"
    switch: str = "updates"
    t_end_counts: str = "updates"
    both_ends: str = "terminated"
    exploration: str = "sample"
    sac_growth: str = "critic"
    # How networks are held, and for the compact form what its lanes share.
    execution: str = "masked"
    links: Links | None = None  # None: each lane's own
    random_growth: bool = True  # whether a lane may grow at random; False spares dense scores

    def __post_init__(self) -> None:
        checks.check_config(self)
        object.__setattr__(self, "hidden", tuple(int(h) for h in self.hidden))

    @property
    def actor_sizes(self) -> tuple[int, ...]:
        """Layer sizes of the actor; SAC's has a mean and a log σ for each action dimension."""
        outputs = self.action_dim * (2 if self.algo == "sac" else 1)
        return (self.obs_dim, *self.hidden, outputs)

    @property
    def critic_sizes(self) -> tuple[int, ...]:
        """Layer sizes of each of the two critics."""
        return (self.obs_dim + self.action_dim, *self.hidden, 1)

    @property
    def scheme(self) -> str:
        """How weights begin."""
        return "orthogonal" if self.algo == "sac" else "uniform"

    @property
    def updates(self) -> int:
        """Gradient updates of a whole run."""
        return (self.steps - self.warmup) // self.num_envs * self.updates_per_step


@dataclasses.dataclass(frozen=True)
class Lane:
    """One training run: a seed, a method, and its hyper-parameters. None takes the method's or
    the algorithm's own value."""

    seed: int = 0
    method: str = "rlx2"
    actor_sparsity: float | tuple[float, ...] = 0.9
    critic_sparsity: float | tuple[float, ...] = 0.85
    distribution: str = "erdos_renyi"
    learning_rate: float = 3e-4
    discount: float = 0.99
    tau: float = 0.005
    exploration_noise: float = 0.1  # σ of TD3's behaviour
    target_noise: float = 0.2  # σ̃ of target smoothing
    target_noise_clip: float = 0.5  # c
    target_entropy: float | None = None  # H̄, -dim(A)
    zeta0: float | None = None  # ζ_0
    mask_interval: int | None = None  # Δ_m
    t_end: int | None = None  # T_end, in updates of the critic
    random_growth: bool | None = None
    n: int | None = None  # n-step targets
    t0: int = 300_000  # T_0
    d0: float = 0.2  # D_0
    buffer_interval: int | None = None  # Δ_b
    trim_ratio: float | None = None  # ρ
    b_min: int | None = None
    b_max: int | None = None
    tiny: bool | None = None
    execution: str = "masked"  # the form of its networks; a run gives lanes of one form a program
    name: str = ""  # what tables and plots call it; its method if empty
    # Files of a finished run (see runtime/weights.py), relative to the run directory.
    weights: str | None = None  # dense weights to begin with
    masks: str | None = None  # links to begin with
    expert: str | None = None  # an agent whose Q replaces the learned one: RigL+Q*


# Methods are data. Dense, Tiny, SS, SET and RigL have 1-step targets and a buffer of fixed
# capacity; the variants of the topology ablation keep RLx2's targets and buffer.
_PLAIN = {"n": 1, "trim_ratio": 0.0}
METHODS: dict[str, dict[str, Any]] = {
    "dense": {**_PLAIN, "zeta0": 0.0, "actor_sparsity": 0.0, "critic_sparsity": 0.0},
    "tiny": {**_PLAIN, "zeta0": 0.0, "tiny": True},
    "ss": {**_PLAIN, "zeta0": 0.0},
    "set": {**_PLAIN, "random_growth": True},
    "rigl": {**_PLAIN},
    "rlx2": {},
    "rlx2-tiny": {"zeta0": 0.0, "tiny": True},
    "rlx2-ss": {"zeta0": 0.0},
    "rlx2-set": {"random_growth": True},
}

PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {
        "mask_step": "after",
        "distance": "l2",
        "behaviour": "action",
        "trim": "until",
        "trim_full": False,
        "switch": "steps",
        "t_end_counts": "steps",
    },
    "reference": {
        "mask_init": "magnitude",
        "moments": "keep",
        "targets": "polyak",
        "b_min_bound": "soft",
        "both_ends": "truncated",
        "exploration": "mean",
        "sac_growth": "leaked",
    },
}
# SAC's n and buffer bounds under `reference`; everything else is shared.
_SAC_REFERENCE = {"n": 3, "b_max": 3_000_000, "b_min": 200_000}


def preset(name: str, algo: str = "td3") -> dict[str, Any]:
    """Fields of `Config` that a preset sets."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}: use one of {tuple(PRESETS)}")
    choices = dict(PRESETS[name])
    if algo == "sac":
        choices |= {"policy_delay": 1, "target_interval": 1, "n_max": 2}
        if name == "reference":
            choices |= {"n_max": 3, "capacity": 3_000_000}
    return choices


def lane_preset(name: str, algo: str = "td3", method: str = "rlx2") -> dict[str, Any]:
    """Fields of `Lane` that a preset sets; what the method decides stays the method's."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}: use one of {tuple(PRESETS)}")
    fields = _SAC_REFERENCE if (name, algo) == ("reference", "sac") else {}
    return {k: v for k, v in fields.items() if k not in METHODS.get(method, {})}


def make(algo: str, obs_dim: int, action_dim: int, *, name: str = "default", **fields) -> Config:
    """A `Config` of a preset, with the algorithm's own intervals, and `fields` over it."""
    if algo not in ALGORITHMS:
        raise ValueError(f"unknown algo {algo!r}: use one of {ALGORITHMS}")
    return Config(algo, obs_dim, action_dim, **{**preset(name, algo), **fields})


def resolve(config: Config, lane: Lane) -> Lane:
    """`lane` with every None filled in: by its method, then by the algorithm."""
    if lane.method not in METHODS:
        raise ValueError(f"unknown method {lane.method!r}: use one of {tuple(METHODS)}")
    method = METHODS[lane.method]
    forced = {k: v for k, v in method.items() if k.endswith("sparsity")}
    last = config.steps if config.t_end_counts == "steps" else config.updates
    defaults = {
        "target_entropy": -float(config.action_dim),
        "zeta0": 0.5,
        "mask_interval": config.mask_interval,
        "t_end": last,
        "random_growth": False,
        "n": 2 if config.algo == "sac" else 3,
        "buffer_interval": config.buffer_interval,
        "trim_ratio": 0.1,
        "b_min": max(min(100_000, config.capacity // 10), config.n_max * config.num_envs),
        "b_max": config.capacity,
        "tiny": False,
    }
    given = {k: v for k, v in dataclasses.asdict(lane).items() if v is not None}
    filled = Lane(**{**defaults, **method, **given, **forced})
    checks.check_lane(config, filled)
    return filled


class Hyper(NamedTuple):
    """What a lane's update needs of its hyper-parameters: scalars, all traced."""

    learning_rate: Array
    discount: Array  # γ
    tau: Array  # τ
    exploration_noise: Array
    target_noise: Array
    target_noise_clip: Array
    target_entropy: Array
    critic: Schedule
    actor: Schedule
    n: Array
    t0: Array
    d0: Array
    buffer_interval: Array
    trim_ratio: Array
    b_min: Array
    b_max: Array


def hyper(config: Config, lane: Lane) -> Hyper:
    """The traced hyper-parameters of a lane."""
    lane = resolve(config, lane)
    f32 = lambda x: jnp.asarray(x, jnp.float32)  # noqa: E731
    i32 = lambda x: jnp.asarray(x, jnp.int32)  # noqa: E731
    critic = Schedule(
        f32(lane.zeta0), i32(lane.mask_interval), i32(lane.t_end), jnp.asarray(lane.random_growth)
    )
    # The mask interval counts a network's own updates: TD3's actor has every d-th.
    actor = critic._replace(t_end=i32(max(1, int(lane.t_end or 0) // config.policy_delay)))
    # By name, not by the value's type: lanes with discount=1 and discount=0.99 share a program.
    whole = ("n", "t0", "buffer_interval", "b_min", "b_max")
    fields = {
        name: (i32 if name in whole else f32)(getattr(lane, name))
        for name in Hyper._fields
        if name not in ("critic", "actor")
    }
    return Hyper(critic=critic, actor=actor, **fields)


def widths(config: Config, lane: Lane) -> tuple[int | None, int | None]:
    """Hidden units of the actor and of each critic under Tiny, None otherwise."""
    if not resolve(config, lane).tiny:
        return None, None

    def width(sizes: tuple[int, ...], sparsity: float | tuple[float, ...]) -> int:
        links = [i * o for i, o in pairwise(sizes)]
        overall = float(np.average(np.broadcast_to(sparsity, len(links)), weights=links))
        return accounting.tiny_width(sizes[0], sizes[-1], sizes[1:-1], overall)

    return (
        width(config.actor_sizes, lane.actor_sparsity),
        width(config.critic_sizes, lane.critic_sparsity),
    )


def live_links(config: Config, lane: Lane) -> Links:
    """How many links each layer has room for: the program's, or just the lane's own.

    Host side, from the same rule as `masks.init`, so that the compact form can be traced.
    """
    return config.links or own_links(config, lane)


def own_links(config: Config, lane: Lane) -> Links:
    """The live links of each layer of a lane's networks."""
    lane = resolve(config, lane)

    def count(
        sizes: tuple[int, ...], sparsity: float | tuple[float, ...], width: int | None
    ) -> tuple[int, ...]:
        if width:
            small = (sizes[0], *(min(h, width) for h in sizes[1:-1]), sizes[-1])
            return tuple(i * o for i, o in pairwise(small))
        shapes = list(pairwise(sizes))
        # Layers by name, as a tree has them: "Dense_10" before "Dense_2".
        order = sorted(range(len(shapes)), key=lambda i: f"Dense_{i}")
        found = masks.layer_sparsities([shapes[i] for i in order], sparsity, lane.distribution)
        return tuple(masks.links(shapes[i], s) for i, s in sorted(zip(order, found)))

    actor, critic = widths(config, lane)
    return Links(
        count(config.actor_sizes, lane.actor_sparsity, actor),
        count(config.critic_sizes, lane.critic_sparsity, critic),
    )


def intervals(values: Sequence[int]) -> int:
    """The one branch interval that serves lanes of several: their gcd."""
    return math.gcd(*values)
