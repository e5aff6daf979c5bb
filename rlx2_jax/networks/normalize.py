"""Observation normalization by running statistics."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from rlx2_jax.networks.base import STATS
from rlx2_jax.types import Array, Params

EPSILON = 1e-8


class RunningNorm(nn.Module):
    """Standardizes the first `features` inputs (the observation); others (an action) pass through.

        x = (o - μ) / √(σ² + ε)

    μ and σ² are the mean and variance of all observations so far, initially 0 and 1.
    """

    features: int
    dtype: str = "float32"

    def setup(self) -> None:
        shape, dtype = (self.features,), jnp.dtype(self.dtype)
        self.mean = self.variable(STATS, "mean", jnp.zeros, shape, dtype)
        self.var = self.variable(STATS, "var", jnp.ones, shape, dtype)
        self.count = self.variable(STATS, "count", jnp.zeros, (), jnp.int32)

    def __call__(self, x: Array) -> Array:
        obs, rest = jnp.split(x, [self.features], axis=-1)
        mean, scale = (
            jnp.broadcast_to(a, obs.shape)
            for a in (self.mean.value, 1.0 / jnp.sqrt(self.var.value + EPSILON))
        )
        return jnp.concatenate([(obs - mean) * scale, rest], axis=-1)

    def observe(self, obs: Array) -> None:
        """Updates the statistics with new observations `[envs, obs]` (Chan et al., 1983)."""
        obs = obs.astype(self.mean.value.dtype)
        new, old = obs.shape[0], self.count.value.astype(obs.dtype)
        share = new / (old + new)
        mean = jnp.mean(obs, axis=0)
        gap = mean - self.mean.value
        within = (1.0 - share) * self.var.value + share * jnp.var(obs, axis=0)
        self.mean.value = self.mean.value + share * gap
        self.var.value = within + share * (1.0 - share) * gap**2
        self.count.value = self.count.value + new


def step(stats: Params) -> tuple:
    """The layer as a step for exporters."""
    mean, var = (np.asarray(stats[name], np.float32) for name in ("mean", "var"))
    return "normalize", mean, (1.0 / np.sqrt(var + np.float32(EPSILON))).astype(np.float32)
