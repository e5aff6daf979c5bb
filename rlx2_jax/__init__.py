"""Sparse deep reinforcement learning, trained sparse from the first step, in functional JAX."""

from rlx2_jax._version import __version__

__all__ = ["__version__"]
