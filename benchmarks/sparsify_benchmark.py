"""The cost of `sparsify` by method, against plain Adam with a mask multiply. Benchmark `sparsify`.

Times a step without a mask update, for a network with 2.1 million weights: with donated buffers
as in a training loop, without donation, and including the gradient of a batch of 256.
"""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.measure import interleaved
from rlx2_jax.sparse.optimizer import sparsify
from rlx2_jax.sparse.state import masks_of
from rlx2_jax.types import Array, Params

SIZES, BATCH, STEPS = (512, 1024, 1024, 512), 256, 10
LATE: dict[str, Any] = {"interval": 10**6, "t_end": 10**8}  # no mask update during a measurement
METHODS: dict[str, dict[str, Any]] = {
    "rigl": LATE,
    "rigl, after the step": {"method": "rigl", "mask_step": "after", **LATE},
    "set": LATE,
    "snfs": LATE,
    "gmp": LATE,
    "static": {},
}

Step = Callable[[Params, Any, Params], tuple[Params, Any]]


def network(key: Array) -> Params:
    keys = jax.random.split(key, len(SIZES) - 1)
    return [
        {"kernel": jax.random.normal(k, (i, o)) / i**0.5, "bias": jnp.zeros(o)}
        for k, i, o in zip(keys, SIZES, SIZES[1:])
    ]


def gradient(params: Params) -> Params:
    """Gradient of the mean square of the outputs for a fixed batch."""
    x = jnp.sin(jnp.arange(BATCH * SIZES[0], dtype=jnp.float32)).reshape(BATCH, SIZES[0])

    def loss(params: Params) -> Array:
        h = x
        for layer in params:
            h = jax.nn.relu(h @ layer["kernel"] + layer["bias"][None])
        return jnp.mean(h**2)

    return jax.grad(loss)(params)


def plain(tx: optax.GradientTransformation, masks: Params) -> Step:
    """The baseline: the optimizer on masked gradients."""

    def step(params: Params, state: Any, grads: Params) -> tuple[Params, Any]:
        masked = jax.tree.map(jnp.multiply, grads, masks)
        updates, state = tx.update(masked, state, params)
        return optax.apply_updates(params, updates), state

    return step


def sparse(tx: optax.GradientTransformation) -> Step:
    def step(params: Params, state: Any, grads: Params) -> tuple[Params, Any]:
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return step


def timed(step: Step, params: Params, state: Any, grads: Params | None, donate: bool) -> Any:
    """A function that returns the milliseconds of the fastest of several steps."""

    def whole(params: Params, state: Any, grads: Params | None) -> tuple[Params, Any]:
        return step(params, state, gradient(params) if grads is None else grads)

    run = jax.jit(whole, donate_argnums=(0, 1) if donate else ())
    carry = [jax.tree.map(jnp.array, (params, state))]
    carry[0] = run(*carry[0], grads)

    def measure() -> float:
        times = []
        for _ in range(STEPS):
            start = time.perf_counter()
            carry[0] = jax.block_until_ready(run(*carry[0], grads))
            times.append(time.perf_counter() - start)
        return 1e3 * min(times)

    return measure


def costs() -> dict[str, Any]:
    """Milliseconds per step and ratios to the baseline, in three settings."""
    params, adam = network(jax.random.key(0)), optax.adam(1e-3)
    grads = jax.jit(gradient)(params)
    chosen = {
        name: sparsify(adam, 0.9, **{"method": name, **options})
        for name, options in METHODS.items()
    }
    masks = masks_of(chosen["static"].init(params))
    settings = {"donated": (grads, True), "not donated": (grads, False), "gradient": (None, True)}
    out: dict[str, Any] = {"weights": sum(i * o for i, o in pairwise(SIZES))}
    for setting, (given, donate) in settings.items():
        baseline = timed(plain(adam, masks), params, adam.init(params), given, donate)
        subjects: dict[str, Callable[[], float]] = {"adam": baseline}
        for name, tx in chosen.items():
            subjects[name] = timed(sparse(tx), params, tx.init(params), given, donate)
        turns = interleaved(subjects)
        out[setting] = {
            "fastest_ms": {name: min(values) for name, values in turns.values.items()},
            "over_adam": {name: turns.ratio(name, "adam") for name in chosen},
            "fastest_over_adam": {
                name: min(turns.values[name]) / min(turns.values["adam"]) for name in chosen
            },
        }
    out["temporaries_mb"] = {name: temporaries(tx, params, grads) for name, tx in chosen.items()}
    return out


def temporaries(tx: optax.GradientTransformation, params: Params, grads: Params) -> float:
    """Megabytes that a donated step allocates besides its arguments and results."""
    run = jax.jit(sparse(tx), donate_argnums=(0, 1))
    analysis: Any = run.lower(params, tx.init(params), grads).compile().memory_analysis()
    return float(np.round(analysis.temp_size_in_bytes / 1e6, 1))
