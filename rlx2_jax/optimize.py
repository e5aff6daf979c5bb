"""One step of a network: of its optimizer or, when a mask update is due, of its topology.

What TD3, SAC and behaviour cloning do to each of their networks, given its loss. The masked form
has the dense gradient at every step; the compact form has that of the live
links, and what growth goes by on a mask update only (`linked`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rlx2_jax import adam, compact, forms, linked, networks, rules
from rlx2_jax.branch import every
from rlx2_jax.topology import Schedule, evolution
from rlx2_jax.types import Array, Masks, Network, Params

MASK_STEPS = ("skip", "after")
MOMENTS = ("zero", "keep")


def init(params: Params, masks: Masks, *, target: Params | None = None) -> Network:
    """A network with fresh moments. `params` and `target` are taken as they are."""
    return Network(params, masks, adam.init(params), target, jnp.zeros((), jnp.int32))


def learn(
    network: Network,
    loss: Callable[[Params], tuple[Array, Any]],
    learning_rate: Array,
    count: Array,
    schedule: Schedule,
    key: Array,
    *,
    rows: int,
    leak: Params | None = None,
    grow: Sequence[str] = ("gradient", "random"),
    drop: Sequence[str] = ("magnitude",),
    interval: int,
    mask_step: str = "skip",
    moments: str = "zero",
    regrow: str = "keep",
    remask_target: bool = True,
) -> tuple[Network, Array, Any, Array]:
    """One step down `loss`, of a network in either form.

    Args:
      loss: bound parameters (`networks.bind`) to a value and anything else; it applies the network
        once, to a batch of `rows`.
      leak: what growth scores have besides the gradient.
      grow, drop: static; the rules that lanes of this program use, which `schedule` numbers.
      others: as in `step`.

    Returns:
      The network, the loss and what came with it, and whether the gradient was finite. Where it
      was not, zeros take its place.
    """
    bound = lambda params: loss(networks.bind(params, network.masks))  # noqa: E731
    (value, aux), grads = jax.value_and_grad(bound, has_aux=True)(network.params)
    if isinstance(network.masks, compact.Index):
        if leak is not None or moments != "zero" or not remask_target:
            raise ValueError("the compact form has no dead links: none to leak to, keep or unmask")

        def evolve(before: Network) -> Network:
            # The gradient is that of the network before its optimizer step.
            own = network if mask_step == "after" else before
            guarded, finite = adam.guard(grads)
            factors = linked.growth_factors(own, loss, rows, finite)
            options = {"regrow": regrow, "grow": grow, "drop": drop}
            return linked.evolve_network(before, guarded, factors, count, schedule, key, **options)
    else:

        def evolve(before: Network) -> Network:
            guarded, _ = adam.guard(grads)
            scored = guarded if leak is None else jax.tree.map(jnp.add, guarded, leak)
            scores = _scores(before, guarded, scored, schedule, key, grow, drop)
            return _evolve_network(before, *scores, count, schedule, moments, regrow, remask_target)

    _check(interval, mask_step, moments)
    new, finite = _advance(
        network, grads, learning_rate, count, schedule, evolve, interval, mask_step
    )
    return new, value, aux, finite


def step(
    network: Network,
    grads: Params,
    learning_rate: Array,
    count: Array,
    schedule: Schedule,
    key: Array,
    *,
    interval: int,
    scores: Params | None = None,
    grow: Sequence[str] = ("gradient", "random"),
    drop: Sequence[str] = ("magnitude",),
    mask_step: str = "skip",
    moments: str = "zero",
    regrow: str = "keep",
    remask_target: bool = True,
) -> Network:
    """One step of a network's optimizer or, when a mask update is due, of its topology.

    Args:
      network: its parameters are zero off the mask.
      grads: dense gradient of the loss, `∇_θ L`.
      count: which update of this network this is, from 1; not batched over lanes, so that the
        evolution stays inside a real branch.
      schedule: of this lane; `schedule.due(count)` implies `count % interval == 0`.
      key: for random growth.
      interval: static; the branch is taken at its multiples.
      scores: the dense gradient that growth rules see, when not `grads`.
      grow, drop: static; the rules that lanes of this program use, which `schedule` numbers.
      mask_step: `skip` the optimizer step on a mask update, or evolve `after` it.
      moments: `zero` those of links dropped or newly grown, or `keep` all.
      regrow: as in `evolve`.
      remask_target: put the target under the new mask at once.
    """
    _check(interval, mask_step, moments)

    def evolve(before: Network) -> Network:
        scored = grads if scores is None else scores
        own = _scores(before, grads, scored, schedule, key, grow, drop)
        return _evolve_network(before, *own, count, schedule, moments, regrow, remask_target)

    return _advance(network, grads, learning_rate, count, schedule, evolve, interval, mask_step)[0]


def _advance(
    network: Network,
    grads: Params,
    learning_rate: Array,
    count: Array,
    schedule: Schedule,
    evolve: Callable[[Network], Network],
    interval: int,
    mask_step: str,
) -> tuple[Network, Array]:
    """A step of the optimizer, or of the topology: the network, and whether `grads` were finite.

    Evolution comes before the step that it replaces (`skip`), so that neither needs the network
    as it was before the other, and both can work in place.
    """
    due = schedule.due(count)

    def evolved(net: Network) -> Network:
        return every(interval, count, turned, net)

    def turned(net: Network) -> Network:
        new = evolve(net)
        if net.moved is None:
            return new
        return new._replace(moved=jnp.where(due, _moved(net.masks, new.masks), net.moved))

    def stepped(net: Network, active: Array | bool) -> tuple[Network, Array]:
        masks = None if isinstance(net.masks, compact.Index) else net.masks
        params, moments, finite = adam.guarded_step(
            net.params, net.moments, grads, learning_rate, masks, active
        )
        return net._replace(params=params, moments=moments), finite

    if mask_step == "skip":
        return stepped(evolved(network), ~due)
    after, finite = stepped(network, True)
    return evolved(after), finite


def _moved(before: Masks, after: Masks) -> Array:
    """Links that are live after but not before: i32[]."""
    pairs = zip(*(jax.tree.leaves(forms.dense_masks(masks)) for masks in (after, before)))
    return jnp.stack([jnp.sum(a & ~b, dtype=jnp.int32) for a, b in pairs]).sum(dtype=jnp.int32)


def _check(interval: int, mask_step: str, moments: str) -> None:
    if mask_step not in MASK_STEPS or moments not in MOMENTS:
        raise ValueError(
            f"mask_step={mask_step!r}, moments={moments!r}: use one of {MASK_STEPS} and {MOMENTS}"
        )
    if interval < 1:
        raise ValueError(f"interval={interval}: use a whole number of at least 1")


def _scores(
    network: Network,
    grads: Params,
    dense_grads: Params,
    schedule: Schedule,
    key: Array,
    grow: Sequence[str],
    drop: Sequence[str],
) -> tuple[Params, Params]:
    """Growth scores and keep scores of every array, by the lane's own rules."""
    return rules.tree_scores(
        network.params,
        grads,
        dense_grads,
        lambda x: rules.select([rules.GROW[r](key, x) for r in grow], schedule.grow),
        lambda x: rules.dense(rules.select([rules.DROP[r](x) for r in drop], schedule.drop)),
        [x.ndim >= 2 for x in jax.tree.leaves(network.params)],
        (network.moments.mu, network.moments.nu),
    )


def _evolve_network(
    network: Network,
    grow_scores: Params,
    keep_scores: Params,
    count: Array,
    schedule: Schedule,
    moments: str,
    regrow: str,
    remask_target: bool,
) -> Network:
    new = evolution(
        network.params,
        network.masks,
        grow_scores,
        schedule.fraction(count),
        keep_scores=keep_scores,
        regrow=regrow,
    )
    inherit = lambda tree: jax.tree.map(  # noqa: E731
        lambda x, keep: jnp.where(keep, x, 0.0), tree, new.inherited
    )
    adam_state = network.moments
    if moments == "zero":
        adam_state = adam_state._replace(mu=inherit(adam_state.mu), nu=inherit(adam_state.nu))
    target = network.target
    if target is not None and remask_target:
        target = inherit(target)
    return network._replace(params=new.params, masks=new.masks, moments=adam_state, target=target)


def polyak(network: Network, tau: Array) -> Network:
    """θ' ← τ θ + (1 - τ) θ', then θ' ← θ' ⊙ M_θ (Algorithm 4, line 23)."""

    if isinstance(network.masks, compact.Index):
        t, old = tau.astype(network.params.dtype), jnp.asarray(network.target)
        return network._replace(target=t * network.params + (1.0 - t) * old)

    def mix(new: Array, old: Array, mask: Array) -> Array:
        t = tau.astype(old.dtype)
        return jnp.where(mask, t * new + (1.0 - t) * old, 0.0)

    target = jax.tree.map(mix, network.params, network.target, network.masks)
    return network._replace(target=target)
