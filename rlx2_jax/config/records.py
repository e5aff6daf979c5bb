"""`Config`, the static choices of a program, and `Lane`, the settings of one training run."""

import dataclasses
from typing import Any, NamedTuple

from rlx2_jax import checks, networks
from rlx2_jax.algorithms import NETWORK_USE
from rlx2_jax.networks import Architecture, Layers
from rlx2_jax.option_table import CONFIG, LANE
from rlx2_jax.options import documented
from rlx2_jax.sparse.lane_topology import RIGL, Topology
from rlx2_jax.types import Bounds


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
