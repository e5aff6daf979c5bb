"""Topology evolution of a network in the compact form, with its moments and its target.

Growth scores need what a network of live links does not compute: the gradient of absent links.
The loss is therefore differentiated a second time on a mask update, with respect to a probe that
yields each layer's input x and output gradient g_y; the score g_y xᵀ is formed tile by tile.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rlx2_jax import compact
from rlx2_jax.networks import TWINS, Linked
from rlx2_jax.topology import Schedule, random_scores
from rlx2_jax.types import Array, Network, Params

Scores = list[tuple[Array, Array]]  # per layer x [in, rows] and g_y [out, rows]; twins: [2, ...]


def growth_scores(
    network: Network, loss: Callable[[Params], tuple[Array, Any]], rows: int, finite: Array
) -> Scores:
    """What growth goes by, or zeros where the gradient is not `finite`."""
    index: compact.Index = network.masks
    probe = compact.make_probe(index.spec, rows, network.params.dtype)
    split = partial(compact.growth_inputs, index.spec, batch=rows)
    if network.params.ndim == 2:
        probe = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(TWINS), *x.shape)), probe)
        split = jax.vmap(split)
    slope = jax.grad(lambda p: loss(Linked(network.params, index, p))[0])(probe)
    return jax.tree.map(lambda x: jnp.where(finite, x, 0.0), split(slope))


def evolve_network(
    network: Network,
    scores: Scores,
    count: Array,
    schedule: Schedule,
    key: Array,
    *,
    regrow: str,
    random_growth: bool,
) -> Network:
    """One drop-and-grow step (Algorithm 1): values, moments and target follow their links, new
    links begin at zero in all of them. Random scores are those of the masked form."""
    index: compact.Index = network.masks
    fraction = schedule.fraction(count)
    grow: list[Any] = list(scores)
    if random_growth:  # some lane wants [in, out] random scores, so all have [in, out] scores
        product = partial(jnp.einsum, "...ib,...ob->...io", precision=jax.lax.Precision.HIGHEST)
        chance = _random_kernels(key, index.spec, network.params)
        grow = [jnp.where(schedule.random, r, product(x, g)) for r, (x, g) in zip(chance, scores)]
    vectors = (network.params, network.moments.mu, network.moments.nu, network.target)

    def one(index: compact.Index, grow: list[Any], vectors: tuple[Any, ...]):
        new, source = compact.evolve(vectors[0], index, grow, fraction, regrow=regrow)
        moved = [None if v is None else compact.remap(source, v)[0] for v in vectors]
        return new, moved

    step = jax.vmap(one) if network.params.ndim == 2 else one
    new, (params, mu, nu, target) = step(index, grow, vectors)
    moments = network.moments._replace(mu=mu, nu=nu)
    return network._replace(params=params, masks=new, moments=moments, target=target)


def _random_kernels(key: Array, spec: compact.Spec, params: Array) -> list[Array]:
    """SET's scores for every layer: [in, out], of twins [2, in, out]."""
    shape = partial(jax.ShapeDtypeStruct, dtype=params.dtype)
    layers: Params = {
        name: {"kernel": shape((n_in, n_out)), "bias": shape((n_out,))}
        for name, (n_in, n_out) in zip(spec.names, spec.shapes)
    }
    if params.ndim == 1:
        drawn = random_scores(key, layers)
        return [drawn[name]["kernel"] for name in spec.names]
    drawn = random_scores(key, dict.fromkeys(TWINS, layers))
    return [jnp.stack([drawn[twin][name]["kernel"] for twin in TWINS]) for name in spec.names]
