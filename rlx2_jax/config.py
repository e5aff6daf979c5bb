"""The configuration of a run: a static `Config`, and per lane a `Lane` and its traced `Hyper`.

`Config` determines shapes and code paths; there is one compiled program per Config. `Hyper` is a
pytree of scalars, so lanes with different methods, rates, thresholds and seeds share a program.
Defaults are the paper's (appendix C.2); `PRESETS` hold the choices where its text and its authors'
code differ.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from rlx2_jax import checks, networks
from rlx2_jax.algorithms import NETWORK_USE
from rlx2_jax.networks import Architecture, Layers
from rlx2_jax.option_table import ALGORITHMS as ALGORITHMS
from rlx2_jax.option_table import CHOICES, CONFIG, LANE
from rlx2_jax.option_table import METHODS as METHODS
from rlx2_jax.options import NEVER, documented
from rlx2_jax.sparse import masks
from rlx2_jax.sparse.lane_topology import RIGL, Topology
from rlx2_jax.sparse.topology import Schedule
from rlx2_jax.types import Array, Bounds


class Links(NamedTuple):
    """Room for live links in each layer.

    Attributes:
      actor: links of each of the actor's layers.
      critic: links of each layer of every critic.
    """

    actor: tuple[int, ...]
    critic: tuple[int, ...]


def _default(name: str) -> Any:
    """A default of the option table; None if it depends on the algorithm."""
    value = CONFIG[name].default
    return None if isinstance(value, dict) else value


def _lane_default(name: str) -> Any:
    return LANE[name].default


@documented(
    CONFIG,
    n_max="the longest n of any lane",
    action_low="the task's lower bounds, if critics see its units; None: all -1",
    action_high="the task's upper bounds, if critics see its units; None: all 1",
    links="room for live links in each layer; None: the exact number of each lane",
    grow="growth rules in use",
    drop="drop rules in use",
    topology="the method of mask updates, shared by all lanes of the program",
)
@dataclasses.dataclass(frozen=True)
class Config:
    """Static choices of one compiled program."""

    algo: str
    obs_dim: int
    action_dim: int
    # Network sizes; None if the architecture does not use them.
    hidden: tuple[int, ...] | None = _default("hidden")
    architecture: str = _default("architecture")
    width: int | None = _default("width")
    blocks: int | None = _default("blocks")
    batch_size: int = _default("batch_size")
    num_envs: int = _default("num_envs")  # environments per lane
    steps: int = _default("steps")  # environment steps per lane, summed over its environments
    warmup: int = _default("warmup")  # of these, steps with random actions and no updates
    updates_per_step: int = _default("updates_per_step")
    # In transitions. A lane's b_max is at most this, unless the run has fewer steps.
    capacity: int = _default("capacity")
    n_max: int = _default("n_max")  # the longest n of any lane
    critics: int = _default("critics")  # N, the ensemble of critics
    critic_subset: int = _default("critic_subset")  # M of them in each target (REDQ); 0: all
    policy_delay: int = _default("policy_delay")  # d, the actor's update interval
    target_interval: int = _default("target_interval")
    mask_interval: int = _default("mask_interval")  # the gcd of the lanes' Δ_m
    buffer_interval: int = _default("buffer_interval")  # the gcd of the lanes' Δ_b, in steps
    oldest_k: int = _default("oldest_k")  # K = 8 B, in transitions
    dtype: str = _default("dtype")
    precision: str = _default("precision")  # of matrix products; the rest uses `dtype`
    # Where the paper's text and its authors' code differ (docs/presets.md).
    mask_init: str = _default("mask_init")
    mask_step: str = _default("mask_step")
    moments: str = _default("moments")
    regrow: str = _default("regrow")
    targets: str = _default("targets")
    distance: str = _default("distance")
    behaviour: str = _default("behaviour")
    trim: str = _default("trim")
    trim_full: bool = _default("trim_full")
    b_min_bound: str = _default("b_min_bound")
    switch: str = _default("switch")
    t_end_counts: str = _default("t_end_counts")
    both_ends: str = _default("both_ends")
    exploration: str = _default("exploration")
    sac_growth: str = _default("sac_growth")
    critic_actions: str = _default("critic_actions")
    # The environment's bounds, if critics see its units; None: -1 and 1.
    action_low: tuple[float, ...] | None = None
    action_high: tuple[float, ...] | None = None
    # Execution mode, and the shared room for links of compact lanes.
    execution: str = _default("execution")
    links: Links | None = None  # None: the exact number of each lane
    # The rules that its lanes use; with a single one, compact networks avoid dense scores.
    grow: tuple[str, ...] = ("gradient", "random")
    drop: tuple[str, ...] = ("magnitude",)
    topology: Topology = RIGL  # the method of mask updates, see `with_topology`

    def __post_init__(self) -> None:
        object.__setattr__(self, "topology", Topology(*self.topology))
        CONFIG["architecture"].check(self.architecture)
        sizes = networks.ARCHITECTURES[self.architecture].defaults
        for name, option in CONFIG.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, sizes.get(name, option.default_of(self.algo)))
        checks.check_config(self)
        if self.hidden is not None:
            object.__setattr__(self, "hidden", tuple(int(h) for h in self.hidden))

    @property
    def actor_inputs(self) -> int:
        return self.obs_dim

    @property
    def critic_inputs(self) -> int:
        return self.obs_dim + self.action_dim

    @property
    def actor_module(self) -> Architecture:
        """The actor; SAC's has a mean and a log σ for each action dimension."""
        heads = NETWORK_USE[self.algo].actor_heads
        return self._module(self.actor_inputs, self.action_dim * heads)

    @property
    def critic_module(self) -> Architecture:
        """Each critic."""
        return self._module(self.critic_inputs, 1, NETWORK_USE[self.algo].critic)

    def _module(self, inputs: int, outputs: int, name: str | None = None) -> Architecture:
        sizes = networks.Sizes(
            inputs=inputs,
            outputs=outputs,
            observations=self.obs_dim,
            hidden=self.hidden,
            width=self.width,
            blocks=self.blocks,
            scheme=self.scheme,
            dtype=self.dtype,
            precision=self.precision,
        )
        module = networks.build(name or self.architecture, sizes)
        if getattr(module, "precision", "float32") != self.precision:
            raise ValueError(
                f"precision={self.precision!r}: {type(module).__name__} supports only float32"
            )
        return module

    @property
    def actor_layers(self) -> Layers:
        """Names and shapes (in, out) of the actor's sparse layers."""
        return self.actor_module.layers(self.actor_inputs)

    @property
    def critic_layers(self) -> Layers:
        """Names and shapes (in, out) of each critic's sparse layers."""
        return self.critic_module.layers(self.critic_inputs)

    @property
    def critic_bounds(self) -> Bounds | None:
        """The bounds of actions in critic inputs; None if they are -1 and 1."""
        if self.critic_actions == "unit" or self.action_low is None or self.action_high is None:
            return None
        same = set(self.action_low) == {-1.0} and set(self.action_high) == {1.0}
        return None if same else (self.action_low, self.action_high)

    @property
    def scheme(self) -> str:
        """The weight initialization."""
        return NETWORK_USE[self.algo].weight_init

    @property
    def updates(self) -> int:
        """Gradient updates of a whole run."""
        return (self.steps - self.warmup) // self.num_envs * self.updates_per_step


@documented(
    LANE,
    tiny="whether networks are small and dense, with as many parameters as the sparse ones",
    name="its name in tables and plots; default: its method",
    weights="file of initial dense weights, relative to the run directory",
    masks="file of initial masks",
    expert="file of an agent to learn from: its Q (RigL+Q*) or its actions (bc)",
)
@dataclasses.dataclass(frozen=True)
class Lane:
    """One training run: a seed, a method, and its hyper-parameters. None selects the default of the
    method or the algorithm."""

    seed: int = _lane_default("seed")
    method: str = _lane_default("method")
    actor_sparsity: float | tuple[float, ...] = _lane_default("actor_sparsity")
    critic_sparsity: float | tuple[float, ...] = _lane_default("critic_sparsity")
    distribution: str = _lane_default("distribution")
    learning_rate: float = _lane_default("learning_rate")
    discount: float = _lane_default("discount")
    tau: float = _lane_default("tau")
    exploration_noise: float = _lane_default("exploration_noise")  # σ of TD3's behaviour
    target_noise: float = _lane_default("target_noise")  # σ̃ of target smoothing
    target_noise_clip: float = _lane_default("target_noise_clip")  # c
    target_entropy: float | None = None  # H̄, -dim(A)
    zeta0: float | None = None  # ζ_0
    mask_interval: int | None = None  # Δ_m
    t_end: int | None = None  # T_end, in updates of the critic
    grow: str | None = None  # growth rule
    drop: str = _lane_default("drop")  # drop rule
    topology: str | None = None  # a name in `sparse.methods.METHODS`
    structure: str | None = None  # mask pattern, see `sparse.structure`
    scope: str | None = None  # whether pruning ranks links per layer or globally
    prune_start: int | None = None  # updates of the critic before pruning begins
    n: int | None = None  # n-step targets
    t0: int = _lane_default("t0")  # T_0
    d0: float = _lane_default("d0")  # D_0
    buffer_interval: int | None = None  # Δ_b
    trim_ratio: float | None = None  # ρ
    b_min: int | None = None
    b_max: int | None = None
    tiny: bool | None = None
    execution: str = _lane_default("execution")  # lanes of a program share it
    name: str = ""  # in tables and plots; default: its method
    # Files of a finished run (`training/weights.py`), relative to the run directory.
    weights: str | None = None  # initial dense weights
    masks: str | None = None  # initial masks
    expert: str | None = None  # an agent to learn from: its Q (RigL+Q*) or its actions (bc)


PRESETS: dict[str, dict[str, Any]] = {
    name: {
        option.name: option.preset_of(name, "td3")
        for option in CHOICES.values()
        if option.preset_of(name, "td3") is not None
    }
    for name in ("default", "paper", "reference")
}


def preset(name: str, algo: str = "td3") -> dict[str, Any]:
    """Fields of `Config` that a preset sets."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}: use one of {tuple(PRESETS)}")
    lane = lane_preset(name, algo)
    room = {"n_max": lane.get("n"), "capacity": lane.get("b_max")}
    return PRESETS[name] | {k: v for k, v in room.items() if v is not None}


def lane_preset(name: str, algo: str = "td3", method: str = "rlx2") -> dict[str, Any]:
    """Fields of `Lane` that a preset sets, except those that the method sets."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}: use one of {tuple(PRESETS)}")
    fields = {option.name: option.preset_of(name, algo) for option in LANE.values()}
    of_method = METHODS.get(method, {})
    return {k: v for k, v in fields.items() if v is not None and k not in of_method}


def make(algo: str, obs_dim: int, action_dim: int, *, name: str = "default", **fields) -> Config:
    """A `Config` from a preset, overridden by `fields`."""
    if algo not in ALGORITHMS:
        raise ValueError(f"unknown algo {algo!r}: use one of {tuple(ALGORITHMS)}")
    return Config(algo, obs_dim, action_dim, **{**preset(name, algo), **fields})


def resolve(config: Config, lane: Lane) -> Lane:
    """`lane` with every None replaced by the default of its method or the algorithm."""
    if lane.method not in METHODS:
        raise ValueError(f"unknown method {lane.method!r}: use one of {tuple(METHODS)}")
    method = METHODS[lane.method]
    topology = topology_of(lane, started=False)
    forced = {k: v for k, v in method.items() if k.endswith("sparsity")}
    if pattern := topology.pattern.nm:
        absent = 1.0 - pattern[0] / pattern[1]
        forced = {"distribution": "uniform", "actor_sparsity": absent, "critic_sparsity": absent}
        forced |= {k: v for k, v in method.items() if k.endswith("sparsity")}
    last = config.steps if config.t_end_counts == "steps" else config.updates
    defaults = {
        "target_entropy": -float(config.action_dim),
        "zeta0": LANE["zeta0"].default,
        "mask_interval": config.mask_interval,
        "t_end": max(1, last * 4 // 5) if topology.gradual else last,
        "grow": LANE["grow"].default,
        "topology": topology.method,
        "structure": topology.structure,
        "scope": topology.scope,
        "prune_start": last // 5 if topology.gradual else 0,
        "n": LANE["n"].default_of(config.algo),
        "buffer_interval": config.buffer_interval,
        "trim_ratio": LANE["trim_ratio"].default,
        "b_max": config.capacity,
        "tiny": False,
    }
    given = {f.name: getattr(lane, f.name) for f in dataclasses.fields(lane)}
    given = {k: v for k, v in given.items() if v is not None}
    fields = {**defaults, **method, **given, **forced}
    filled = Lane(**{"b_min": _default_b_min(config, fields), **fields})
    checks.check_lane(config, filled)
    return filled


def topology_of(lane: Lane, *, started: bool = True) -> Topology:
    """The static part of a lane's mask updates; RigL's for static masks.

    Args:
      started: False for an unresolved lane, whose start of pruning may be unknown.
    """
    method = METHODS.get(lane.method, {})

    def value(name: str) -> Any:
        given = getattr(lane, name)
        return method.get(name, LANE[name].default) if given is None else given

    for name in ("topology", "structure", "scope"):
        LANE[name].check(value(name))
    topology = Topology(value("topology"), value("structure"), value("scope"))
    if not started:
        return topology
    if value("zeta0") == 0 and "zeta0" in topology.options:
        return RIGL
    if not topology.prunes:
        return topology
    return topology._replace(start=int(value("prune_start") or 0))


def with_topology(config: Config, *lanes: Lane) -> Config:
    """`config` for a program of `lanes`, which must have the same topology.

    >>> import rlx2_jax as rlx2
    >>> lane = rlx2.Lane(method="snip")
    >>> config = rlx2.config.with_topology(rlx2.config.make("td3", 11, 3), lane)
    >>> config.topology.method
    'snip'
    """
    given = [lane.mask_interval or METHODS[lane.method].get("mask_interval") for lane in lanes]
    intervals_ = {x or config.mask_interval for x in given}
    interval = math.gcd(*(intervals_ - {NEVER} or {NEVER}))
    config = dataclasses.replace(config, mask_interval=interval)
    topologies = {topology_of(resolve(config, lane)) for lane in lanes}
    if len(topologies) != 1:
        raise ValueError(f"lanes of one program need the same topology, not {sorted(topologies)}")
    return dataclasses.replace(config, topology=topologies.pop())


def _default_b_min(config: Config, fields: dict[str, Any]) -> int:
    """A tenth of B_max as in the paper, but at least one n-step window."""
    b_max, n = fields["b_max"], fields["n"]
    if not all(isinstance(x, int | np.integer) for x in (b_max, n)):
        return 0  # `check_lane` rejects these
    return max(min(LANE["b_min"].default, int(b_max) // 10), int(n) * config.num_envs)


class Hyper(NamedTuple):
    """The traced hyper-parameters of a lane, all scalars.

    Attributes:
      learning_rate: Adam's step size λ.
      discount: γ.
      tau: target update rate τ.
      exploration_noise: σ of TD3's exploration.
      target_noise: σ̃ of TD3's target smoothing.
      target_noise_clip: c, its bound.
      target_entropy: SAC's H̄.
      critic: when and how the critics' masks are updated.
      actor: when and how the actor's mask is updated.
      n: steps of the multi-step target.
      t0: T_0, before which targets are 1-step.
      d0: D_0, the policy distance above which the buffer is trimmed.
      buffer_interval: Δ_b, environment steps between checks of the buffer.
      trim_ratio: ρ, the fraction that is dropped at a check; 0: a fixed-size buffer.
      b_min: B_min, in transitions.
      b_max: B_max, in transitions.
    """

    learning_rate: Array
    discount: Array
    tau: Array
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
    """The traced hyper-parameters of a lane, for `act` and `update` of an agent.

    >>> import rlx2_jax as rlx2
    >>> config = rlx2.Config("td3", obs_dim=3, action_dim=1)
    >>> int(rlx2.hyper(config, rlx2.Lane(method="rlx2")).n)
    3
    """
    lane = resolve(config, lane)
    topology = topology_of(lane)
    if topology != config.topology:
        raise ValueError(
            f"method={lane.method!r} of a lane needs {topology}, the program has "
            f"{config.topology}: create the Config with config.with_topology(config, lane)"
        )
    final = own_links(config, lane, pruned=True) if topology.prunes else None
    f32 = lambda x: jnp.asarray(x, jnp.float32)  # noqa: E731
    i32 = lambda x: jnp.asarray(x, jnp.int32)  # noqa: E731
    critic = Schedule(
        zeta0=f32(lane.zeta0 if "zeta0" in topology.options else 1.0),
        interval=i32(lane.mask_interval),
        t_end=i32(lane.t_end),
        grow=i32(config.grow.index(str(lane.grow))),
        drop=i32(config.drop.index(lane.drop)),
        links=final and _by_kernel(config.critic_layers, final.critic),
    )
    # The mask interval counts updates of the network; TD3's actor is updated every d updates.
    actor = critic._replace(
        t_end=i32(max(1, int(lane.t_end or 0) // config.policy_delay)),
        links=final and _by_kernel(config.actor_layers, final.actor),
    )
    # Dtypes depend on the name, not the value: discount=1 and discount=0.99 share a program.
    whole = ("n", "t0", "buffer_interval", "b_min", "b_max")
    fields = {
        name: (i32 if name in whole else f32)(getattr(lane, name))
        for name in Hyper._fields
        if name not in ("critic", "actor")
    }
    return Hyper(critic=critic, actor=actor, **fields)


def _by_kernel(layers: Layers, links: tuple[int, ...]) -> dict[str, Array]:
    return {f"{name}/kernel": jnp.int32(n) for (name, _), n in zip(layers, links, strict=True)}


def widths(config: Config, lane: Lane) -> tuple[int | None, int | None]:
    """Hidden units of the actor and of each critic under Tiny, None otherwise."""
    if not resolve(config, lane).tiny:
        return None, None

    def width(module: Architecture, inputs: int, sparsity: float | tuple[float, ...]) -> int:
        links = [i * o for _, (i, o) in module.layers(inputs)]
        overall = float(np.average(np.broadcast_to(sparsity, len(links)), weights=links))
        return module.tiny_width(inputs, overall)

    return (
        width(config.actor_module, config.actor_inputs, lane.actor_sparsity),
        width(config.critic_module, config.critic_inputs, lane.critic_sparsity),
    )


def live_links(config: Config, lane: Lane) -> Links:
    """The room for links in each layer: the program's, or the exact number of the lane.

    Computed on the host, by the same rule as `masks.init`, so that compact networks can be traced.
    """
    return config.links or own_links(config, lane)


def own_links(config: Config, lane: Lane, *, pruned: bool = False) -> Links:
    """The initial live links of each layer of a lane's networks; `pruned`: the final ones, if
    pruning ranks links per layer."""
    lane = resolve(config, lane)
    topology = topology_of(lane, started=False)
    dense = topology.traits.begins == "dense" and not pruned

    def count(
        module: Architecture,
        inputs: int,
        sparsity: float | tuple[float, ...],
        width: int | None,
    ) -> tuple[int, ...]:
        if width:
            return tuple(i * o for _, (i, o) in module.narrowed(width).layers(inputs))
        shapes = dict(module.layers(inputs))
        if dense:
            return tuple(i * o for i, o in shapes.values())
        # In tree order: "Dense_10" before "Dense_2".
        order = sorted(shapes, key=lambda name: name.split("/"))
        values = masks.layer_sparsities([shapes[x] for x in order], sparsity, lane.distribution)
        sparsities = dict(zip(order, values))
        return tuple(
            topology.links(name, shape, masks.links(shape, sparsities[name]))
            for name, shape in shapes.items()
        )

    actor, critic = widths(config, lane)
    return Links(
        count(config.actor_module, config.actor_inputs, lane.actor_sparsity, actor),
        count(config.critic_module, config.critic_inputs, lane.critic_sparsity, critic),
    )


def network_lane(config: Config, lane: Lane) -> Lane:
    """A lane with only the fields that the initial networks of a resolved lane depend on, without
    the seed. Other fields are set to constants, so that lanes share a compiled `init`."""
    lane = dense_lane(lane) if topology_of(lane, started=False).prunes else lane
    return Lane(
        topology=lane.topology,
        structure=lane.structure,
        actor_sparsity=lane.actor_sparsity,
        critic_sparsity=lane.critic_sparsity,
        distribution=lane.distribution,
        tiny=lane.tiny,
        execution=lane.execution,
        grow=config.grow[0],
        drop=config.drop[0],
        n=1,
        trim_ratio=0.0,
        b_min=0,
    )


def dense_lane(lane: Lane) -> Lane:
    """The same lane with dense networks."""
    return dataclasses.replace(
        lane,
        actor_sparsity=0.0,
        critic_sparsity=0.0,
        topology=RIGL.method,
        structure=RIGL.structure,
        scope=RIGL.scope,
        prune_start=RIGL.start,
    )


def intervals(values: Sequence[int]) -> int:
    """The branch interval of a program with several mask intervals: their gcd."""
    return math.gcd(*values)
