"""A drop rule: keep the links whose removal would raise the loss most, by Adam's estimates."""

import jax.numpy as jnp

import rlx2_jax as rlx2


def saliency(layer):
    """θ² ν, with Adam's second moment ν as the diagonal of the Fisher information. Optimizers
    without moments use the square of the last gradient."""
    curvature = layer.grad**2 if layer.nu is None else layer.nu
    return layer.weight**2 * curvature


rlx2.register_drop("saliency", saliency)

if __name__ == "__main__":
    layer = rlx2.rules.Layer(
        weight=jnp.array([2.0, -0.1, 1.0]),
        grad=jnp.array([0.1, 0.1, 0.1]),
        mu=None,
        nu=jnp.array([0.0, 1.0, 1.0]),
        dense_grad=jnp.zeros(3),
        uniform=lambda key: jnp.zeros(3),
    )
    print("drops the first link, although it is the largest:", saliency(layer))
