"""A metric: one function, one column of metrics.csv and one TensorBoard tag."""

import jax.numpy as jnp

import rlx2_jax as rlx2


def largest_fan_in(view):
    """The largest number of links into any unit of a network."""
    return jnp.stack([mask.sum(axis=0).max() for mask in view.kernels.values()]).max()


rlx2.register_metric(
    "largest_fan_in", "largest number of links into a unit", largest_fan_in, scope="network"
)

if __name__ == "__main__":
    from rlx2_jax.training.metrics import METRICS

    print(METRICS["largest_fan_in"].meaning)
