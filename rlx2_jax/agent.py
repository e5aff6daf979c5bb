"""What TD3 and SAC share: how a network begins, the delayed switch, the options of topology."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rlx2_jax import masks, networks, optimize
from rlx2_jax.config import Config, Hyper, Lane, resolve
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
) -> Network:
    """A sparse network and its target: θ ← θ ⊙ M_θ, θ' ← θ (Algorithm 5, lines 1-3).

    Equal keys give equal dense weights, whatever the sparsity. `names` makes a dict of several
    networks of the same sizes (the twin critics); Tiny's `width` a small dense block.
    """
    if names:
        parts = [
            make_network(k, config, lane, sizes, sparsity, width, target=target)
            for k in jax.random.split(key, len(names))
        ]
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
    return optimize.init(params, mask, target=own_target)


def switched_n(step: Array, count: Array, config: Config, hyper: Hyper) -> Array:
    """N = 1 while t < T_0, then n (Algorithm 5, line 10); t counts updates or steps."""
    t = count if config.switch == "updates" else step
    return jnp.where(t < hyper.t0, 1, hyper.n)


def topology_options(config: Config) -> dict[str, Any]:
    """The static choices that `optimize.step` takes from a `Config`."""
    return {
        "interval": config.mask_interval,
        "mask_step": config.mask_step,
        "moments": config.moments,
        "regrow": config.regrow,
        "remask_target": config.targets == "masked",
    }
