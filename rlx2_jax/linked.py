"""Topology evolution of a network in the compact form, with its moments and its target.

Growth scores need what a network of live links does not compute: the gradient of absent links.
The loss is therefore differentiated a second time on a mask update, with respect to a probe that
yields each layer's input x and output gradient g_y; the score g_y xᵀ is formed tile by tile.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rlx2_jax import compact, rules
from rlx2_jax.networks import TWINS, Linked
from rlx2_jax.topology import Schedule
from rlx2_jax.types import Array, Network, Params


def growth_factors(
    network: Network, loss: Callable[[Params], tuple[Array, Any]], rows: int, finite: Array
) -> list[rules.Factors]:
    """The dense gradient of each layer in factors (of twins: [2, ...]), or zeros where the
    gradient is not `finite`."""
    index: compact.Index = network.masks
    probe = compact.make_probe(index.spec, rows, network.params.dtype)
    split = partial(compact.growth_inputs, index.spec, batch=rows)
    if network.params.ndim == 2:
        probe = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(TWINS), *x.shape)), probe)
        split = jax.vmap(split)
    slope = jax.grad(lambda p: loss(Linked(network.params, index, p))[0])(probe)
    found = jax.tree.map(lambda x: jnp.where(finite, x, 0.0), split(slope))
    return [rules.Factors(x, g) for x, g in found]


def evolve_network(
    network: Network,
    grads: Array,
    factors: list[rules.Factors],
    count: Array,
    schedule: Schedule,
    key: Array,
    *,
    regrow: str,
    grow: Sequence[str],
    drop: Sequence[str],
) -> Network:
    """One drop-and-grow step (Algorithm 1): values, moments and target follow their links, new
    links begin at zero in all of them. Random scores are those of the masked form."""
    index: compact.Index = network.masks
    spec, fraction, twins = index.spec, schedule.fraction(count), network.params.ndim == 2
    uniform = _uniform(spec, network.params)
    vectors = (network.params, network.moments.mu, network.moments.nu, network.target)

    def one(twin: Array | int, index: compact.Index, factors: Any, grads: Array, vectors: Any):
        growth, keep = [], []
        for i, part in enumerate(spec.slices("values")):
            weight, mu, nu = (v[part] for v in vectors[:3])
            drawn = lambda key, i=i: uniform(key, twin, i)  # noqa: E731
            layer = rules.Layer(weight, grads[part], mu, nu, factors[i], drawn)
            growth.append(rules.select([rules.GROW[r](key, layer) for r in grow], schedule.grow))
            keep.append(rules.select([rules.DROP[r](layer) for r in drop], schedule.drop))
        new, source = compact.evolve(
            vectors[0], index, growth, fraction, keep_scores=jnp.concatenate(keep), regrow=regrow
        )
        moved = [None if v is None else compact.remap(source, v)[0] for v in vectors]
        return new, moved

    arguments = (jnp.arange(len(TWINS)) if twins else 0, index, factors, grads, vectors)
    new, (params, mu, nu, target) = (jax.vmap(one) if twins else one)(*arguments)
    moments = network.moments._replace(mu=mu, nu=nu)
    return network._replace(params=params, masks=new, moments=moments, target=target)


def _uniform(spec: compact.Spec, params: Array) -> Callable[[Array, Array | int, int], Array]:
    """`(key, twin, layer)` to [in, out], the numbers that the masked form draws."""
    shapes: Params = {
        name: {"kernel": (n_in, n_out), "bias": (n_out,)}
        for name, (n_in, n_out) in zip(spec.names, spec.shapes)
    }
    twins = len(TWINS) if params.ndim == 2 else 1
    leaves, treedef = jax.tree.flatten([shapes] * twins, is_leaf=lambda x: isinstance(x, tuple))
    parts = jax.tree.unflatten(treedef, rules.shared_uniform(leaves, params.dtype))

    def uniform(key: Array, twin: Array | int, layer: int) -> Array:
        name = spec.names[layer]
        return jnp.stack([part[name]["kernel"](key) for part in parts])[twin]

    return uniform
