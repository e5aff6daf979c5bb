"""One update of a sparse network in plain NumPy: float64, explicit masks, finite differences.

Independent of the package: gradients come from differences of a loss, top-k from `np.argsort`.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from rlx2_jax.sparse.topology import Schedule
from rlx2_jax.types import Network

Tree = Any


def mlp(params: Tree, x: np.ndarray) -> np.ndarray:
    """ReLU between layers, linear at the end."""
    for i in range(len(params)):
        x = x @ params[f"Dense_{i}"]["kernel"] + params[f"Dense_{i}"]["bias"]
        x = np.maximum(x, 0.0) if i < len(params) - 1 else x
    return x


def q_values(params: Tree, obs: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both critics."""
    x = np.concatenate([obs, action], axis=-1)
    q1, q2 = ({k: {n: v[i] for n, v in w.items()} for k, w in params.items()} for i in (0, 1))
    return mlp(q1, x)[..., 0], mlp(q2, x)[..., 0]


def n_step(
    reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, n: int, gamma: float
) -> tuple[float, float, int, np.ndarray]:
    """Σ γ^k r, γ^m (0 after a termination), m - 1, and γ^{k+1} of the states in the window."""
    total, weights = 0.0, np.zeros(len(reward))
    for k in range(n):
        total += gamma**k * reward[k]
        if terminated[k]:
            return total, 0.0, k, weights
        weights[k] = gamma ** (k + 1)
        if truncated[k] or k == n - 1:
            return total, gamma ** (k + 1), k, weights
    raise AssertionError("n is at least 1")


def gradient(loss: Callable[[Tree], float], params: Tree, eps: float = 1e-6) -> Tree:
    """∇ loss by central differences, entry by entry."""
    leaves, treedef = jax.tree.flatten(jax.tree.map(np.copy, params))
    found = [np.zeros_like(leaf) for leaf in leaves]
    for leaf, grad in zip(leaves, found):
        for at in np.ndindex(leaf.shape):
            kept = leaf[at]
            around = []
            for x in (kept + eps, kept - eps):
                leaf[at] = x
                around.append(loss(jax.tree.unflatten(treedef, leaves)))
            leaf[at] = kept
            grad[at] = (around[0] - around[1]) / (2 * eps)
    return jax.tree.unflatten(treedef, found)


@dataclasses.dataclass
class Model:
    """A `Network` as NumPy arrays."""

    params: Tree
    masks: Tree
    mu: Tree
    nu: Tree
    count: int
    target: Tree
    members: int | None = None

    @classmethod
    def of(cls, network: Network) -> "Model":
        network = jax.tree.map(np.asarray, network)
        m = network.moments
        return cls(
            network.params, network.masks, m.mu, m.nu, int(m.count), network.target, network.members
        )

    def step(self, grads: Tree, count: int, schedule: Schedule, lr: float, scores: Tree) -> None:
        """Adam on live links; at a mask update drop the smallest, grow by |score| instead."""
        zeta0, t_end = float(schedule.zeta0), int(schedule.t_end)
        if zeta0 > 0 and count % int(schedule.interval) == 0 and count < t_end:
            self.evolve(scores, 0.5 * zeta0 * (1.0 + math.cos(math.pi * count / t_end)))
            return
        self.count += 1
        grads = jax.tree.map(np.multiply, grads, self.masks)
        self.mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, self.mu, grads)
        self.nu = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, self.nu, grads)
        c1, c2 = 1.0 - 0.9**self.count, 1.0 - 0.999**self.count
        self.params = jax.tree.map(
            lambda p, m, v, live: (p - lr * (m / c1) / (np.sqrt(v / c2) + 1e-8)) * live,
            self.params,
            self.mu,
            self.nu,
            self.masks,
        )

    def evolve(self, scores: Tree, fraction: float) -> None:
        """Links dropped and grown again at once keep everything; others start from zero."""

        def layer(weight: np.ndarray, mask: np.ndarray, score: np.ndarray) -> np.ndarray:
            if weight.ndim < 2:
                return mask
            k = math.floor(mask.sum() * fraction)
            size = np.where(mask, np.abs(weight), np.inf).ravel()
            kept = mask.ravel().copy()
            # Of equally small links the last are dropped, of equally large scores the first grow.
            kept[np.lexsort((-np.arange(size.size), size))[:k]] = False
            free = np.where(kept, -np.inf, np.abs(score).ravel())
            kept[np.argsort(-free, kind="stable")[:k]] = True
            return kept.reshape(mask.shape)

        def each(*leaves: np.ndarray) -> np.ndarray:
            """Members of an ensemble evolve independently."""
            if self.members is None:
                return layer(*leaves)
            return np.stack([layer(*member) for member in zip(*leaves)])

        new = jax.tree.map(each, self.params, self.masks, scores)
        stay = jax.tree.map(np.logical_and, new, self.masks)
        for field in ("params", "mu", "nu", "target"):
            tree = getattr(self, field)
            setattr(self, field, tree and jax.tree.map(np.multiply, tree, stay))
        self.masks = new

    def polyak(self, tau: float) -> None:
        """θ' ← (τ θ + (1 - τ) θ') ⊙ M."""
        self.target = jax.tree.map(
            lambda new, old, m: (tau * new + (1.0 - tau) * old) * m,
            self.params,
            self.target,
            self.masks,
        )

    def assert_like(self, network: Network, where: str, atol: float = 1e-7) -> None:
        """Masks, Adam's count and what is zero agree exactly, the rest within `atol`."""
        other = Model.of(network)
        jax.tree.map(
            lambda a, b: np.testing.assert_array_equal(a, b, err_msg=where),
            (self.masks, self.count),
            (other.masks, other.count),
        )
        for field in ("params", "mu", "nu", "target"):
            jax.tree.map(
                lambda a, b, f=field: np.testing.assert_allclose(
                    b, a, rtol=0, atol=atol, err_msg=f"{where}: {f}"
                ),
                getattr(self, field),
                getattr(other, field),
            )
            jax.tree.map(
                lambda m, b: np.testing.assert_array_equal(b[~m], 0.0, err_msg=where),
                other.masks,
                getattr(other, field) or other.params,
            )


def warm(network: Network, seed: int) -> Network:
    """The network with moments as after ten steps (Adam is then smooth in the gradient, and
    differences are good enough to compare with) and a target that has fallen behind."""
    rng = np.random.default_rng(seed)
    at = (network.params, network.masks)
    mu = jax.tree.map(lambda p, m: 1e-2 * rng.normal(size=p.shape) * m, *at)
    nu = jax.tree.map(lambda p, m: 1e-2 * rng.uniform(0.5, 1, p.shape) * m, *at)
    count = np.asarray(10, np.int32)
    target = network.target and jax.tree.map(
        lambda p, m: (p + 0.1 * rng.normal(size=p.shape)) * m, *at
    )
    return network._replace(moments=optax.ScaleByAdamState(count, mu, nu), target=target)  # type: ignore[arg-type]
