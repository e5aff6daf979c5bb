"""Random masked networks and their dense equivalents, for the tests of compact networks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax.kernels import layout


def masked_network(rng, widths, live, dtype: Any = np.float32):
    """(params, masks) with exactly `live[l]` links in layer l."""
    params, masks = {}, {}
    for i, (n_in, n_out, n) in enumerate(zip(widths[:-1], widths[1:], live)):
        mask = np.zeros(n_in * n_out, bool)
        mask[rng.permutation(n_in * n_out)[:n]] = True
        mask = mask.reshape(n_in, n_out)
        kernel = np.where(mask, rng.normal(size=(n_in, n_out)), 0).astype(dtype)
        params[f"layer_{i}"] = {"kernel": kernel, "bias": rng.normal(size=n_out).astype(dtype)}
        masks[f"layer_{i}"] = {"kernel": mask, "bias": np.ones(n_out, bool)}
    return params, masks


def dense_mlp(params, x, relu_last=False):
    """The masked form: x [batch, in] -> [batch, out]."""
    names = sorted(params, key=lambda name: int(name.split("_")[1]))
    for name in names:
        x = jnp.matmul(x, params[name]["kernel"], precision="highest")
        x = x + params[name]["bias"][None]
        if relu_last or name != names[-1]:
            x = jax.nn.relu(x)
    return x


def stack(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


_compress = jax.jit(layout.from_masked, static_argnames="spec")
expand = jax.jit(layout.to_masked)


def compress(params, masks, spec=None):
    """`layout.from_masked`, compiled."""
    return _compress(params, masks, spec=layout.spec_of(masks) if spec is None else spec)
