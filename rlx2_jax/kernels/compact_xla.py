"""Compact networks in plain XLA: the same two functions as the kernels, on any platform.

On a CPU without the kernel library this uses jaxlib's CSR product if available; elsewhere it
scatters the values into a dense matrix. The weight gradient is computed densely, then gathered.
`acts` and `grads` concatenate one [features, batch] array per layer; their sizes, but not their
internal order, are those of the kernels.
"""

import functools
import importlib

import jax
import jax.numpy as jnp

from rlx2_jax.kernels.layout import Array, Index, Spec

_CSR = "cpu_csr_sparse_dense_ffi"


@functools.cache
def has_csr() -> bool:
    """Whether jaxlib's private CSR product exists and is correct."""
    ptr, idx = jnp.array([0, 1, 1, 2], jnp.int32), jnp.array([1, 0, 0], jnp.int32)
    rhs = jnp.array([[1.0, 2.0], [3.0, 4.0]], jnp.float32)
    try:
        importlib.import_module("jax.experimental.sparse")  # registers it
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            got = _csr_product(jnp.array([2.0, 5.0, 0.0], jnp.float32), ptr, idx, rhs)
            return got.tolist() == [[6.0, 8.0], [0.0, 0.0], [5.0, 10.0]]
    except Exception:  # a private, unversioned name: unavailable if it raises anything
        return False


def _csr_product(values: Array, ptr: Array, idx: Array, rhs: Array) -> Array:
    out = jax.ShapeDtypeStruct((ptr.shape[0] - 1, rhs.shape[1]), rhs.dtype)
    return jax.ffi.ffi_call(_CSR, out, vmap_method="sequential")(values, ptr, idx, rhs)


def _row_of(ptr: Array, nnz: int) -> Array:
    """Row of each link; the number of rows for padding, which scatters and gathers drop."""
    links = jnp.arange(nnz, dtype=jnp.int32)
    # Unrolled: a loop inside the training loop would be a round trip to the host on a GPU.
    after = jnp.searchsorted(ptr, links, side="right", method="scan_unrolled")
    return after.astype(jnp.int32) - 1


def _dense_product(values: Array, ptr: Array, idx: Array, rhs: Array) -> Array:
    shape = (ptr.shape[0] - 1, rhs.shape[0])
    dense = jnp.zeros(shape, values.dtype)
    dense = dense.at[_row_of(ptr, idx.shape[0]), idx].set(values, mode="drop")
    return jnp.matmul(dense, rhs, precision=jax.lax.Precision.HIGHEST)


def _product(csr: bool, values: Array, ptr: Array, idx: Array, rhs: Array) -> Array:
    if not idx.shape[0]:
        return jnp.zeros((ptr.shape[0] - 1, rhs.shape[1]), rhs.dtype)
    return (_csr_product if csr else _dense_product)(values, ptr, idx, rhs)


def forward(
    index: Index, flat: Array, x: Array, *, relu_last: bool, feature_major: bool, csr: bool
) -> tuple[Array, Array]:
    """(y, acts) of x [in, batch] (feature-major) or [batch, in]."""
    spec = index.spec
    a = x if feature_major else x.T
    kept = [a]
    for i, (values, biases) in enumerate(zip(spec.slices("values"), spec.slices("biases"))):
        ptr, cols = index.layer("rowptr", i), index.layer("cols", i)
        a = _product(csr, flat[values], ptr, cols, a) + flat[biases][:, None]
        if i + 1 < len(spec.nnz) or relu_last:
            a = jnp.maximum(a, 0)
            kept.append(a)
    return a if feature_major else a.T, jnp.concatenate([k.reshape(-1) for k in kept])


def split(flat: Array, features: tuple[int, ...], batch: int) -> list[Array]:
    """The [features, batch] arrays that are concatenated in `flat`."""
    parts, start = [], 0
    for n in features:
        parts.append(flat[start : start + n * batch].reshape(n, batch))
        start += n * batch
    return parts


def backward(
    index: Index,
    flat: Array,
    acts: Array,
    dy: Array,
    *,
    relu_last: bool,
    feature_major: bool,
    csr: bool,
) -> tuple[Array, Array, Array]:
    """(dflat, dx, grads); XLA removes unused results."""
    spec: Spec = index.spec
    g = dy if feature_major else dy.T
    kept = split(acts, spec.widths[: len(spec.nnz) + relu_last], g.shape[1])
    if relu_last:
        g = jnp.where(kept[-1] > 0, g, 0)
    dvalues, dbiases, grads = [], [], []
    for i in reversed(range(len(spec.nnz))):
        grads.append(g.reshape(-1))
        dbiases.append(g.sum(1))
        dense = jnp.matmul(g, kept[i].T, precision=jax.lax.Precision.HIGHEST)
        row = _row_of(index.layer("rowptr", i), spec.nnz[i])
        dvalues.append(dense.at[row, index.layer("cols", i)].get(mode="fill", fill_value=0))
        values = flat[spec.slices("values")[i]][index.layer("perm", i)]
        g = _product(csr, values, index.layer("colptr", i), index.layer("rows", i), g)
        if i:
            g = jnp.where(kept[i] > 0, g, 0)
    dflat = jnp.concatenate([*dvalues[::-1], *dbiases[::-1]])
    return dflat, g if feature_major else g.T, jnp.concatenate(grads[::-1])
