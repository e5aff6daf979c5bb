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
SIZES = ("hidden", "width", "blocks")  # of networks; an architecture has some of them
_FEW = 65_536  # environments, episodes, updates of one time step

# Methods are data. Those of the paper and of the topology ablation, then every other topology of
# `sparse.methods`, twice: with 1-step targets and a buffer of fixed capacity, as the baselines
# have, and with RLx2's targets and buffer.
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
    """The values of `structure`: all that `structure.parse` reads."""

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


# Where the paper's text and its authors' code differ, in the order of docs/presets.md.
CHOICES = _table(
    _choice(
        "mask_init",
        "the first masks",
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
        meanings={"after": "done, then the masks evolve"},
        note="as in RigL",
    ),
    _choice(
        "moments",
        "Adam's moments of links that were dropped or grown",
        "zero",
        "keep",
        reference="keep",
        note="the paper does not say",
    ),
    _choice(
        "regrow",
        "links that were just dropped",
        *REGROW,
        meanings={"keep": "may regrow with their value, moments and target"},
    ),
    _choice(
        "targets",
        "masks of the target networks",
        "masked",
        "polyak",
        reference="polyak",
        meanings={"masked": "always", "polyak": "at Polyak steps only"},
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
        "what the policy is compared with",
        "mean",
        "action",
        paper="action",
        meanings={"mean": "the noise-free action", "action": "the action taken"},
    ),
    _choice(
        "trim",
        "how the buffer forgets",
        "ratio",
        "until",
        paper="until",
        meanings={"ratio": "a share ρ once per check", "until": "until the distance is below D_0"},
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
        "B_min",
        "hard",
        "soft",
        reference="soft",
        meanings={"soft": "one cut may pass below it"},
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
        meanings={"mean": "a slip"},
    ),
    _choice(
        "sac_growth",
        "growth score of SAC's critics",
        "critic",
        "leaked",
        reference="leaked",
        meanings={"critic": "their gradient", "leaked": "plus what the actor's loss left there"},
    ),
    _choice(
        "critic_actions",
        "units of the actions that critics see",
        "unit",
        "environment",
        reference="environment",
        meanings={"unit": "[-1, 1]", "environment": "its action bounds"},
        note="the paper does not say",
    ),
)

CONFIG = _table(
    Option("algo", "choice", "the algorithm", "td3", ALGORITHMS),
    _int("obs_dim", "observation size", flag=False),
    _int("action_dim", "action size", flag=False),
    Option("architecture", "choice", "of all networks", "mlp", ARCHITECTURES),
    _int("hidden", "units of each hidden layer of an MLP; default: 256,256"),
    _int("width", "units of each residual block of SimBa; default: 512", most=16_384),
    _int("blocks", "residual blocks of SimBa; default: 2", most=64),
    _int("batch_size", "transitions per update", 256),
    _int("num_envs", "environments per lane, stepped together", 1, most=_FEW),
    _int("steps", "environment steps of each lane", 3_000_000),
    _int("warmup", "of these, steps with random actions and no updates", 25_000, least=0),
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
        "critics drawn at random for each target (REDQ); 0: the minimum is over all",
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
    _int("oldest_k", "K, transitions that the policy distance looks at; default: 8 batches", 2048),
    # float64 needs jax_enable_x64, which is the caller's to set.
    _choice("dtype", "precision of networks", "float32", "float64", flag=False),
    _choice("precision", "of products; weights and sums stay float32", "float32", "bfloat16"),
    _choice("execution", "form of the networks", "masked", "compact", flag=False),
    *CHOICES.values(),
)

LANE = _table(
    Option("method", "choice", "what is trained", "rlx2", tuple(METHODS)),
    _float("actor_sparsity", "share of the actor's links that are absent", 0.9, below=1.0),
    _float("critic_sparsity", "share of each critic's links that are absent", 0.85, below=1.0),
    _choice("distribution", "how sparsity is spread over layers", *masks.DISTRIBUTIONS),
    _float("learning_rate", "Adam's step size", 3e-4),
    _float("discount", "γ", 0.99, most=1.0),
    _float("tau", "target update rate τ", 0.005, most=1.0),
    _float("exploration_noise", "σ of TD3's exploration", 0.1),
    _float("target_noise", "σ̃ of TD3's target smoothing", 0.2),
    _float("target_noise_clip", "c, bound of TD3's target noise", 0.5),
    _float("target_entropy", "SAC's entropy target H̄; default: -dim(A)", least=None),
    _float("zeta0", "initial mask update fraction ζ_0", 0.5, most=1.0),
    _int("mask_interval", "mask update interval Δ_m, in updates of a network", 10_000),
    _int(
        "t_end",
        "T_end, critic updates until masks are final; default: the whole run, for gmp four fifths",
    ),
    Option("grow", "choice", "growth rule", "gradient", rules.GROW),
    Option("drop", "choice", "drop rule", "magnitude", rules.DROP),
    Option("topology", "choice", "how masks change", "rigl", methods.METHODS, flag=False),
    Option(
        "structure",
        "choice",
        "pattern of the masks, of layers that it divides: constant fan-in, n of m consecutive "
        "inputs (any n:m; decides the sparsity), blocks of inputs x outputs (any sizes)",
        "none",
        _Patterns(),
    ),
    _choice(
        "scope",
        "what pruning ranks, the links of a layer or of a whole network; default: `global` for "
        "snip and grasp",
        *methods.SCOPES,
    ),
    _int(
        "prune_start",
        "updates before pruning begins; default: 0, for gmp a fifth of all",
        least=0,
    ),
    _int(
        "n", "steps of the multi-step target", {"td3": 3, "sac": 2, "bc": 1}, reference={"sac": 3}
    ),
    _int("t0", "T_0, before which targets are 1-step", 300_000, least=0),
    _float("d0", "policy distance threshold D_0", 0.2),
    _int("buffer_interval", "buffer check interval Δ_b, in environment steps", 10_000),
    _float("trim_ratio", "ρ, share of the buffer forgotten at a check", 0.1, most=1.0),
    _int(
        "b_min",
        "B_min, below which the buffer is not trimmed; default: a tenth of b_max",
        100_000,
        least=0,
        reference={"sac": 200_000},
    ),
    _int("b_max", "B_max, the largest buffer", 1_000_000, reference={"sac": 3_000_000}),
    Option(
        "execution", "choice", "form of the networks", "masked", ("masked", "compact"), flag=False
    ),
    _int("seed", "seed", 0, least=0, flag=False),
)

RUN = _table(
    _int(
        "seeds", "lanes of each kind, with seeds first_seed, first_seed + 1, ...", 1, most=MAX_LANES
    ),
    _int("first_seed", "the first seed", 0, least=0),
    _float("utd", "gradient updates per environment step", 1.0),
    _int("eval_interval", "environment steps between evaluations", 5000),
    _int("episodes", "episodes of an evaluation", 10, most=_FEW),
    _int("metrics_interval", "steps between rows of metrics.csv", 5000),
    _int("checkpoint_interval", "steps between checkpoints", 50_000),
    _int("keep", "checkpoints kept", 2),
    _int(
        "chunk", "lanes per compiled program; 0: as many as fit memory", 0, least=0, most=MAX_LANES
    ),
    _int(
        "shards",
        "blocks that lanes are divided into for devices, fixed at the first start; 0: one a device",
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
