"""Throughput of the kernels relative to the CPU's peak. Benchmark `kernels`."""

import itertools
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import interleaved
from rlx2_jax import networks
from rlx2_jax.kernels import compact_mlp, layout, native
from rlx2_jax.networks import masked
from rlx2_jax.sparse import masks
from rlx2_jax.types import Params

BATCH, CALLS = 256, 100


def on_one_thread() -> None:
    """Limits XLA to one thread, unless its devices exist already, so that processor time contains
    no threads that spin while they wait."""
    os.environ["NPROC"] = "1"


def multiply_adds(load: bool) -> Callable[[], float]:
    """10^9 multiply-adds per second of one thread, with or without one load per multiply-add."""
    count = native.load().Rlx2MultiplyAdds

    def measure() -> float:
        start = time.process_time()
        done = sum(count(int(load), 1_000_000) for _ in range(10))
        return done / (time.process_time() - start) / 1e9

    return measure


def repeated(
    call: Callable[[Any, jax.Array], jax.Array], net: Any, macs: int, shape: tuple[int, int]
) -> Callable[[], float]:
    """10^9 multiply-adds per second and thread of `CALLS` sequential calls on an input of
    `shape`."""

    @jax.jit
    def run(net: Any, x: jax.Array) -> jax.Array:
        body = lambda x, _: (x + 1e-9 * call(net, x), None)  # noqa: E731
        return jax.lax.scan(body, x, None, length=CALLS)[0]

    x = jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)
    jax.block_until_ready(run(net, x))

    def measure() -> float:
        start = time.process_time()
        jax.block_until_ready(run(net, x))
        return CALLS * macs / (time.process_time() - start) / 1e9

    return measure


def of_network(name: str, sizes: tuple[int, ...], sparsity: float) -> dict[str, Any]:
    """Forward and backward passes of one network, compact and with dense matrices."""
    params, _, _ = networks.init(jax.random.key(0), networks.MLP(sizes[1:]), sizes[0])
    mask = masks.init(jax.random.key(1), params, sparsity)
    links = layout.from_masked(masks.apply(params, mask), mask)
    live = [int(m["kernel"].sum()) for m in (mask[f"Dense_{i}"] for i in range(len(sizes) - 1))]
    full = [n * m for n, m in itertools.pairwise(sizes)]

    def passes(forward: Callable[[Any, jax.Array], jax.Array]):
        def backward(net: Any, x: jax.Array) -> jax.Array:
            grads = jax.tree.leaves(jax.grad(lambda net: forward(net, x).sum())(net))
            return jnp.zeros_like(x) + sum(grad.ravel()[0] for grad in grads)

        return {"forward": forward, "forward and backward": backward}

    def linked(flat: jax.Array, x: jax.Array) -> jax.Array:
        return compact_mlp.mlp(flat, links.index, x)[:, :1]

    def matrices(net: Params, x: jax.Array) -> jax.Array:
        return masked.bind(net)(x)[:, :1]

    results = {}
    for form, forward, net, counts in (
        ("live links", linked, links.flat, live),
        ("dense", matrices, params, full),
    ):
        once = BATCH * sum(counts)
        work = {"forward": once, "forward and backward": 3 * once - BATCH * counts[0]}
        for which, call in passes(forward).items():
            results[f"{name}, {form}, {which}"] = repeated(
                call, net, work[which], (BATCH, sizes[0])
            )
    return results


def of_layer(n_in: int, n_out: int) -> dict[str, Any]:
    """Forward passes of one layer with all links, which runs as a dense product, and with one
    link missing, which does not."""
    params, every, _ = networks.init(jax.random.key(0), networks.MLP((n_out,)), n_in)
    one_less = jax.tree.map(lambda m: m.at[(0,) * m.ndim].set(m.ndim == 1), every)

    def forward(net: layout.Compact, x: jax.Array) -> jax.Array:
        return compact_mlp.mlp(net.flat, net.index, x, feature_major=True)[:1]

    return {
        f"layer {n_in} to {n_out}, {name}": repeated(
            forward, layout.from_masked(params, mask), BATCH * n_in * n_out, (n_in, BATCH)
        )
        for name, mask in (("all links", every), ("all links but one", one_less))
    }


def kernels() -> dict[str, Any]:
    """10^9 multiply-adds per second of processor time, for Hopper's networks in batches of 256 and
    for small layers with all links."""
    subjects: dict[str, Callable[[], float]] = {
        "limit": multiply_adds(load=False),
        "limit with loads": multiply_adds(load=True),
        **of_network("critic 95 %", (14, 256, 256, 1), 0.95),
        **of_network("actor 98 %", (11, 256, 256, 3), 0.98),
        **of_layer(14, 256),
        **of_layer(256, 6),
        **of_layer(256, 1),
    }
    return {"gmac_per_cpu_second": interleaved(subjects).medians()}
