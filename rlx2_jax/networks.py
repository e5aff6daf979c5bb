"""The paper's networks: an MLP actor and twin MLP critics, of any width and depth.

Flax modules create the initial weights. From there on a network is in one of two forms, and
`mlp(params, x)` is all that the algorithms know of them:

    masked:   plain pytrees of dense arrays, zero off the mask
    compact:  `Linked`, the live links alone

`bind`, `online` and `lagged` give what `mlp` and its relatives take.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax import compact, dense
from rlx2_jax.types import Array, Bounds, Masks, Network, Params

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
TWINS = ("q1", "q2")
_LOG_2 = math.log(2.0)


class MLP(nn.Module):
    """Dense layers with ReLU between them. `scheme` is how weights begin:

    `uniform`: weights and biases U(-1/√fan_in, 1/√fan_in) (TD3);
    `orthogonal`: orthogonal weights of gain 1, zero biases (SAC).
    """

    features: Sequence[int]
    scheme: str = "uniform"
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for i, size in enumerate(self.features):
            if self.scheme == "uniform":
                bound = 1.0 / math.sqrt(x.shape[-1])
                draw = lambda key, shape, dtype, b=bound: jax.random.uniform(  # noqa: E731
                    key, shape, dtype, -b, b
                )
                kernel_init, bias_init = draw, draw
            else:
                kernel_init, bias_init = nn.initializers.orthogonal(), nn.initializers.zeros_init()
            x = nn.Dense(
                size,
                kernel_init=kernel_init,
                bias_init=bias_init,
                param_dtype=jnp.dtype(self.dtype),
            )(x)
            x = nn.relu(x) if i + 1 < len(self.features) else x
        return x


def init(
    key: Array,
    sizes: Sequence[int],
    *,
    scheme: str = "uniform",
    width: int | None = None,
    dtype: str = "float32",
) -> tuple[Params, Masks]:
    """Initial weights of an MLP of `sizes = (in, hidden..., out)`, and the block they fill.

    With `width` (the Tiny baseline) every hidden layer has `width` units: a small MLP is created
    with its own fan-ins and put into the corner of arrays of the full shape, zeros around it.

    Returns:
      params: `{"Dense_l": {"kernel": [in, out], "bias": [out]}}`.
      block: the same tree, True where the small network lies (everywhere without `width`).
    """
    inner = [min(h, width or h) for h in sizes[1:-1]]
    module = MLP([*inner, sizes[-1]], scheme, dtype)
    small = module.init(key, jnp.zeros((1, sizes[0]), jnp.dtype(dtype)))["params"]
    full = {
        f"Dense_{i}": {"kernel": (sizes[i], sizes[i + 1]), "bias": (sizes[i + 1],)}
        for i in range(len(sizes) - 1)
    }

    def corner(shape: tuple[int, ...], block: Array) -> Array:
        return jnp.pad(block, [(0, n - m) for n, m in zip(shape, block.shape)])

    put = lambda shape, leaf: corner(shape, leaf)  # noqa: E731
    is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
    params = jax.tree.map(put, full, small, is_leaf=is_shape)
    block = jax.tree.map(lambda s, x: put(s, jnp.ones_like(x, bool)), full, small, is_leaf=is_shape)
    return params, block


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["flat", "index", "probe"], meta_fields=[]
)
@dataclasses.dataclass(frozen=True)
class Linked:
    """A network of live links: its trainable vector and where the links are.

    Twin critics have a leading axis of two in every array: two lanes of one call. `probe` is there
    when the loss is differentiated for growth scores (see `compact.make_probe`).
    """

    flat: Array  # [parameters], or [2, parameters]
    index: compact.Index
    probe: compact.Probe | None = None


def bind(params: Params, masks: Masks) -> Params:
    """What `mlp` and its relatives take, whichever form the network has."""
    return Linked(params, masks) if isinstance(masks, compact.Index) else params


def online(network: Network) -> Params:
    """The trained parameters θ, bound."""
    return bind(network.params, network.masks)


def lagged(network: Network) -> Params:
    """The target parameters θ', bound."""
    return bind(network.target, network.masks)


def mlp(params: Params, x: Array) -> Array:
    """The network's output for `x: [..., in]`: ReLU between layers, linear at the end."""
    if isinstance(params, Linked):
        rows = x.reshape(-1, x.shape[-1]).astype(params.flat.dtype)
        y = compact.mlp(params.flat, params.index, rows, probe=params.probe)
        return y.reshape(*x.shape[:-1], y.shape[-1])
    return _masked([params], x)[0]


def _masked(nets: Sequence[Params], x: Array) -> Array:
    """Masked networks of the same sizes on the same `x: [..., in]`: `[networks, ..., out]`."""
    y = dense.mlp(nets, x.reshape(-1, x.shape[-1]))
    return y.reshape(len(nets), *x.shape[:-1], y.shape[-1])


def policy(params: Params, obs: Array) -> Array:
    """TD3's deterministic policy π(s; φ) = tanh(mlp(s)), in [-1, 1]: `[..., act]`."""
    return jnp.tanh(mlp(params, obs))


def q_values(
    params: Params, obs: Array, action: Array, bounds: Bounds | None = None, *, judge: bool = False
) -> tuple[Array, Array]:
    """Both critics Q_θ1(s, a), Q_θ2(s, a): each `[...]`. `bounds` as in `critic_input`.

    With `judge`, for losses of actors, each critic has an input of its own: their gradients are
    then added up as two numbers, where XLA's sum over the critics is slow on CPUs.
    """
    x = critic_input(obs, action, bounds)
    if isinstance(params, Linked):
        inputs, axis = (jnp.stack([x, x]), 0) if judge else (x, None)
        q = jax.vmap(mlp, (0, axis))(params, inputs)
        return q[0, ..., 0], q[1, ..., 0]
    q = _masked([params[name] for name in TWINS], x)
    return q[0, ..., 0], q[1, ..., 0]


def q_value(params: Params, obs: Array, action: Array, bounds: Bounds | None = None) -> Array:
    """The first critic alone, Q_θ1(s, a): `[...]`. `bounds` as in `critic_input`."""
    linked = isinstance(params, Linked)
    first = jax.tree.map(lambda leaf: leaf[0], params) if linked else params["q1"]
    return mlp(first, critic_input(obs, action, bounds))[..., 0]


def critic_input(obs: Array, action: Array, bounds: Bounds | None) -> Array:
    """(s, a) as critics see it: `[..., obs + act]`.

    `action` is in [-1, 1] and stays so, or is mapped to `bounds` = (low, high) of each component.
    """
    if bounds is not None:
        # As environments do (`envs.spaces`): halved first, so that no range is infinite.
        low, high = (np.asarray(bound, np.float64) / 2 for bound in bounds)
        centre, half = (
            jnp.broadcast_to(jnp.asarray(x, action.dtype), action.shape)
            for x in (high + low, high - low)
        )
        action = centre + half * action
    return jnp.concatenate([obs, action], axis=-1)


def gaussian(params: Params, obs: Array) -> tuple[Array, Array]:
    """SAC's policy before squashing: mean and log σ, log σ = -5 + 3.5 (tanh + 1)."""
    mean, raw = jnp.split(mlp(params, obs), 2, axis=-1)
    half = 0.5 * (LOG_STD_MAX - LOG_STD_MIN)
    return mean, LOG_STD_MIN + half * (jnp.tanh(raw) + 1.0)


def squashed_mean(params: Params, obs: Array) -> Array:
    """SAC's noise-free action tanh(mean): `[..., act]`."""
    return jnp.tanh(gaussian(params, obs)[0])


def squashed_sample(params: Params, obs: Array, noise: Array) -> tuple[Array, Array]:
    """a = tanh(u), u = mean + σ ε, and log π(a|s) = log N(u) - Σ log(1 - tanh² u).

    `noise` ε is standard normal, `[..., act]`; the log probability is `[...]`.
    """
    mean, log_std = gaussian(params, obs)
    u = mean + jnp.exp(log_std) * noise
    log_normal = -0.5 * noise**2 - log_std - 0.5 * math.log(2.0 * math.pi)
    log_slope = 2.0 * (_LOG_2 - u - jax.nn.softplus(-2.0 * u))  # log(1 - tanh² u), stable
    # Added up term by term: XLA's own sums over a few numbers are slow on CPUs.
    log_prob = functools.reduce(jnp.add, jnp.unstack(log_normal - log_slope, axis=-1))
    return jnp.tanh(u), log_prob
