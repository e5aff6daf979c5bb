"""One step of a network: of its optimizer or, when a mask update is due, of its topology.

What TD3, SAC and behaviour cloning do to each of their networks, once its gradient is known.
"""

import jax
import jax.numpy as jnp
import optax

from rlx2_jax.topology import Schedule, evolution, random_scores, update_fraction
from rlx2_jax.types import Array, Masks, Network, Params

MASK_STEPS = ("skip", "after")
MOMENTS = ("zero", "keep")

adam = optax.scale_by_adam()


def init(params: Params, masks: Masks, *, target: Params | None = None) -> Network:
    """A network with fresh moments. `params` and `target` are taken as they are."""
    return Network(params, masks, adam.init(params), target)


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
      scores: what growth goes by, when not by `grads`.
      mask_step: `skip` the optimizer step on a mask update, or evolve `after` it.
      moments: `zero` those of links dropped or newly grown, or `keep` all.
      regrow: as in `evolve`.
      remask_target: put the target under the new mask at once.
    """
    if mask_step not in MASK_STEPS or moments not in MOMENTS:
        raise ValueError(
            f"mask_step={mask_step!r}, moments={moments!r}: use one of {MASK_STEPS} and {MOMENTS}"
        )
    if interval < 1:
        raise ValueError(f"interval={interval}: use a whole number of at least 1")
    scores = grads if scores is None else scores

    def optimizer_step() -> Network:
        return _adam_step(network, grads, learning_rate)

    def mask_update() -> Network:
        stepped = optimizer_step()
        before = stepped if mask_step == "after" else network
        after = _evolve_network(
            before, scores, count, schedule, key, moments, regrow, remask_target
        )
        due = schedule.due(count)
        return jax.tree.map(lambda a, b: jnp.where(due, a, b), after, stepped)

    return jax.lax.cond(count % interval == 0, mask_update, optimizer_step)


def _adam_step(network: Network, grads: Params, learning_rate: Array) -> Network:
    """Adam on the live links. Where moments are zero off the mask, so is the update; where they
    are kept (`moments="keep"`), a dead link's moments would move it: mask what comes out."""
    masked = jax.tree.map(lambda g, m: jnp.where(m, g, 0.0), grads, network.masks)
    updates, moments = adam.update(masked, network.moments)
    params = jax.tree.map(
        lambda p, u, m: jnp.where(m, p - learning_rate.astype(p.dtype) * u, 0.0),
        network.params,
        updates,
        network.masks,
    )
    return network._replace(params=params, moments=moments)


def _evolve_network(
    network: Network,
    scores: Params,
    count: Array,
    schedule: Schedule,
    key: Array,
    moments: str,
    regrow: str,
    remask_target: bool,
) -> Network:
    fraction = update_fraction(count, schedule.zeta0, schedule.t_end)
    chance = random_scores(key, scores)
    scores = jax.tree.map(lambda g, r: jnp.where(schedule.random, r, g), scores, chance)
    new = evolution(network.params, network.masks, scores, fraction, regrow=regrow)
    inherit = lambda tree: jax.tree.map(  # noqa: E731
        lambda x, keep: jnp.where(keep, x, 0.0), tree, new.inherited
    )
    adam_state = network.moments
    if moments == "zero":
        adam_state = adam_state._replace(mu=inherit(adam_state.mu), nu=inherit(adam_state.nu))
    target = network.target
    if target is not None and remask_target:
        target = inherit(target)
    return Network(new.params, new.masks, adam_state, target)


def polyak(network: Network, tau: Array) -> Params:
    """θ' ← τ θ + (1 - τ) θ', then θ' ← θ' ⊙ M_θ (Algorithm 5, line 24): the new target."""

    def mix(new: Array, old: Array, mask: Array) -> Array:
        t = tau.astype(old.dtype)
        return jnp.where(mask, t * new + (1.0 - t) * old, 0.0)

    return jax.tree.map(mix, network.params, network.target, network.masks)


def guard(grads: Params) -> tuple[Params, Array]:
    """`grads`, or zeros where any of them is not finite, and whether all were: bool[].

    So a network never takes in a non-finite number; the caller decides what to do with its lane.
    """
    finite = jnp.isfinite(sum(jnp.sum(g) for g in jax.tree.leaves(grads)))
    return jax.tree.map(lambda g: jnp.where(finite, g, 0.0), grads), finite
