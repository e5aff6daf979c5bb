"""A policy as serialized StableHLO: f32[batch, obs] -> f32[batch, act], any batch, for CPU, CUDA
and TPU. Weights are dense constants of the program. Sums are plain float32: observations near 1e38
(with layer normalization: 1e18) may overflow and give NaN actions.

    jax.export.deserialize(bytearray(path.read_bytes())).call(obs)

reads it without this package. `load` also checks the file against the manifest in its directory.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from rlx2_jax.export import manifest
from rlx2_jax.export.linear import Linear
from rlx2_jax.export.op import Op
from rlx2_jax.export.ops import AddSaved, LayerNorm, Normalize, Relu, Save
from rlx2_jax.export.policy import PolicyFileError, SparsePolicy

PLATFORMS = ("cpu", "cuda", "tpu")


def _wide(array: np.ndarray, x: jax.Array) -> jax.Array:
    """A constant vector broadcast to every row of x."""
    return jnp.broadcast_to(jnp.asarray(array), x.shape)


def _linear(op: Linear, x: jax.Array, saved: list[jax.Array]) -> jax.Array:
    del saved
    y = jnp.matmul(x, jnp.asarray(op.dense().T), precision=jax.lax.Precision.HIGHEST)
    return y + _wide(op.bias, y)


def _normalize(op: Normalize, x: jax.Array, saved: list[jax.Array]) -> jax.Array:
    del saved
    return (x - _wide(op.mean, x)) * _wide(op.scale, x)


def _layer_norm(op: LayerNorm, x: jax.Array, saved: list[jax.Array]) -> jax.Array:
    del saved
    x = x - jnp.mean(x, -1, keepdims=True)
    x = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + op.epsilon)
    return x * _wide(op.scale, x) + _wide(op.bias, x)


def _save(op: Save, x: jax.Array, saved: list[jax.Array]) -> jax.Array:
    del op
    saved.append(x)
    return x


_OPS: dict[type[Op], Callable[[Any, jax.Array, list[jax.Array]], jax.Array]] = {
    Linear: _linear,
    Relu: lambda op, x, saved: jax.nn.relu(x),
    Normalize: _normalize,
    LayerNorm: _layer_norm,
    Save: _save,
    AddSaved: lambda op, x, saved: x + saved.pop(),
}


def function(policy: SparsePolicy) -> Callable[[jax.Array], jax.Array]:
    """The policy in JAX, with dense weights: f32[batch, obs] -> f32[batch, act]."""

    def act(obs: jax.Array) -> jax.Array:
        x, saved = obs, []
        for op in policy.ops:
            x = _OPS[type(op)](op, x, saved)
        return jnp.tanh(x)

    return act


def serialized(policy: SparsePolicy) -> bytes:
    """The serialized program of a policy."""
    shape = export.symbolic_shape(f"batch, {policy.obs_dim}")
    program = export.export(jax.jit(function(policy)), platforms=PLATFORMS)
    return bytes(program(jax.ShapeDtypeStruct(shape, np.float32)).serialize())


def save(policy: SparsePolicy, path: Path) -> None:
    """Writes the program."""
    Path(path).write_bytes(serialized(policy))


def load(path: Path) -> Callable[[np.ndarray], np.ndarray]:
    """The policy's function; verifies the file's checksum in the manifest."""
    data = manifest.checked(Path(path))
    try:
        program = export.deserialize(bytearray(data))
    except Exception as error:
        raise PolicyFileError(f"{path} is not a serialized program: {error}") from error
    return lambda obs: np.asarray(program.call(jnp.asarray(obs, jnp.float32)))
