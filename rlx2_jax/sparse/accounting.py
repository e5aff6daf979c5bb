"""Parameters and FLOPs of a run, by the formulas of the paper's appendix C.3.

A network is a list of layers (I_l, O_l) with sparsities S_l. As in the paper, biases do not count.

    M     = Σ_l (1 − S_l) I_l O_l               parameters of one network (C.3.1)
    FLOPs = Σ_l (1 − S_l) (2 I_l − 1) O_l       one forward pass of one sample (C.3.2)

A training iteration, with A and C the FLOPs of actor and one critic and batch size B, costs

    train = update_critic + update_actor / d + evolve_actor + evolve_critic + trim
    update_critic = B (A + 8 C)     TD3         B (n A + 8 C)    SAC: an action at each of n states
    update_actor  = B (3 A + C)     TD3         B (3 A + 2 C)    SAC
    evolve_actor  = B 2 A / ((1 − S_a) Δ_m)     evolve_critic = B 4 C / ((1 − S_c) Δ_m)
    trim          = K A / Δ_b, K = 8 B

S_a and S_c are overall sparsities of a network. Parameter counts are not rounded; the links of an
actual mask differ by less than one per layer.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, fields
from itertools import pairwise
from numbers import Integral
from typing import Any, NamedTuple

from rlx2_jax.algorithms import NETWORK_USE, NetworkUse
from rlx2_jax.sparse import masks

Shapes = tuple[tuple[int, int], ...]  # (in, out) of each layer


@dataclass(frozen=True)
class Networks:
    """Sizes and sparsities of an actor and its critics.

    Attributes:
      obs_dim, action_dim: of the task. SAC's actor has 2 action_dim outputs; a critic has
        obs_dim + action_dim inputs.
      hidden: hidden units of an MLP; None: `layers`.
      actor_sparsity, critic_sparsity: in [0, 1), of the network or of each layer.
      layers: (in, out) of the linear layers of actor and critic, for architectures other than an
        MLP. Biases and normalization do not count.
      distribution: layer allocation, see `masks.layer_sparsities`.
      tiny: whether they are small and dense instead, with as many parameters.
      critics: size of the ensemble, also of the dense run.
      trained: the sparsity of each layer of actor and critic, averaged over the updates, for
        methods that prune; None: the given sparsities, from the start.
    """

    obs_dim: int
    action_dim: int
    hidden: Sequence[int] | None
    actor_sparsity: float | Sequence[float]
    critic_sparsity: float | Sequence[float]
    _: KW_ONLY
    layers: tuple[Shapes, Shapes] | None = None
    distribution: str = "erdos_renyi"
    tiny: bool = False
    critics: int = 2
    trained: tuple[Sequence[float], Sequence[float]] | None = None


@dataclass(frozen=True)
class Iteration:
    """The work of a training iteration.

    Attributes:
      batch_size: B.
      n_step: target length n.
      mask_interval: Δ_m of actor and critic, for growth that needs the dense gradient; `math.inf`:
        none, or free (random growth). As in the paper, Δ_m is not multiplied by d for TD3's actor,
        although its mask changes only every d Δ_m iterations.
      buffer_interval: Δ_b, iterations between buffer checks; `math.inf`: a fixed-size buffer.
      oldest_k: K; None: the paper's 8 B.
      policy_delay: d; None: the paper's, 2 for TD3 and 1 for SAC.
      hessian_products: Hessian-gradient products of each network per update (GraSP).
    """

    batch_size: int = 256
    n_step: int = 1
    mask_interval: tuple[float, float] = (math.inf, math.inf)
    buffer_interval: float = math.inf
    oldest_k: int | None = None
    policy_delay: int | None = None
    hessian_products: float = 0.0


@dataclass(frozen=True)
class Ratios:
    """A run's numbers divided by those of the dense run (table 2, "Total Size" and "FLOPs").

    Attributes:
      actor_parameters: of the actor.
      critic_parameters: of one critic.
      total_parameters: of all networks and targets in training.
      train_flops: per training iteration.
      inference_flops: per action.
    """

    actor_parameters: float
    critic_parameters: float
    total_parameters: float
    train_flops: float
    inference_flops: float


@dataclass(frozen=True)
class Ledger:
    """Parameters and FLOPs of one run. FLOPs are averages per training iteration, except
    `inference_flops`.

    Attributes:
      algo, method, n_step: the algorithm, the method and n.
      actor_hidden, critic_hidden: hidden units of an MLP.
      relative: ratios to the dense run.
      actor_parameters, critic_parameters: of one network each.
      online_parameters: M_a + 2 M_c, without the targets (as in table 14).
      total_parameters: of all networks and targets, 2 M_a + 4 M_c for TD3 and M_a + 4 M_c for SAC
        (table 5).
      critic_update_flops: of updating the critics.
      actor_update_flops: of updating the actor, divided by d.
      actor_evolution_flops, critic_evolution_flops: of mask updates.
      trim_flops: of buffer checks.
      train_flops: the sum of the above.
      inference_flops: of one action.
    """

    algo: str
    method: str
    n_step: int
    actor_hidden: tuple[int, ...]  # of an MLP
    critic_hidden: tuple[int, ...]
    relative: Ratios
    actor_parameters: float
    critic_parameters: float
    online_parameters: float
    total_parameters: float
    critic_update_flops: float
    actor_update_flops: float
    actor_evolution_flops: float
    critic_evolution_flops: float
    trim_flops: float
    train_flops: float
    inference_flops: float


class _Rates(NamedTuple):
    actor_evolutions: float = 0.0  # mask updates per iteration
    critic_evolutions: float = 0.0
    distances: float = 0.0  # actions per iteration that the policy distance compares
    hessian_products: float = 0.0  # of each network per iteration


class _Network(NamedTuple):
    hidden: tuple[int, ...]
    sparsity: float
    parameters: float
    flops: float


_Pair = tuple[_Network, _Network]  # actor and critic


def ledger(
    algo: str,
    networks: Networks,
    iteration: Iteration | None = None,
    *,
    method: str = "",
    dense_n_step: int = 1,
) -> Ledger:
    """Parameters and FLOPs of one run, and their ratios to the dense run (appendix C.3).

    Args:
      algo: "td3", "sac" or another algorithm's name.
      method: a label; the costs depend only on `networks` and `iteration`.
      dense_n_step: n of the dense run in ratios: 1 in the paper's main table. Affects only SAC's
        training ratio; give n_step's value to compare at equal n.
    """
    if algo not in NETWORK_USE:
        raise ValueError(f"algo is {algo!r}: choose one of {', '.join(NETWORK_USE)}")
    spec, iteration = NETWORK_USE[algo], iteration or Iteration()
    d = iteration.policy_delay
    d = _positive("policy_delay", spec.policy_delay if d is None else d)
    n, dense_n = _positive("n_step", iteration.n_step), _positive("dense_n_step", dense_n_step)
    batch = _positive("batch_size", iteration.batch_size)
    old_k = iteration.oldest_k
    old_k = _positive("oldest_k", 8 * batch if old_k is None else old_k)
    actor_interval, critic_interval = iteration.mask_interval
    pairs = [("mask_interval", actor_interval), ("mask_interval", critic_interval)]
    for name, interval in [*pairs, ("buffer_interval", iteration.buffer_interval)]:
        if not interval >= 1:
            raise ValueError(f"{name} is {interval}: give at least 1, or math.inf for never")
    rates = _Rates(
        1 / actor_interval,
        1 / critic_interval,
        old_k / iteration.buffer_interval,
        iteration.hessian_products,
    )
    shapes, hidden = _shapes(networks, spec.actor_heads)

    def pair(actor: Any, critic: Any, tiny: bool = False) -> _Pair:
        return (
            _network(shapes[0], hidden, actor, networks.distribution, tiny),
            _network(shapes[1], hidden, critic, networks.distribution, tiny),
        )

    final = pair(networks.actor_sparsity, networks.critic_sparsity, networks.tiny)
    trained = final if networks.trained is None else pair(*networks.trained)
    all_links = pair(0.0, 0.0)
    count = _positive("critics", networks.critics) if spec.has_critic else 0
    figures = _figures(spec, (final, trained, all_links), count, batch, n, d, rates)
    dense = _figures(spec, (all_links, all_links, all_links), count, batch, dense_n, d, _Rates())
    ratio = lambda name: figures[name] / dense[name] if dense[name] else 0.0  # noqa: E731
    relative = Ratios(**{f.name: ratio(f.name) for f in fields(Ratios)})
    return Ledger(algo, method, n, final[0].hidden, final[1].hidden, relative, **figures)


def _shapes(
    networks: Networks, actor_heads: int
) -> tuple[tuple[Shapes, Shapes], tuple[int, ...] | None]:
    """(in, out) of the layers of actor and critic, and the hidden units of an MLP."""
    obs_dim = _positive("obs_dim", networks.obs_dim)
    action_dim = _positive("action_dim", networks.action_dim)
    if networks.hidden is not None:
        hidden = tuple(_positive("hidden width", width) for width in networks.hidden)
        actor = _chain(obs_dim, hidden, actor_heads * action_dim)
        return (actor, _chain(obs_dim + action_dim, hidden, 1)), hidden
    if networks.layers is None or networks.tiny:
        raise ValueError("hidden is None: give the hidden layers of an MLP, or layers without tiny")
    return networks.layers, None


def tiny_width(in_dim: int, out_dim: int, hidden: Sequence[int], sparsity: float) -> int:
    """Width h of the dense network whose parameter count is closest to the sparse network's.

    Layers narrower than h keep their width, so h = max(hidden) is the full network. Ties go to the
    smaller width.
    """
    in_dim, out_dim = _positive("in_dim", in_dim), _positive("out_dim", out_dim)
    hidden = tuple(_positive("hidden width", width) for width in hidden)
    if not hidden:
        raise ValueError("hidden is (): a tiny network needs at least one hidden layer")

    def count(h: int) -> int:
        return sum(i * o for i, o in pairwise([in_dim, *_at_most(h, hidden), out_dim]))

    target = (1 - masks.check_sparsity(sparsity)) * count(max(hidden))
    above = 1 + bisect_left(range(1, max(hidden)), target, key=count)
    return min(max(above - 1, 1), above, key=lambda h: abs(count(h) - target))


def overall_sparsity(sizes: Sequence[int], sparsity: float | Sequence[float]) -> float:
    """Sparsity of a network with these layer sizes, given one sparsity or one per layer."""
    return _overall(tuple(pairwise(sizes)), sparsity)


def _overall(shapes: Shapes, sparsity: float | Sequence[float]) -> float:
    if not isinstance(sparsity, Sequence):
        return masks.check_sparsity(sparsity)
    layers = zip(shapes, masks.layer_sparsities(shapes, sparsity), strict=True)
    return sum(s * i * o for (i, o), s in layers) / sum(i * o for i, o in shapes)


def _network(
    shapes: Shapes,
    hidden: tuple[int, ...] | None,
    sparsity: float | Sequence[float],
    distribution: str,
    tiny: bool,
) -> _Network:
    """One network; `tiny`: a dense one with as many parameters."""
    overall = _overall(shapes, sparsity)
    if tiny and hidden is not None:
        in_dim, out_dim = shapes[0][0], shapes[-1][1]
        hidden = _at_most(tiny_width(in_dim, out_dim, hidden, overall), hidden)
        shapes = _chain(in_dim, hidden, out_dim)
        sparsity = overall = 0.0
    layers = list(zip(shapes, masks.layer_sparsities(shapes, sparsity, distribution), strict=True))
    parameters = sum((1 - s) * i * o for (i, o), s in layers)
    flops = sum((1 - s) * (2 * i - 1) * o for (i, o), s in layers)
    return _Network(hidden or (), overall, parameters, flops)


def _chain(in_dim: int, hidden: tuple[int, ...], out_dim: int) -> Shapes:
    return tuple(pairwise((in_dim, *hidden, out_dim)))


def _figures(
    spec: NetworkUse,
    networks: tuple[_Pair, _Pair, _Pair],
    critics: int,
    batch: int,
    n: int,
    d: int,
    rates: _Rates,
) -> dict[str, float]:
    """The numbers of a ledger. `networks`: the final, the average trained, and the dense ones."""
    (actor, critic), trained, dense = networks
    a, c = (network.flops for network in trained)
    target = (n if spec.target_every_step else 1) * a * spec.has_critic + critics * c
    evaluated = critics if spec.actor_loss_critics is None else spec.actor_loss_critics
    products = 2 * rates.hessian_products  # one product costs two gradients
    # The paper's formula for growth, 2 A / (1 - S_a), is not exactly the cost of a dense network.
    actor_growth = 2 * actor.flops / (1 - actor.sparsity) * rates.actor_evolutions
    critic_growth = 2 * critics * critic.flops / (1 - critic.sparsity) * rates.critic_evolutions
    actor_product = (3 * dense[0].flops + evaluated * critic.flops) * products
    critic_product = 3 * critics * dense[1].flops * products
    flops = {  # 3: a forward pass, and a backward pass at twice its cost
        "critic_update_flops": batch * (target + 3 * critics * c),
        "actor_update_flops": batch * (3 * a + evaluated * c) / d,
        "actor_evolution_flops": batch * (actor_growth + actor_product),
        "critic_evolution_flops": batch * (critic_growth + critic_product),
        "trim_flops": a * rates.distances,
    }
    return flops | {
        "actor_parameters": actor.parameters,
        "critic_parameters": critic.parameters * spec.has_critic,
        "online_parameters": actor.parameters + critics * critic.parameters,
        "total_parameters": spec.actor_copies * actor.parameters + 2 * critics * critic.parameters,
        "train_flops": sum(flops.values()),
        "inference_flops": actor.flops,
    }


def _at_most(h: int, hidden: Sequence[int]) -> tuple[int, ...]:
    return tuple(min(h, width) for width in hidden)


def _positive(name: str, value: int) -> int:
    if not (isinstance(value, Integral) and value >= 1):
        raise ValueError(f"{name} is {value!r}: give an integer of at least 1")
    return int(value)
