"""Dense multilayer perceptrons on CPUs through the kernel library, for masked networks.

    mlp(θ, x)[j] = relu(... relu(x W_0 + b_0) ...) W_{L-1} + b_{L-1}  of network j

One forward and one backward kernel call for several networks of the same sizes on the same input
(an ensemble of critics), with bias, ReLU and its backward mask fused into the products. Skips rows
of weights that are zero within a block of columns, which are common under a mask. The gradient is
dense, as in plain XLA. Works under jit, vmap (lanes), grad and scan; other platforms use plain XLA.
"""

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from rlx2_jax.control_flow import over_members
from rlx2_jax.kernels import native
from rlx2_jax.kernels.precision import product
from rlx2_jax.types import Array, Params

# Below this number of rows or multiply-adds a kernel call costs more than it saves.
_FEWEST_ROWS = 32
_LEAST_WORK = 1_000_000

Layers = tuple[tuple[Array, Array], ...]  # (kernel [nets, in, out], bias [nets, out]) per layer


def layers(params: Params) -> Layers:
    """The layers of masked networks, in order."""
    names = [f"Dense_{i}" for i in range(len(params))]
    return tuple((params[name]["kernel"], params[name]["bias"]) for name in names)


def mlp(params: Params, x: Array, *, first: int | None = None, precision: str = "float32") -> Array:
    """Outputs of several networks for `x: [batch, in]`: `[nets, batch, out]`.

    Args:
      params: layers whose arrays have a leading axis of networks.
      first: evaluate only the first networks; default: all. Disables gradients by `params`.
      precision: of products, see `precision.product`; the kernels support only float32.
    """
    net = layers(params)
    nets = first or net[0][0].shape[0]
    if precision != "float32" or not _is_faster(net, x):
        plain = lambda net: _plain_forward(net, x, precision)[0]  # noqa: E731
        return over_members(plain, net, members=nets)
    return _mlp(nets, net, x)


@contextlib.contextmanager
def plain_xla() -> Iterator[None]:
    """Code traced in this context uses plain XLA, which supports derivatives of any order; the
    kernels support only first derivatives."""
    token = _plain_only.set(True)
    try:
        yield
    finally:
        _plain_only.reset(token)


_plain_only = contextvars.ContextVar("plain_only", default=False)


def _is_faster(net: Layers, x: Array) -> bool:
    """Whether the kernels are available and faster; decided while tracing."""
    if _plain_only.get():
        return False
    work = x.shape[0] * sum(kernel.size // kernel.shape[0] for kernel, _ in net)
    dtypes = {leaf.dtype for leaf in jax.tree.leaves((net, x))}
    return (
        x.shape[0] >= _FEWEST_ROWS
        and work >= _LEAST_WORK
        and dtypes in ({jnp.dtype("float32")}, {jnp.dtype("float64")})
        and native.execution() == "native"
    )


def _plain_forward(net: Layers, x: Array, precision: str = "float32") -> tuple[Array, list[Array]]:
    """The output of one network and the activations of its hidden layers, in plain XLA."""
    hidden = []
    for i, (kernel, bias) in enumerate(net):
        x = product(x, kernel, precision)
        x = x + jnp.broadcast_to(bias, x.shape)
        if i + 1 < len(net):
            x = jax.nn.relu(x)
            hidden.append(x)
    return x, hidden


def _plain_backward(
    net: Layers, acts: Sequence[Array], x: Array, dy: Array
) -> tuple[Array, list[tuple[Array, Array]]]:
    """Gradients of one network's input and layers; XLA removes unused results."""
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
    """The gradients that a backward pass must return (a static residual, without arrays)."""

    params: bool
    dx: bool


def _attributes(net: Layers, nets: int) -> dict:
    sizes = (net[0][0].shape[1], *(kernel.shape[2] for kernel, _ in net))
    return {"widths": np.array(sizes, np.int64), "nets": np.int64(nets)}


def _first(net: Layers, nets: int) -> Layers:
    return jax.tree.map(lambda leaf: leaf[:nets], net)


def _forward(nets: int, net: Layers, x: Array, keep: bool) -> tuple[Array, list[Array]]:
    """y [nets, batch, out] and, if kept, per hidden layer the activations [nets, batch, n]."""
    hidden = len(net) - 1 if keep else 0

    def kernel(net, x):
        shape = functools.partial(jax.ShapeDtypeStruct, dtype=x.dtype)
        widths = [kernel.shape[2] for kernel, _ in net]
        out = [shape((nets, x.shape[0], n)) for n in (widths[-1], *widths[:hidden])]
        call = jax.ffi.ffi_call("rlx2_dense_forward", out, vmap_method="expand_dims")
        y, *acts = call(x, *jax.tree.leaves(net), **_attributes(net, nets))
        return y, acts

    def plain(net, x):
        y, acts = jax.vmap(_plain_forward, (0, None))(_first(net, nets), x)
        return y, acts[:hidden]

    return jax.lax.platform_dependent(net, x, cpu=kernel, default=plain)


def _backward(nets: int, wanted: _Wanted, net: Layers, acts, x: Array, dy: Array):
    """(gradients of the layers, dx), each None if not wanted."""

    def kernel(net, acts, x, dy):
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), net)
        leaves, treedef = jax.tree.flatten(shapes)
        dx = (nets, *x.shape) if wanted.dx else (0, 0, 0)
        out = [jax.ShapeDtypeStruct(dx, x.dtype), *(leaves if wanted.params else [])]
        call = jax.ffi.ffi_call("rlx2_dense_backward", out, vmap_method="expand_dims")
        dx, *grads = call(
            x, dy, *(kernel for kernel, _ in net), *acts,
            batch=np.int64(x.shape[0]), need_dx=wanted.dx, **_attributes(net, nets),
        )  # fmt: skip
        grads = jax.tree.unflatten(treedef, grads) if wanted.params else None
        return grads, dx.sum(0) if wanted.dx else None

    def plain(net, acts, x, dy):
        backward = jax.vmap(_plain_backward, (0, 0, None, 0))
        dx, grads = backward(_first(net, nets), acts, x, dy)
        return tuple(grads) if wanted.params else None, dx.sum(0) if wanted.dx else None

    return jax.lax.platform_dependent(net, acts, x, dy, cpu=kernel, default=plain)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _mlp(nets: int, net: Layers, x: Array) -> Array:
    return _forward(nets, net, x, keep=False)[0]


def _mlp_fwd(nets, net, x):
    is_marked = lambda leaf: hasattr(leaf, "perturbed")  # noqa: E731
    marked = jax.tree.leaves(net, is_leaf=is_marked)
    wanted = _Wanted(any(leaf.perturbed for leaf in marked), x.perturbed)
    net = jax.tree.map(lambda leaf: leaf.value, net, is_leaf=is_marked)
    if wanted.params and net[0][0].shape[0] != nets:
        raise ValueError(f"only the first {nets} networks are evaluated: no gradient by params")
    y, acts = _forward(nets, net, x.value, keep=True)
    return y, (wanted, net, acts, x.value)


def _mlp_bwd(nets, residual, dy):
    wanted, net, acts, x = residual
    if isinstance(dy, SymbolicZero):
        dy = jnp.zeros(dy.shape, x.dtype)
    grads, dx = _backward(nets, wanted, net, acts, x, dy)
    return grads if wanted.params else jax.tree.map(lambda _: None, net), dx


_mlp.defvjp(_mlp_fwd, _mlp_bwd, symbolic_zeros=True)
