"""A policy as serialized StableHLO: f32[batch, obs] -> f32[batch, act], any batch, for CPU, CUDA
and TPU. Weights are constants of the program, dense as XLA wants them. Sums are plain float32:
observations near 1e38 may overflow, and actions are then NaN.

    jax.export.deserialize(bytearray(path.read_bytes())).call(obs)

reads it without this package. `load` also checks the file against the manifest in its directory.
"""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from rlx2_jax.export import manifest
from rlx2_jax.export.policy import PolicyFileError, SparsePolicy

PLATFORMS = ("cpu", "cuda", "tpu")


def function(policy: SparsePolicy) -> Callable[[jax.Array], jax.Array]:
    """The policy in JAX, weights dense: f32[batch, obs] -> f32[batch, act]."""
    layers = [(jnp.asarray(x.dense().T), jnp.asarray(x.bias)) for x in policy.layers]

    def act(obs: jax.Array) -> jax.Array:
        x = obs
        for i, (kernel, bias) in enumerate(layers):
            x = jnp.matmul(x, kernel, precision=jax.lax.Precision.HIGHEST)
            x = x + jnp.broadcast_to(bias, x.shape)
            x = jax.nn.relu(x) if i + 1 < len(layers) else jnp.tanh(x)
        return x

    return act


def serialized(policy: SparsePolicy) -> bytes:
    """The program of a policy."""
    shape = export.symbolic_shape(f"batch, {policy.obs_dim}")
    program = export.export(jax.jit(function(policy)), platforms=PLATFORMS)
    return bytes(program(jax.ShapeDtypeStruct(shape, np.float32)).serialize())


def save(policy: SparsePolicy, path: Path) -> None:
    """Writes the program."""
    Path(path).write_bytes(serialized(policy))


def load(path: Path) -> Callable[[np.ndarray], np.ndarray]:
    """The policy's function; the file must have the checksum in the manifest."""
    data = manifest.checked(Path(path))
    try:
        program = export.deserialize(bytearray(data))
    except Exception as error:
        raise PolicyFileError(f"{path} is not a serialized program: {error}") from error
    return lambda obs: np.asarray(program.call(jnp.asarray(obs, jnp.float32)))
