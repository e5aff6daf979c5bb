"""Dense multilayer perceptrons on a CPU through the kernel library: the masked form's products.

    mlp([θ_1, ..., θ_k], x)[j] = relu(... relu(x W_0 + b_0) ...) W_{L-1} + b_{L-1}  of θ_j

One forward and one backward call for several networks of the same sizes on the same input (twin
critics), with bias, ReLU and its mask part of the products; where a row of weights is zero in a
whole block of columns, as it often is under a mask, it is left out. The gradient is the dense one,
of every weight, as plain XLA's is. Works under jit, vmap (lanes), grad and scan; on other platforms
the same functions are plain XLA.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from rlx2_jax.compact import native
from rlx2_jax.types import Array, Params

# Below so many rows or multiply-adds a call costs more than it saves.
_FEWEST_ROWS = 32
_LEAST_WORK = 1_000_000

Layers = tuple[tuple[Array, Array], ...]  # (kernel, bias) of each layer


def layers(params: Params) -> Layers:
    """The layers of one masked network, in order."""
    names = [f"Dense_{i}" for i in range(len(params))]
    return tuple((params[name]["kernel"], params[name]["bias"]) for name in names)


def mlp(nets: Sequence[Params], x: Array) -> Array:
    """Outputs of networks of the same sizes for `x: [batch, in]`: `[networks, batch, out]`."""
    found = tuple(layers(params) for params in nets)
    if not _pays(found, x):
        return jnp.stack([_plain_forward(net, x)[0] for net in found])
    return _mlp(found, x)


def _pays(nets: tuple[Layers, ...], x: Array) -> bool:
    """Whether the kernels are there and faster; all of this is known when tracing."""
    kernels = [kernel for kernel, _ in nets[0]]
    work = x.shape[0] * sum(kernel.size for kernel in kernels)
    alike = {leaf.dtype for leaf in jax.tree.leaves((nets, x))}
    return (
        x.shape[0] >= _FEWEST_ROWS
        and work >= _LEAST_WORK
        and alike in ({jnp.dtype("float32")}, {jnp.dtype("float64")})
        and native.execution() == "native"
    )


def _plain_forward(net: Layers, x: Array) -> tuple[Array, list[Array]]:
    """The output and the hidden layers' activations, in plain XLA."""
    hidden = []
    for i, (kernel, bias) in enumerate(net):
        x = x @ kernel
        x = x + jnp.broadcast_to(bias, x.shape)
        if i + 1 < len(net):
            x = jax.nn.relu(x)
            hidden.append(x)
    return x, hidden


def _plain_backward(
    net: Layers, acts: Sequence[Array], x: Array, dy: Array
) -> tuple[Array, list[tuple[Array, Array]]]:
    """Gradients of the input and of each layer; XLA drops what is not used."""
    inputs, grads = [x, *acts], []
    for i in reversed(range(len(net))):
        grads.append((inputs[i].T @ dy, dy.sum(0)))
        dy = dy @ net[i][0].T
        if i:
            dy = jnp.where(inputs[i] > 0, dy, 0)
    return dy, grads[::-1]


@functools.partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=["params", "dx"])
@dataclasses.dataclass(frozen=True)
class _Wanted:
    """Which gradients a backward pass must yield (static: a residual without arrays)."""

    params: bool
    dx: bool


def _sizes(nets: tuple[Layers, ...]) -> tuple[int, ...]:
    kernels = [kernel for kernel, _ in nets[0]]
    return (kernels[0].shape[0], *(kernel.shape[1] for kernel in kernels))


def _attributes(nets: tuple[Layers, ...]) -> dict:
    return {"widths": np.array(_sizes(nets), np.int64), "nets": np.int64(len(nets))}


def _forward(nets: tuple[Layers, ...], x: Array, keep: bool) -> tuple[Array, list[list[Array]]]:
    """y [nets, batch, out] and, to be kept, the activations of each network's hidden layers."""
    sizes, shape = _sizes(nets), functools.partial(jax.ShapeDtypeStruct, dtype=x.dtype)
    hidden = len(sizes) - 2 if keep else 0

    def kernel(nets, x):
        out = [shape((len(nets), x.shape[0], sizes[-1]))]
        out += [shape((x.shape[0], n)) for n in sizes[1 : 1 + hidden]] * len(nets)
        call = jax.ffi.ffi_call("rlx2_dense_forward", out, vmap_method="expand_dims")
        y, *acts = call(x, *jax.tree.leaves(nets), **_attributes(nets))
        return y, [acts[i * hidden : (i + 1) * hidden] for i in range(len(nets))]

    def plain(nets, x):
        found = [_plain_forward(net, x) for net in nets]
        return jnp.stack([y for y, _ in found]), [acts[:hidden] for _, acts in found]

    return jax.lax.platform_dependent(nets, x, cpu=kernel, default=plain)


def _backward(wanted: _Wanted, nets: tuple[Layers, ...], acts, x: Array, dy: Array):
    """(gradients of the layers, dx), each None where it is not wanted."""

    def kernel(nets, acts, x, dy):
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), nets)
        leaves, treedef = jax.tree.flatten(shapes)
        dx = (len(nets), *x.shape) if wanted.dx else (0, 0, 0)
        out = [jax.ShapeDtypeStruct(dx, x.dtype), *(leaves if wanted.params else [])]
        call = jax.ffi.ffi_call("rlx2_dense_backward", out, vmap_method="expand_dims")
        kernels = [kernel for net in nets for kernel, _ in net]
        dx, *grads = call(
            x, dy, *kernels, *jax.tree.leaves(acts),
            batch=np.int64(x.shape[0]), need_dx=wanted.dx, **_attributes(nets),
        )  # fmt: skip
        grads = jax.tree.unflatten(treedef, grads) if wanted.params else None
        return grads, dx.sum(0) if wanted.dx else None

    def plain(nets, acts, x, dy):
        found = [_plain_backward(net, a, x, g) for net, a, g in zip(nets, acts, dy)]
        grads = tuple(tuple(grads) for _, grads in found) if wanted.params else None
        return grads, sum(dx for dx, _ in found) if wanted.dx else None

    return jax.lax.platform_dependent(nets, acts, x, dy, cpu=kernel, default=plain)


@jax.custom_vjp
def _mlp(nets: tuple[Layers, ...], x: Array) -> Array:
    return _forward(nets, x, keep=False)[0]


def _mlp_fwd(nets, x):
    is_marked = lambda leaf: hasattr(leaf, "perturbed")  # noqa: E731
    marked = jax.tree.leaves(nets, is_leaf=is_marked)
    wanted = _Wanted(any(leaf.perturbed for leaf in marked), x.perturbed)
    nets = jax.tree.map(lambda leaf: leaf.value, nets, is_leaf=is_marked)
    y, acts = _forward(nets, x.value, keep=True)
    return y, (wanted, nets, acts, x.value)


def _mlp_bwd(residual, dy):
    wanted, nets, acts, x = residual
    if isinstance(dy, SymbolicZero):
        dy = jnp.zeros(dy.shape, x.dtype)
    grads, dx = _backward(wanted, nets, acts, x, dy)
    return grads if wanted.params else jax.tree.map(lambda _: None, nets), dx


_mlp.defvjp(_mlp_fwd, _mlp_bwd, symbolic_zeros=True)
