"""Small settings, random data and one training program, for the tests of the algorithms."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax import config
from rlx2_jax.networks import optimize
from rlx2_jax.networks.evolution import Evolution, Update
from rlx2_jax.sparse import masks
from rlx2_jax.types import Batch, Network

# Lanes that differ in everything that may differ within one program.
LANES = (
    config.Lane(seed=0, method="dense", discount=0.9),
    config.Lane(seed=1, method="tiny", learning_rate=1e-3, tau=0.02),
    config.Lane(seed=2, method="ss", actor_sparsity=0.5, critic_sparsity=0.3),
    config.Lane(seed=3, method="set", mask_interval=8, zeta0=0.3, target_noise=0.1),
    config.Lane(seed=4, method="rigl", distribution="uniform", target_entropy=-1.0),
    config.Lane(seed=5, method="rlx2", d0=0.1, t0=20, t_end=60, critic_sparsity=0.6),
    config.Lane(seed=5, method="rlx2", d0=0.3, t0=10, n=2, discount=0.95, trim_ratio=0.2),
)


def setting(algo: str, **fields: Any) -> config.Config:
    """A program quick to compile: 4 observations, 2 actions, one hidden layer of 16 units (other
    depths are in the golden trajectories), masks that change often."""
    small = {
        "hidden": (16,),
        "batch_size": 16,
        "n_max": 3,
        "mask_interval": 4,
        "steps": 1000,
        "warmup": 0,
        "capacity": 1000,
    }
    return config.make(algo, 4, 2, **{**small, **fields})


def windows(seed: int, *lead: int, n: int = 3, dtype: str = "float64") -> Batch:
    """Random windows with all kinds of ends: `[*lead, ...]`."""
    rng = np.random.default_rng(seed)
    ends = rng.random((2, *lead, n)) < 0.15
    cast = lambda x: jnp.asarray(x.astype(dtype))  # noqa: E731
    return Batch(
        obs=cast(rng.normal(size=(*lead, 4))),
        action=cast(rng.uniform(-1, 1, (*lead, 2))),
        reward=cast(rng.normal(size=(*lead, n))),
        next_obs=cast(rng.normal(size=(*lead, n, 4))),
        terminated=jnp.asarray(ends[0]),
        truncated=jnp.asarray(ends[1]),
    )


def gradient_step(
    network: Network,
    grads: Any,
    rate: Any,
    count: Any,
    schedule: Any,
    key: Any,
    leak: Any = None,
    **options: Any,
) -> Network:
    """`optimize.learn` of a masked network on a loss with the gradient `grads`."""

    def loss(bound: Any) -> tuple[Any, None]:
        terms = jax.tree.map(lambda x, g: jnp.sum(x * g), bound.params, grads)
        return jnp.stack(jax.tree.leaves(terms)).sum(), None

    update = Update(jnp.asarray(count), schedule, key)
    return optimize.learn(network, loss, rate, update, Evolution(0, **options), leak=leak)[0]


def quick(f: Callable[..., Any], **options: Any) -> Any:
    """`jax.jit` that compiles in half the time, for programs that run a thousand times at most."""
    return jax.jit(f, compiler_options={"xla_backend_optimization_level": 0}, **options)


def over_lanes(algo: Any, cfg: config.Config) -> Callable[..., tuple[Any, Any]]:
    """`update(states, batches, keys, count, hypers)` of stacked lanes; the count is not batched."""

    def update(state: Any, batch: Any, key: jax.Array, count: jax.Array, hyper: config.Hyper):
        return algo.update(state, batch, jax.random.fold_in(key, count), count, count, cfg, hyper)

    return jax.vmap(update, in_axes=(0, 0, 0, None, 0))


def stack(trees: Sequence[Any]) -> Any:
    """Lanes stacked along a new leading axis."""
    return jax.tree.map(lambda *x: jnp.stack(x), *trees)


def lane_of(tree: Any, i: int) -> Any:
    """Lane i of stacked lanes."""
    return jax.tree.map(lambda x: x[i], tree)


def assert_equal(a: Any, b: Any) -> None:
    """Bitwise equality."""
    jax.tree.map(np.testing.assert_array_equal, a, b)


def assert_close(a: Any, b: Any, atol: float) -> None:
    """Within `atol`; booleans and integers exactly."""
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=atol), a, b)


def assert_on_mask(network: Network) -> None:
    """Weights, moments and targets are exactly 0 off the mask."""
    for tree in (network.params, network.moments.mu, network.moments.nu, network.target):
        if tree is not None:
            jax.tree.map(
                lambda x, m: np.testing.assert_array_equal(np.asarray(x)[~np.asarray(m)], 0.0),
                tree,
                network.masks,
            )


def links(network: Network) -> list[int]:
    """Live links of each layer."""
    return [masks.live([m]) for m in jax.tree.leaves(network.masks)]
