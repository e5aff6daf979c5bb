"""Masked and compact training of the same lanes, from the same keys."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from lanes import assert_close, assert_equal, over_lanes, quick, setting, stack, windows

from rlx2_jax import config
from rlx2_jax.agents import ALGORITHMS
from rlx2_jax.networks import convert

# SET has random scores; the others have different live links in every layer (padding) or dates.
LANES = (
    config.Lane(seed=3, method="set", mask_interval=8, zeta0=0.3),
    config.Lane(seed=4, method="rigl", actor_sparsity=0.88, critic_sparsity=0.86),
    config.Lane(seed=5, method="rlx2", t0=20, n=2, t_end=60),
    config.Lane(seed=6, method="tiny"),
)


def settings(algo: str, lanes: tuple[config.Lane, ...], **fields: Any):
    """The masked and the compact program of `lanes`, sized for the largest lane."""
    masked = setting(algo, **fields)
    own = [config.lane_links(masked, one) for one in lanes]
    room = config.Links(*(tuple(map(max, zip(*(o[i] for o in own)))) for i in (0, 1)))
    return masked, dataclasses.replace(masked, execution="compact", links=room)


def start(algo: str, cfg: config.Config, lanes: tuple[config.Lane, ...]) -> Any:
    init = ALGORITHMS[algo].init
    return quick(lambda: stack([init(jax.random.key(x.seed), cfg, x) for x in lanes]))()


def dense(state: Any) -> Any:
    """A stacked state in the masked form."""
    both = {name: jax.vmap(convert.to_masked)(getattr(state, name)) for name in ("actor", "critic")}
    return state._replace(**both)


def trainer(algo: str, cfg: config.Config, lanes: tuple[config.Lane, ...], dtype: str):
    """`train(state, first, last)`: updates whose batches and keys depend only on the count."""
    update = over_lanes(ALGORITHMS[algo], cfg)
    hypers = stack([config.hyper(cfg, one) for one in lanes])
    keys = jax.vmap(jax.random.key)(jnp.arange(len(lanes)))
    batches = windows(0, 64, len(lanes), 16, dtype=dtype)

    def train(state: Any, first: jax.Array, last: jax.Array) -> Any:
        def body(t: jax.Array, state: Any) -> Any:
            batch = jax.tree.map(lambda x: x[t % 64], batches)
            return update(state, batch, keys, t, hypers)[0]

        return jax.lax.fori_loop(first, last + 1, body, state)

    return quick(train)


def masks_of(state: Any) -> Any:
    """Masks of the kernels. Units outside of Tiny's block have no links, so their biases stay 0
    in both forms; only the masked form marks them."""
    masks = jax.tree_util.tree_leaves_with_path((state.actor.masks, state.critic.masks))
    return [leaf for path, leaf in masks if path[-1].key == "kernel"]


def numbers_of(state: Any) -> Any:
    """All trained arrays, without masks."""
    nets = {name: getattr(state, name)._replace(masks=None) for name in ("actor", "critic")}
    return state._replace(**nets)


def compare_float64(algo: str, lanes: tuple[config.Lane, ...], updates: int, **fields: Any):
    """After these updates both forms have the same links, and values equal to 1e-9."""
    with jax.enable_x64(True):
        cfgs = settings(algo, lanes, dtype="float64", steps=2 * updates, **fields)
        states = [start(algo, cfg, lanes) for cfg in cfgs]
        first = masks_of(states[0])
        trains = [trainer(algo, cfg, lanes, "float64") for cfg in cfgs]
        one, last = jnp.int32(1), jnp.int32(updates)
        masked, links = (dense(f(state, one, last)) for f, state in zip(trains, states))
        assert_equal(masks_of(masked), masks_of(links))
        assert_close(numbers_of(masked), numbers_of(links), 1e-9)
        assert any((a != b).any() for a, b in zip(first, masks_of(links)))
