"""The compact form: one vector over the live links, and an index that says where they are.

The form of sparse networks on CPUs: memory and time follow the number of links. Has the same
functions as `masked`.

Growth scores need what a network of live links does not compute: the gradient of absent links. On
a mask update the loss is therefore differentiated a second time, with respect to a probe that
yields each layer's input x and output gradient g_y; the score g_y xᵀ is formed tile by tile.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rlx2_jax.kernels import adam, compact_mlp, layout
from rlx2_jax.sparse import compact_topology, rules
from rlx2_jax.sparse.topology import Schedule
from rlx2_jax.types import Array, Masks, Network, Params


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["flat", "index", "probe"],
    meta_fields=["members"],
)
@dataclasses.dataclass(frozen=True)
class Bound:
    """A network as a callable: its trainable vector and where the links are.

    An ensemble has a leading axis in every array: its members are lanes of one kernel call.
    `probe` is set when the loss is differentiated for growth scores (`compact_mlp.make_probe`).
    """

    flat: Array  # [parameters], or [members, parameters]
    index: layout.Index
    members: int | None = None
    probe: compact_mlp.Probe | None = None

    def __call__(self, x: Array) -> Array:
        """`[..., in] -> [..., out]`, or `[members, ..., out]` for an ensemble."""
        if self.members is None:
            return _apply(self.flat, self.index, self.probe, x)
        return jax.vmap(_apply, (0, 0, 0, None))(self.flat, self.index, self.probe, x)

    def first(self, x: Array) -> Array:
        """Output of the first member: `[..., out]`."""
        flat, index, probe = jax.tree.map(lambda a: a[0], (self.flat, self.index, self.probe))
        return _apply(flat, index, probe, x)

    def each(self, x: Array) -> Array:
        """The output of an ensemble whose members have an input of their own each."""
        inputs = jnp.stack([x] * (self.members or 1))
        return jax.vmap(_apply)(self.flat, self.index, self.probe, inputs)


def _apply(flat: Array, index: layout.Index, probe: compact_mlp.Probe | None, x: Array) -> Array:
    rows = x.reshape(-1, x.shape[-1]).astype(flat.dtype)
    y = compact_mlp.mlp(flat, index, rows, probe=probe)
    return y.reshape(*x.shape[:-1], y.shape[-1])


def bind(params: Array, masks: layout.Index, members: int | None = None) -> Bound:
    """Parameters (trained or target) as a callable."""
    return Bound(params, masks, members)


def pack(network: Network, spec: layout.Spec) -> Network:
    """A network in the masked form, in this form; what lies off the mask is dropped.

    `spec` is static, so that this can be traced; it must have room for all live links.
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
    """A network of this form, in the masked form."""

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
    """What the optimizer step must zero: nothing, all parameters are live."""
    del network


def polyak(network: Network, tau: Array) -> Network:
    """θ' ← τ θ + (1 - τ) θ' (Algorithm 4, line 23)."""
    t, old = tau.astype(network.params.dtype), jnp.asarray(network.target)
    return network._replace(target=t * network.params + (1.0 - t) * old)


def evolve(
    network: Network,
    loss: Callable[[Params], tuple[Array, Any]] | None,
    differentiated: Network | None,
    grads: Array,
    count: Array,
    schedule: Schedule,
    key: Array,
    *,
    rows: int = 0,
    scores: Params | None = None,
    leak: Params | None = None,
    grow: Sequence[str],
    drop: Sequence[str],
    moments: str,
    regrow: str,
    remask_target: bool,
) -> Network:
    """One drop-and-grow step (Algorithm 1): values, moments and target follow their links, new
    links start at zero in all of them. Random scores are those of the masked form.

    Args:
      loss: bound parameters to a value and anything else; it applies the network once, to a batch
        of `rows`.
      differentiated: the network at which `grads` is the gradient of `loss`.
      others: as in `optimize.learn`; those that concern dead links must have their defaults.
    """
    if leak is not None or scores is not None or moments != "zero" or not remask_target:
        raise ValueError("the compact form has no dead links: none to leak to, keep or unmask")
    assert loss is not None and differentiated is not None
    guarded, finite = adam.guard(grads)
    factors = _growth_factors(differentiated, loss, rows, finite)
    index: layout.Index = network.masks
    spec, fraction = index.spec, schedule.fraction(count)
    leaves = [leaf for name in sorted(spec.names) for leaf in _shapes(spec, name)]
    uniform = rules.member_uniform(leaves, network.members or 1, network.params.dtype)
    kernels = [2 * sorted(spec.names).index(name) + 1 for name in spec.names]
    vectors = (network.params, network.moments.mu, network.moments.nu, network.target)

    def one(member: Array | int, index: layout.Index, factors: Any, grads: Array, vectors: Any):
        growth, keep = [], []
        for i, part in enumerate(spec.slices("values")):
            weight, mu, nu = (v[part] for v in vectors[:3])
            drawn = functools.partial(uniform, member, kernels[i])
            layer = rules.Layer(weight, grads[part], mu, nu, factors[i], drawn)
            growth.append(rules.select([rules.GROW[r](key, layer) for r in grow], schedule.grow))
            keep.append(rules.select([rules.DROP[r](layer) for r in drop], schedule.drop))
        new, source = compact_topology.evolve(
            vectors[0], index, growth, fraction, keep_scores=jnp.concatenate(keep), regrow=regrow
        )
        moved = [None if v is None else compact_topology.remap(source, v)[0] for v in vectors]
        return new, moved

    members = 0 if network.members is None else jnp.arange(network.members)
    step = one if network.members is None else jax.vmap(one)
    new, (params, mu, nu, target) = step(members, index, factors, guarded, vectors)
    state = network.moments._replace(mu=mu, nu=nu)
    return network._replace(params=params, masks=new, moments=state, target=target)


def _growth_factors(
    network: Network, loss: Callable[[Params], tuple[Array, Any]], rows: int, finite: Array
) -> list[rules.Factors]:
    """The dense gradient of each layer in factors (of ensembles: [members, ...]), or zeros where
    the gradient is not `finite`."""
    index: layout.Index = network.masks
    probe = compact_mlp.make_probe(index.spec, rows, network.params.dtype)
    split = functools.partial(compact_mlp.growth_inputs, index.spec, batch=rows)
    if network.members is not None:
        probe = jax.tree.map(lambda x: jnp.broadcast_to(x, (network.members, *x.shape)), probe)
        split = jax.vmap(split)
    bound = lambda p: Bound(network.params, index, network.members, p)  # noqa: E731
    slope = jax.grad(lambda p: loss(bound(p))[0])(probe)
    found = jax.tree.map(lambda x: jnp.where(finite, x, 0.0), split(slope))
    return [rules.Factors(x, g) for x, g in found]


def _shapes(spec: layout.Spec, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of a layer's bias and kernel in the masked form, in the order of its leaves."""
    n_in, n_out = spec.shapes[spec.names.index(name)]
    return (n_out,), (n_in, n_out)
