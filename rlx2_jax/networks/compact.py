"""Compact networks: one vector of the live links, and an index of their positions.

Used for sparse networks on CPUs: memory and time are proportional to the number of links. Has the
same functions as `masked`. The vector also holds biases and all other trainable parameters, so
Adam, Polyak averaging and mask updates are one pass each.

Growth scores need the gradient of absent links, which a compact network does not compute. On a mask
update the loss is therefore differentiated a second time, with respect to a probe that yields each
layer's input x and output gradient g_y; the score g_y xᵀ is computed in tiles.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rlx2_jax.kernels import adam, compact_mlp, layout
from rlx2_jax.networks import base
from rlx2_jax.networks.evolution import Evolution, Gradient, Update
from rlx2_jax.networks.linear import CompactKernel
from rlx2_jax.sparse import compact_topology, rules
from rlx2_jax.sparse.lane_topology import RIGL
from rlx2_jax.types import Array, Masks, Network, Params


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["flat", "index", "stats", "key", "probes"],
    meta_fields=["members", "module"],
)
@dataclasses.dataclass(frozen=True)
class Bound:
    """A network as a callable: its trainable vector and the index of its links.

    In an ensemble every array except `stats` has a leading axis; its members are lanes of one
    kernel call. `probes` are set to differentiate the loss for growth scores.
    """

    flat: Array  # [parameters], or [members, parameters]
    index: layout.Index
    members: int | None = None
    module: Any = None
    stats: Params | None = None
    key: Array | None = None  # for modules that draw random numbers
    probes: tuple[compact_mlp.Probe, ...] | None = None

    def __call__(self, x: Array) -> Array:
        """`[..., in] -> [..., out]`, or `[members, ..., out]` for an ensemble."""
        if self.members is None:
            key = jax.tree.map(lambda keys: keys[0], base.member_keys(self.key, None))
            return self._apply(self.flat, self.index, self.probes, key, x)
        return self._members(x, None)

    def first(self, x: Array) -> Array:
        """Output of the first member: `[..., out]`."""
        members = (self.flat, self.index, self.probes, base.member_keys(self.key, self.members))
        flat, index, probes, key = jax.tree.map(lambda leaf: leaf[0], members)
        return self._apply(flat, index, probes, key, x)

    def each(self, x: Array) -> Array:
        """The output of an ensemble on one input, with a separate copy for each member."""
        return self._members(jnp.stack([x] * (self.members or 1)), 0)

    def seeded(self, key: Array) -> "Bound":
        """The same network with random numbers, for a loss."""
        return dataclasses.replace(self, key=key)

    def _members(self, x: Array, axis: int | None) -> Array:
        keys = base.member_keys(self.key, self.members)
        apply = jax.vmap(self._apply, (0, 0, 0, 0, axis))
        return apply(self.flat, self.index, self.probes, keys, x)

    def _apply(self, flat: Array, index: layout.Index, probes: Any, key: Any, x: Array) -> Array:
        rows = x.reshape(-1, x.shape[-1]).astype(flat.dtype)
        if base.is_chain(self.module):
            y = compact_mlp.mlp(flat, index, rows, probe=None if probes is None else probes[0])
        else:
            y = base.apply(self.module, _tree(flat, index, probes), self.stats, key, rows)
        return y.reshape(*x.shape[:-1], y.shape[-1])


def _tree(flat: Array, index: layout.Index, probes: tuple[compact_mlp.Probe, ...] | None) -> Params:
    """The parameters as a tree for a module, with kernels as `CompactKernel`s."""
    spec = index.spec
    values, biases, tree = layout.parts(flat, spec)
    for i, name in enumerate(spec.names):
        probe = None if probes is None else probes[i]
        tree[f"{name}/kernel"] = CompactKernel(values[i], index.one(i), probe)
        tree[f"{name}/bias"] = biases[i]
    return layout.unflatten(tree)


def bind(
    params: Array,
    masks: layout.Index,
    members: int | None = None,
    module: Any = None,
    stats: Params | None = None,
) -> Bound:
    """Parameters (trained or target) as a callable."""
    return Bound(params, masks, members, module, stats)


def pack(network: Network, spec: layout.Spec) -> Network:
    """Converts a masked network to a compact one, without the values off the mask.

    `spec` is static, so this can be traced; it must have room for all live links.
    """

    def convert(params: Params) -> layout.Compact:
        one = functools.partial(layout.from_masked, spec=spec)
        return (one if network.members is None else jax.vmap(one))(params, network.masks)

    net = convert(network.params)
    target = None if network.target is None else convert(network.target).flat
    mu, nu = convert(network.moments.mu).flat, convert(network.moments.nu).flat
    moments = network.moments._replace(mu=mu, nu=nu)
    fields = {"params": net.flat, "masks": net.index, "moments": moments, "target": target}
    return network._replace(**fields, form="compact")


def unpack(network: Network) -> Network:
    """Converts a compact network to a masked one."""

    def dense(flat: Array) -> Params:
        return _dense(flat, network.masks, network.members)[0]

    params, masks = _dense(network.params, network.masks, network.members)
    moments = network.moments._replace(mu=dense(network.moments.mu), nu=dense(network.moments.nu))
    target = None if network.target is None else dense(network.target)
    fields = {"params": params, "masks": masks, "moments": moments, "target": target}
    return network._replace(**fields, form="masked")


def dense_masks(masks: layout.Index, members: int | None = None) -> Masks:
    """The masks as boolean arrays."""
    shape = (masks.spec.parameters,) if members is None else (members, masks.spec.parameters)
    return _dense(jnp.zeros(shape), masks, members)[1]


def _dense(flat: Array, index: layout.Index, members: int | None) -> tuple[Params, Masks]:
    one = lambda flat, index: layout.to_masked(layout.Compact(flat, index))  # noqa: E731
    return (one if members is None else jax.vmap(one))(flat, index)


def optimizer_masks(network: Network) -> Masks:
    """Masks for the optimizer step: none, all parameters are live."""
    del network


def dense_gradients(
    network: Network,
    loss: Callable[[Params], tuple[Array, Any]],
    grads: Array,
    rows: int,
) -> dict[str, Array]:
    """The gradients of the kernels, including absent links; zeros if any is not finite.
    Differentiates `loss` a second time, as for a mask update."""
    factors = _growth_factors(network, loss, rows, adam.guard(grads)[1])
    names = network.masks.spec.names
    return {f"{name}/kernel": rules.dense(x) for name, x in zip(names, factors, strict=True)}


def polyak(network: Network, tau: Array) -> Network:
    """θ' ← τ θ + (1 - τ) θ' (Algorithm 4, line 23)."""
    t, old = tau.astype(network.params.dtype), jnp.asarray(network.target)
    return network._replace(target=t * network.params + (1.0 - t) * old)


def evolve(network: Network, gradient: Gradient, update: Update, evolution: Evolution) -> Network:
    """One drop-and-grow step (Algorithm 1): values, moments and target move with their links, and
    start at zero on new links. Random scores are the same as for masked networks."""
    if evolution.topology != RIGL:
        raise ValueError(
            f"compact networks only drop and grow within layers, not {evolution.topology}"
        )
    if gradient.leak is not None or evolution.moments != "zero" or not evolution.remask_target:
        raise ValueError("compact networks store no absent links: none to leak to, keep or unmask")
    count, schedule, key = update
    guarded, finite = adam.guard(gradient.grads)
    factors = _growth_factors(gradient.at, gradient.loss, evolution.rows, finite)
    index: layout.Index = network.masks
    spec, fraction = index.spec, evolution.topology.fraction(schedule, count)
    leaves = spec.leaves
    uniform = rules.member_uniform(
        list(leaves.values()), network.members or 1, network.params.dtype
    )
    kernels = [list(leaves).index(f"{name}/kernel") for name in spec.names]
    vectors = (network.params, network.moments.mu, network.moments.nu, network.target)

    def one(
        member: Array | int,
        index: layout.Index,
        factors: Any,
        grads: Array,
        vectors: Any,
        smoothed: Any,
    ):
        growth, keep = [], []
        for i, part in enumerate(spec.slices("values")):
            weight, mu, nu = (v[part] for v in vectors[:3])
            drawn = functools.partial(uniform, member, kernels[i])
            average = smoothed.get(f"{spec.names[i]}/kernel")
            layer = rules.Layer(weight, grads[part], mu, nu, factors[i], drawn, average)
            growth.append(
                rules.select([rules.GROW[r](key, layer) for r in evolution.grow], schedule.grow)
            )
            keep.append(rules.select([rules.DROP[r](layer) for r in evolution.drop], schedule.drop))
        new, source = compact_topology.evolve(
            vectors[0],
            index,
            growth,
            fraction,
            keep_scores=jnp.concatenate(keep),
            regrow=evolution.regrow,
        )
        moved = [None if v is None else compact_topology.remap(source, v)[0] for v in vectors]
        return new, moved

    members = 0 if network.members is None else jnp.arange(network.members)
    step = one if network.members is None else jax.vmap(one)
    new, (params, mu, nu, target) = step(
        members, index, factors, guarded, vectors, network.smoothed or {}
    )
    state = network.moments._replace(mu=mu, nu=nu)
    return network._replace(params=params, masks=new, moments=state, target=target)


def _growth_factors(
    network: Network, loss: Callable[[Params], tuple[Array, Any]], rows: int, finite: Array
) -> list[rules.Factors]:
    """The factored dense gradient of each layer ([members, ...] for ensembles), or zeros if the
    gradient is not `finite`."""
    index: layout.Index = network.masks
    specs = _calls(network)
    probes = tuple(compact_mlp.make_probe(spec, rows, network.params.dtype) for spec in specs)
    if network.members is not None:
        probes = jax.tree.map(lambda x: jnp.broadcast_to(x, (network.members, *x.shape)), probes)
    bound = Bound(network.params, index, network.members, network.module, network.stats)
    slopes = jax.grad(lambda p: loss(dataclasses.replace(bound, probes=p))[0])(probes)
    factors = []
    for spec, slope in zip(specs, slopes):
        split = functools.partial(compact_mlp.growth_inputs, spec, batch=rows)
        factors += split(slope) if network.members is None else jax.vmap(split)(slope)
    factors = jax.tree.map(lambda x: jnp.where(finite, x, 0.0), factors)
    return [rules.Factors(x, g) for x, g in factors]


def _calls(network: Network) -> list[layout.Spec]:
    """One spec per kernel call: the whole chain, or each layer of other modules."""
    spec = network.masks.spec
    if base.is_chain(network.module):
        return [spec]
    return [spec.layer(i) for i in range(len(spec.nnz))]
