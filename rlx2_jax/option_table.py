"""All settings: of a program (`CONFIG`), of a lane (`LANE`), and of a run (`RUN`)."""

from collections.abc import Collection, Iterator
from typing import Any

from rlx2_jax.algorithms import NETWORK_USE
from rlx2_jax.networks import ARCHITECTURES
from rlx2_jax.options import NEVER, Option
from rlx2_jax.sparse import masks, methods, rules
from rlx2_jax.sparse.structure import parse
from rlx2_jax.sparse.topology import REGROW

ALGORITHMS = NETWORK_USE.keys()  # a view: `agents.register_algorithm` adds to it
MAX_LANES = 1024
SIZES = ("hidden", "width", "blocks")  # network sizes; each architecture uses some of them
_FEW = 65_536  # environments, episodes, updates of one time step

# Methods are data: those of the paper and of the topology ablation, then every other topology of
# `sparse.methods` twice: with the baselines' 1-step targets and fixed-size buffer, and with RLx2's
# targets and buffer.
_PLAIN = {"n": 1, "trim_ratio": 0.0}
_TOPOLOGIES: dict[str, dict[str, Any]] = {
    "snfs": {"topology": "snfs"},
    "dsr": {"topology": "dsr"},
    "deepr": {"topology": "deepr", "mask_interval": 1},
    "srigl": {"structure": "fan_in"},
    "gmp": {"topology": "gmp"},
    "magnitude": {"topology": "magnitude"},
    "snip": {"topology": "snip", "scope": "global"},
    "grasp": {"topology": "grasp", "scope": "global"},
}
METHODS: dict[str, dict[str, Any]] = {
    "dense": {**_PLAIN, "zeta0": 0.0, "actor_sparsity": 0.0, "critic_sparsity": 0.0},
    "tiny": {**_PLAIN, "zeta0": 0.0, "tiny": True},
    "ss": {**_PLAIN, "zeta0": 0.0},
    "set": {**_PLAIN, "grow": "random"},
    "rigl": {**_PLAIN},
    "rlx2": {},
    "rlx2-tiny": {"zeta0": 0.0, "tiny": True},
    "rlx2-ss": {"zeta0": 0.0},
    "rlx2-set": {"grow": "random"},
    **{name: {**_PLAIN, **fields} for name, fields in _TOPOLOGIES.items()},
    **{f"rlx2-{name}": fields for name, fields in _TOPOLOGIES.items()},
}


class _Patterns(Collection[str]):
    """The values of `structure`: everything that `structure.parse` accepts."""

    shown = ("none", "fan_in", "2:4", "4x4")

    def __contains__(self, value: object) -> bool:
        try:
            return isinstance(value, str) and bool(parse(value))
        except ValueError:
            return False

    def __iter__(self) -> Iterator[str]:
        return iter(self.shown)

    def __len__(self) -> int:
        return len(self.shown)


def _table(*options: Option) -> dict[str, Option]:
    return {option.name: option for option in options}


def _choice(name: str, about: str, default: str, *others: str, **rest: Any) -> Option:
    return Option(name, "choice", about, default, (default, *others), **rest)


def _int(name: str, about: str, default: Any = None, least: int = 1, **rest: Any) -> Option:
    return Option(name, "int", about, default, least=least, **rest)


def _float(name: str, about: str, default: Any = None, least: float | None = 0.0, **rest: Any):
    return Option(name, "float", about, default, least=least, **rest)


# Differences between the paper's text and its authors' code, in the order of docs/presets.md.
CHOICES = _table(
    _choice(
        "mask_init",
        "initial masks",
        *masks.INITS,
        reference="magnitude",
        meanings={"magnitude": "the largest of the random weights"},
    ),
    _choice(
        "mask_step",
        "the optimizer's step on a mask update",
        "skip",
        "after",
        paper="after",
        meanings={"after": "taken before the mask update"},
        note="as in RigL",
    ),
    _choice(
        "moments",
        "Adam's moments of dropped and grown links",
        "zero",
        "keep",
        reference="keep",
        note="not specified in the paper",
    ),
    _choice(
        "regrow",
        "regrowth of links that were just dropped",
        *REGROW,
        meanings={"keep": "may regrow with their value, moments and target"},
    ),
    _choice(
        "targets",
        "masks of the target networks",
        "masked",
        "polyak",
        reference="polyak",
        meanings={"masked": "applied always", "polyak": "applied only at Polyak steps"},
    ),
    _choice(
        "t_end_counts",
        "what the default of T_end counts",
        "updates",
        "steps",
        paper="steps",
        meanings={"updates": "without warm-up", "steps": "all"},
    ),
    _choice(
        "distance",
        "policy distance",
        "mse",
        "l2",
        paper="l2",
        meanings={"mse": "half the mean squared difference", "l2": "with D_0 = 0.2"},
        note="D_0 was tuned for it",
    ),
    _choice(
        "behaviour",
        "action in the policy distance",
        "mean",
        "action",
        paper="action",
        meanings={"mean": "the noise-free action", "action": "the action taken"},
    ),
    _choice(
        "trim",
        "how the buffer is trimmed",
        "ratio",
        "until",
        paper="until",
        meanings={
            "ratio": "by a fraction ρ at each check",
            "until": "until the distance is below D_0",
        },
    ),
    Option(
        "trim_full",
        "bool",
        "whether a full buffer is trimmed",
        True,
        paper=False,
    ),
    _choice(
        "b_min_bound",
        "lower bound B_min",
        "hard",
        "soft",
        reference="soft",
        meanings={"soft": "one trim may go below it"},
    ),
    _choice("switch", "what T_0 counts", "updates", "steps", paper="steps"),
    _choice(
        "both_ends",
        "a step that is terminated and truncated",
        "terminated",
        "truncated",
        reference="truncated",
    ),
    _choice(
        "exploration",
        "SAC's behaviour",
        "sample",
        "mean",
        reference="mean",
        meanings={"mean": "likely a bug"},
    ),
    _choice(
        "sac_growth",
        "growth score of SAC's critics",
        "critic",
        "leaked",
        reference="leaked",
        meanings={"critic": "their gradient", "leaked": "plus the gradient of the actor's loss"},
    ),
    _choice(
        "critic_actions",
        "units of actions in critic inputs",
        "unit",
        "environment",
        reference="environment",
        meanings={"unit": "[-1, 1]", "environment": "its action bounds"},
        note="not specified in the paper",
    ),
)

CONFIG = _table(
    Option("algo", "choice", "the algorithm", "td3", ALGORITHMS),
    _int("obs_dim", "observation size", flag=False),
    _int("action_dim", "action size", flag=False),
    Option("architecture", "choice", "architecture of all networks", "mlp", ARCHITECTURES),
    _int("hidden", "units of each hidden layer of an MLP; default: 256,256"),
    _int("width", "units of each residual block of SimBa; default: 512", most=16_384),
    _int("blocks", "residual blocks of SimBa; default: 2", most=64),
    _int("batch_size", "transitions per update", 256),
    _int("num_envs", "parallel environments per lane", 1, most=_FEW),
    _int("steps", "environment steps per lane", 3_000_000),
    _int("warmup", "initial steps with random actions and no updates", 25_000, least=0),
    _int("updates_per_step", "updates per time step", 1, most=_FEW, flag=False),
    _int("capacity", "replay buffer size; default: the largest b_max, if the run fills it", 10**6),
    _int(
        "n_max",
        "the longest n of any lane",
        {name: use.n_step for name, use in NETWORK_USE.items()},
        flag=False,
    ),
    _int("critics", "size of the critic ensemble", 2, most=100),
    _int(
        "critic_subset",
        "critics sampled for each target (REDQ); 0: all critics",
        0,
        least=0,
        most=100,
    ),
    _int(
        "policy_delay",
        "d, the actor's update interval",
        {name: use.policy_delay for name, use in NETWORK_USE.items()},
    ),
    _int("target_interval", "target update interval", {"td3": 2, "sac": 1, "bc": 1}),
    _int("mask_interval", "gcd of the lanes' Δ_m", 10_000, flag=False),
    _int("buffer_interval", "gcd of the lanes' Δ_b", 10_000, flag=False),
    _int("oldest_k", "K, transitions in the policy distance; default: 8 batches", 2048),
    # float64 needs jax_enable_x64, which the caller must set.
    _choice("dtype", "dtype of networks", "float32", "float64", flag=False),
    _choice(
        "precision",
        "precision of matrix products; weights and sums stay float32",
        "float32",
        "bfloat16",
    ),
    _choice("execution", "execution mode of networks", "masked", "compact", flag=False),
    *CHOICES.values(),
)

LANE = _table(
    Option("method", "choice", "training method", "rlx2", tuple(METHODS)),
    _float("actor_sparsity", "fraction of absent links in the actor", 0.9, below=1.0),
    _float("critic_sparsity", "fraction of absent links in each critic", 0.85, below=1.0),
    _choice("distribution", "distribution of sparsity over layers", *masks.DISTRIBUTIONS),
    _float("learning_rate", "Adam's step size", 3e-4),
    _float("discount", "γ", 0.99, most=1.0),
    _float("tau", "target update rate τ", 0.005, most=1.0),
    _float("exploration_noise", "σ of TD3's exploration", 0.1),
    _float("target_noise", "σ̃ of TD3's target smoothing", 0.2),
    _float("target_noise_clip", "c, bound of TD3's target noise", 0.5),
    _float("target_entropy", "SAC's entropy target H̄; default: -dim(A)", least=None),
    _float("zeta0", "initial mask update fraction ζ_0", 0.5, most=1.0),
    _int("mask_interval", "mask update interval Δ_m, in updates of the network", 10_000),
    _int(
        "t_end",
        "T_end, critic updates until masks are final; default: all updates, for gmp 80% of them",
    ),
    Option("grow", "choice", "growth rule", "gradient", rules.GROW),
    Option("drop", "choice", "drop rule", "magnitude", rules.DROP),
    Option("topology", "choice", "method of mask updates", "rigl", methods.METHODS, flag=False),
    Option(
        "structure",
        "choice",
        "mask pattern of layers that it divides: constant fan-in, n of m consecutive inputs (any "
        "n:m; determines the sparsity), blocks of inputs x outputs (any sizes)",
        "none",
        _Patterns(),
    ),
    _choice(
        "scope",
        "whether pruning ranks links per layer or over the whole network; default: `global` for "
        "snip and grasp",
        *methods.SCOPES,
    ),
    _int(
        "prune_start",
        "updates before pruning starts; default: 0, for gmp 20% of all updates",
        least=0,
    ),
    _int(
        "n", "steps of the multi-step target", {"td3": 3, "sac": 2, "bc": 1}, reference={"sac": 3}
    ),
    _int("t0", "T_0, before which targets are 1-step", 300_000, least=0),
    _float("d0", "policy distance threshold D_0", 0.2),
    _int("buffer_interval", "buffer check interval Δ_b, in environment steps", 10_000),
    _float("trim_ratio", "ρ, fraction of the buffer dropped at a check", 0.1, most=1.0),
    _int(
        "b_min",
        "B_min, below which the buffer is not trimmed; default: 10% of b_max",
        100_000,
        least=0,
        reference={"sac": 200_000},
    ),
    _int("b_max", "B_max, the maximum buffer size", 1_000_000, reference={"sac": 3_000_000}),
    Option(
        "execution",
        "choice",
        "execution mode of networks",
        "masked",
        ("masked", "compact"),
        flag=False,
    ),
    _int("seed", "seed", 0, least=0, flag=False),
)

RUN = _table(
    _int("seeds", "number of seeds: first_seed, first_seed + 1, ...", 1, most=MAX_LANES),
    _int("first_seed", "first seed", 0, least=0),
    _float("utd", "gradient updates per environment step", 1.0),
    _int("eval_interval", "environment steps between evaluations", 5000),
    _int("episodes", "episodes per evaluation", 10, most=_FEW),
    _int("metrics_interval", "steps between rows of metrics.csv", 5000),
    _int("checkpoint_interval", "steps between checkpoints", 50_000),
    _int("keep", "number of checkpoints to keep", 2),
    _int(
        "chunk",
        "lanes per compiled program; 0: as many as fit into memory",
        0,
        least=0,
        most=MAX_LANES,
    ),
    _int(
        "shards",
        "blocks that lanes are divided into, fixed at the first start; 0: one per device",
        0,
        least=0,
        most=MAX_LANES,
    ),
)

__all__ = [
    "ALGORITHMS",
    "CHOICES",
    "CONFIG",
    "LANE",
    "MAX_LANES",
    "METHODS",
    "NEVER",
    "RUN",
    "SIZES",
]
