"""A compact multilayer perceptron as one differentiable call.

    mlp(flat, index, x) = W_{L-1} relu(... relu(W_0 x + b_0) ...) + b_{L-1}

One forward and one backward kernel call per network, with bias, ReLU and its backward mask fused
into the products, and activations in the kernels' layout. Works under jit, vmap (over lanes with
different topologies, and over ensemble members), grad and scan. Uses the kernel library on CPUs if
available, else plain XLA, and lowers for every platform.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from rlx2_jax.kernels import compact_xla as fallback
from rlx2_jax.kernels import native
from rlx2_jax.kernels.layout import Array, Index, Spec


class Probe(NamedTuple):
    """A zero argument of `mlp` whose gradient gives the inputs of growth (see `growth_inputs`)."""

    acts: Array
    grads: Array


def mlp(
    flat: Array,
    index: Index,
    x: Array,
    *,
    relu_last: bool = False,
    feature_major: bool = False,
    probe: Probe | None = None,
) -> Array:
    """Output of the network, [batch, out] for x [batch, in] (or [out] for [in]).

    Args:
      flat: [parameters], float32 or float64; differentiable.
      x: same dtype; differentiable. With `feature_major`, [in, batch] -> [out, batch].
      relu_last: also apply ReLU after the last layer (to call a hidden layer separately).
      probe: see `make_probe`.
    """
    if x.ndim == 1:
        axis = 1 if feature_major else 0
        x = jnp.expand_dims(x, axis)
        y = mlp(flat, index, x, relu_last=relu_last, feature_major=feature_major, probe=probe)
        return jnp.squeeze(y, axis)
    spec = index.spec
    features = x.shape[0 if feature_major else 1] if x.ndim == 2 else None
    if features != spec.widths[0]:
        raise ValueError(
            f"x of shape {x.shape} does not fit a network with {spec.widths[0]} inputs: give "
            f"{'[in, batch]' if feature_major else '[batch, in]'} and vmap over further axes"
        )
    if flat.shape != (spec.parameters,) or flat.dtype != x.dtype:
        raise ValueError(
            f"flat {flat.dtype}{flat.shape} and x {x.dtype} do not fit a network of "
            f"{spec.parameters} parameters of one dtype"
        )
    return _function(spec, relu_last, feature_major, _execution())(flat, index, x, probe)


def _execution() -> str:
    how = native.execution()
    if how == "off":
        raise RuntimeError(
            "compact networks are disabled by RLX2_COMPACT=off: use masked execution"
        )
    if how == "xla" and not fallback.has_csr():
        return "dense"
    return how


def make_probe(
    spec: Spec, batch: int, dtype: Any = jnp.float32, *, relu_last: bool = False
) -> Probe:
    """Zeros to pass to exactly one application of `mlp` on `batch` inputs.

    The "gradient" of a loss with respect to the probe contains the inputs and output gradients of
    every layer; it costs one more output of the backward call.
    """
    kept = spec.widths[: len(spec.nnz) + relu_last]
    return Probe(
        jnp.zeros(batch * sum(kept), dtype), jnp.zeros(batch * sum(spec.widths[1:]), dtype)
    )


def join_probes(probes: Sequence[Probe]) -> Probe:
    """Joins the probes of the layers of a chain."""
    return Probe(*(jnp.concatenate(parts) for parts in zip(*probes)))


def growth_inputs(spec: Spec, probe_gradient: Probe, batch: int) -> list[tuple[Array, Array]]:
    """Per layer (x [in, batch], g_y [out, batch]); the dense gradient of its kernel is x g_yᵀ.

    The columns are the batch in some order, which is the same for x and g_y of a layer.
    """
    inputs = fallback.split(probe_gradient.acts, spec.widths[:-1], batch)
    outputs = fallback.split(probe_gradient.grads, spec.widths[1:], batch)
    return list(zip(inputs, outputs))


def unblock(flat: Array, features: int, batch: int) -> Array:
    """[features, batch] from the kernels' blocked layout (64, 16, 4 and 1 columns; see mlp.h)."""
    parts, column = [], 0
    for width in (64, 16, 4, 1):
        count = (batch - column) // width
        if count:
            part = flat[column * features : (column + count * width) * features]
            part = part.reshape(count, features, width)
            parts.append(jnp.moveaxis(part, 1, 0).reshape(features, count * width))
            column += count * width
    return jnp.concatenate(parts, axis=1)


def _unblock_all(flat: Array, features: tuple[int, ...], batch: int) -> Array:
    parts, start = [], 0
    for n in features:
        parts.append(unblock(flat[start : start + n * batch], n, batch).reshape(-1))
        start += n * batch
    return jnp.concatenate(parts)


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=[], meta_fields=["dflat", "dx", "probe"]
)
@dataclasses.dataclass(frozen=True)
class _Wanted:
    """The gradients that a backward pass must compute (a static residual, without arrays)."""

    dflat: bool
    dx: bool
    probe: bool


def _attributes(spec: Spec, relu_last: bool, feature_major: bool) -> dict[str, Any]:
    return {
        "widths": np.array(spec.widths, np.int64),
        "nnz": np.array(spec.nnz, np.int64),
        "relu_last": relu_last,
        "feature_major": feature_major,
    }


@functools.cache
def _function(spec: Spec, relu_last: bool, feature_major: bool, how: str):
    """The custom_vjp function of (flat, index, x, probe) for one static network."""
    attributes = _attributes(spec, relu_last, feature_major)
    options = {"relu_last": relu_last, "feature_major": feature_major}
    kept = spec.widths[: len(spec.nnz) + relu_last]

    def on_platform(kernel, plain, *args):
        """Kernels (or CSR products) on CPUs, dense products elsewhere."""
        default = functools.partial(plain, csr=False)
        if how == "dense":
            return default(*args)
        cpu = kernel if how == "native" else functools.partial(plain, csr=True)
        return jax.lax.platform_dependent(*args, cpu=cpu, default=default)

    def forward(flat: Array, index: Index, x: Array, keep: bool) -> tuple[Array, Array]:
        batch = x.shape[1 if feature_major else 0]
        shape = (spec.widths[-1], batch) if feature_major else (batch, spec.widths[-1])

        def kernel(flat, index, x):
            out = (
                jax.ShapeDtypeStruct(shape, x.dtype),
                jax.ShapeDtypeStruct((batch * sum(kept) if keep else 0,), x.dtype),
            )
            call = jax.ffi.ffi_call("rlx2_mlp_forward", out, vmap_method="expand_dims")
            y, acts = call(flat, index.rowptr, index.cols, x, **attributes)
            return y, acts

        def plain(flat, index, x, csr):
            y, acts = fallback.forward(index, flat, x, csr=csr, **options)
            return y, acts if keep else acts[:0]

        return on_platform(kernel, plain, flat, index, x)

    def backward(wanted: _Wanted, flat: Array, index: Index, acts: Array, dy: Array):
        batch = dy.shape[1 if feature_major else 0]
        x_shape = (spec.widths[0], batch) if feature_major else (batch, spec.widths[0])
        grads = batch * sum(spec.widths[1:])

        def kernel(flat, index, acts, dy):
            out = (
                jax.ShapeDtypeStruct((spec.parameters if wanted.dflat else 0,), flat.dtype),
                jax.ShapeDtypeStruct(x_shape if wanted.dx else (0, 0), flat.dtype),
                jax.ShapeDtypeStruct((grads if wanted.probe else 0,), flat.dtype),
            )
            call = jax.ffi.ffi_call("rlx2_mlp_backward", out, vmap_method="expand_dims")
            dflat, dx, g = call(
                flat, index.rowptr, index.cols, index.colptr, index.rows, index.perm, acts, dy,
                need_dflat=wanted.dflat, need_dx=wanted.dx, need_grads=wanted.probe, **attributes,
            )  # fmt: skip
            probe = _unblock_all(acts, kept, batch) if wanted.probe else acts[:0]
            return dflat, dx, probe, _unblock_all(g, spec.widths[1:], batch) if wanted.probe else g

        def plain(flat, index, acts, dy, csr):
            dflat, dx, g = fallback.backward(index, flat, acts, dy, csr=csr, **options)
            return (
                dflat if wanted.dflat else dflat[:0],
                dx if wanted.dx else dx[:0, :0],
                acts if wanted.probe else acts[:0],
                g if wanted.probe else g[:0],
            )

        dflat, dx, probe_acts, probe_grads = on_platform(kernel, plain, flat, index, acts, dy)
        return (
            dflat if wanted.dflat else None,
            None,
            dx if wanted.dx else None,
            Probe(probe_acts, probe_grads) if wanted.probe else None,
        )

    @jax.custom_vjp
    def function(flat: Array, index: Index, x: Array, probe: Probe | None) -> Array:
        del probe
        return forward(flat, index, x, keep=False)[0]

    def fwd(flat, index, x, probe):
        wanted = _Wanted(flat.perturbed, x.perturbed, probe is not None and probe.acts.perturbed)
        flat, index, x = jax.tree.map(
            lambda leaf: leaf.value,
            (flat, index, x),
            is_leaf=lambda leaf: hasattr(leaf, "perturbed"),
        )
        y, acts = forward(flat, index, x, keep=True)
        return y, (wanted, flat, index, acts)

    def bwd(residual, dy):
        wanted, flat, index, acts = residual
        if isinstance(dy, SymbolicZero):
            dy = jnp.zeros(dy.shape, flat.dtype)
        return backward(wanted, flat, index, acts, dy)

    function.defvjp(fwd, bwd, symbolic_zeros=True)
    return function
