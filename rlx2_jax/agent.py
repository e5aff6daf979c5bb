"""What TD3 and SAC share: how a network begins, the delayed switch, the options of topology."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rlx2_jax import compact, forms, masks, networks, optimize
from rlx2_jax.config import Config, Hyper, Lane, live_links, resolve, widths
from rlx2_jax.types import Array, Network


def make_network(
    key: Array,
    config: Config,
    lane: Lane,
    sizes: Sequence[int],
    sparsity: float | Sequence[float],
    width: int | None,
    *,
    names: Sequence[str] = (),
    target: bool = True,
    links: tuple[int, ...] = (),
) -> Network:
    """A sparse network and its target: θ ← θ ⊙ M_θ, θ' ← θ (Algorithm 4, lines 1-3).

    Equal keys give equal dense weights, whatever the sparsity and the form. `names` makes a dict
    of several networks of the same sizes (the twin critics; in the compact form one network with a
    leading axis); Tiny's `width` a small dense block; `links` is the room of each layer in the
    compact form.
    """
    if names:
        parts = [
            make_network(k, config, lane, sizes, sparsity, width, target=target, links=links)
            for k in jax.random.split(key, len(names))
        ]
        if config.execution == "compact":
            both = jax.tree.map(lambda *x: jnp.stack(x), *parts)
            return optimize.init(both.params, both.masks, target=both.target)
        params, mask, dense = (dict(zip(names, (part[i] for part in parts))) for i in (0, 1, 3))
        return optimize.init(params, mask, target=dense if target else None)
    lane = resolve(config, lane)
    weight_key, mask_key = jax.random.split(key)
    dense, block = networks.init(
        weight_key, sizes, scheme=config.scheme, width=width, dtype=config.dtype
    )
    chosen = masks.init(
        mask_key,
        dense,
        0.0 if width else sparsity,
        distribution=lane.distribution,
        init=config.mask_init,
    )
    mask = jax.tree.map(jnp.logical_and, chosen, block)
    params = masks.apply(dense, mask)
    own_target = None
    if target:  # arrays of its own, so that a whole state can be donated
        own_target = jax.tree.map(jnp.copy, params if config.targets == "masked" else dense)
    network = optimize.init(params, mask, target=own_target)
    if config.execution == "compact":
        names = tuple(f"Dense_{i}" for i in range(len(sizes) - 1))
        return forms.to_compact(network, compact.Spec(tuple(sizes), links, names))
    return network


def make_actor(key: Array, config: Config, lane: Lane, *, target: bool = True) -> Network:
    """π_φ of a lane, with a target where the algorithm has one."""
    lane = resolve(config, lane)  # a dense lane's sparsities are 0, whatever it says
    return make_network(
        key,
        config,
        lane,
        config.actor_sizes,
        lane.actor_sparsity,
        widths(config, lane)[0],
        target=target,
        links=live_links(config, lane).actor,
    )


def make_critic(key: Array, config: Config, lane: Lane) -> Network:
    """Q_θ1 and Q_θ2 of a lane, with their targets."""
    lane = resolve(config, lane)
    return make_network(
        key,
        config,
        lane,
        config.critic_sizes,
        lane.critic_sparsity,
        widths(config, lane)[1],
        names=networks.TWINS,
        links=live_links(config, lane).critic,
    )


def switched_n(step: Array, count: Array, config: Config, hyper: Hyper) -> Array:
    """N = 1 while t < T_0, then n (Algorithm 4, line 10); t counts updates or steps."""
    t = count if config.switch == "updates" else step
    return jnp.where(t < hyper.t0, 1, hyper.n)


def topology_options(config: Config) -> dict[str, Any]:
    """The static choices that `optimize.learn` takes from a `Config`."""
    return {
        "rows": config.batch_size,
        "grow": config.grow,
        "drop": config.drop,
        "interval": config.mask_interval,
        "mask_step": config.mask_step,
        "moments": config.moments,
        "regrow": config.regrow,
        "remask_target": config.targets == "masked",
    }
