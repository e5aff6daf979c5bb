"""`sparsify` around networks of other libraries: exact links in every layer, and the loss falls."""

from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from embedding import (
    STEPS,
    check_learned,
    check_links,
    check_moved,
    fit,
    row,
    sparse_adam,
    task,
)
from flax import nnx
from flax.training.train_state import TrainState

import rlx2_jax as rlx2
from rlx2_jax.sparse import leaves


@pytest.fixture(autouse=True)
def _broadcasting():
    """Other libraries add biases by broadcasting."""
    with jax.numpy_rank_promotion("allow"):
        yield


def layouts(params: Any) -> dict[str, str]:
    return {leaf.path: leaf.layout for leaf in leaves.describe(params) if leaf.sparse}


class Mlp(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.tanh(nn.LayerNorm()(nn.Dense(24)(x))))


@row("Libraries", "Flax Linen", "`TrainState.create(..., tx=sparsify(...))`")
def test_linen():
    x, y = task()
    model, tx = Mlp(), sparse_adam()
    params: Any = model.init(jax.random.key(0), x)["params"]
    state: Any = TrainState.create(apply_fn=model.apply, params=params, tx=tx)
    state = state.replace(params=rlx2.mask(params, state.opt_state))
    first = state.opt_state

    def step(state: Any, _: None) -> Any:
        def of(params: Any) -> Any:
            return jnp.mean((state.apply_fn({"params": params}, x) - y) ** 2)

        value, grads = jax.value_and_grad(of)(state.params)
        return state.apply_gradients(grads=grads), value

    state, losses = jax.jit(lambda s: jax.lax.scan(step, s, None, length=STEPS))(state)
    check_links(state.params, state.opt_state)
    check_moved(first, state.opt_state)
    check_learned(losses)


class Ensemble(nn.Module):
    @nn.compact
    def __call__(self, x):
        many: Any = {
            "in_axes": None,
            "axis_size": 3,
            "variable_axes": {"params": 0},
            "split_rngs": {"params": True},
        }
        return nn.vmap(Mlp, **many)()(x)


@row("Libraries", "Flax Linen, `nn.vmap`", "every member has its exact number of links")
def test_linen_vmap():
    x, y = task()
    model = Ensemble()
    params: Any = model.init(jax.random.key(0), x)["params"]
    assert set(layouts(params).values()) == {"mio"}

    def of(params: Any) -> Any:
        return jnp.mean((cast(Any, model.apply({"params": params}, x)) - y) ** 2)

    params, state, losses = fit(sparse_adam(), params, of)
    check_links(params, state)
    check_learned(losses)


class Block(nn.Module):
    """A layer of a transformer, without biases in its feed-forward part."""

    @nn.compact
    def __call__(self, x, _):
        x = x + nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(x))
        h = nn.gelu(nn.Dense(16, use_bias=False)(nn.LayerNorm()(x)))
        return x + nn.Dense(8, use_bias=False)(h), None


class Transformer(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(10, 8)(tokens)
        axes: Any = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}, "length": 4}
        x, _ = nn.scan(Block, **axes)(name="blocks")(x, None)
        return nn.Dense(10)(nn.LayerNorm()(x))


@row("Libraries", "transformer (Linen, `nn.scan` over layers)", "embeddings and norms stay dense")
def test_transformer():
    tokens = np.random.default_rng(0).integers(0, 10, (32, 6))
    reverse = tokens[:, ::-1].copy()
    model = Transformer()
    params: Any = model.init(jax.random.key(0), tokens)["params"]
    assert layouts(params) == {
        "Dense_0/kernel": "io",
        "blocks/Dense_0/kernel": "mio",
        "blocks/Dense_1/kernel": "mio",
        **{
            f"blocks/MultiHeadDotProductAttention_0/{n}/kernel": "mioo"
            for n in ("key", "query", "value")
        },
        "blocks/MultiHeadDotProductAttention_0/out/kernel": "miio",
    }

    def of(params: Any) -> Any:
        logits: Any = model.apply({"params": params}, tokens)
        return optax.softmax_cross_entropy_with_integer_labels(logits, reverse).mean()

    params, state, losses = fit(sparse_adam(2e-2), params, of)
    check_links(params, state)
    check_learned(losses, 0.9)


class Conv(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(8, (3, 3))(x))
        x = nn.relu(nn.Conv(8, (3, 3), strides=2)(x))
        return nn.Dense(2)(x.mean(axis=(1, 2)))


@row("Libraries", "convolutional network (Linen)", "kernels as `window, in, out`")
def test_conv_net():
    draw = np.random.default_rng(0)
    images = draw.standard_normal((32, 8, 8, 1)).astype(np.float32)
    labels = np.arange(32) % 2
    images[labels == 1] = np.cumsum(images[labels == 1], axis=2) / 2  # smooth along one axis
    model = Conv()
    params: Any = model.init(jax.random.key(0), images)["params"]
    assert layouts(params) == {
        "Conv_0/kernel": "ssio",
        "Conv_1/kernel": "ssio",
        "Dense_0/kernel": "io",
    }

    def of(params: Any) -> Any:
        logits: Any = model.apply({"params": params}, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    params, state, losses = fit(sparse_adam(2e-2), params, of)
    check_links(params, state)
    check_learned(losses)


@row("Libraries", "Flax NNX", "`nnx.Optimizer(model, sparsify(...), wrt=nnx.Param)`")
def test_nnx():
    x, y = task()

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.hidden = nnx.Linear(12, 24, rngs=rngs)
            self.out = nnx.Linear(24, 3, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.out(nnx.tanh(self.hidden(x)))

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, sparse_adam(), wrt=nnx.Param)
    nnx.update(model, rlx2.mask(nnx.state(model, nnx.Param), optimizer.opt_state))
    first = jax.tree.map(jnp.array, rlx2.masks_of(optimizer.opt_state))

    @nnx.jit
    def step(model: Any, optimizer: Any) -> Any:
        value, grads = nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(model)
        optimizer.update(model, grads)
        return value

    losses = [float(step(model, optimizer)) for _ in range(STEPS)]
    check_links(nnx.state(model, nnx.Param), optimizer.opt_state)
    last = rlx2.masks_of(optimizer.opt_state)
    assert any(bool((a != b).any()) for a, b in zip(*map(jax.tree.leaves, (first, last))))
    check_learned(losses)


@row("Libraries", "Flax NNX, `nnx.vmap`", "every member has its exact number of links")
def test_nnx_ensemble():
    x, y = task()
    make = nnx.vmap(lambda key: nnx.Linear(12, 3, rngs=nnx.Rngs(key)))
    graph, params = nnx.split(make(jax.random.split(jax.random.key(0), 4)))
    assert layouts(params) == {"kernel": "mio"}

    def of(params: Any) -> Any:
        apply = nnx.vmap(lambda m, x: m(x), in_axes=(0, None))
        return jnp.mean((jnp.tanh(apply(nnx.merge(graph, params), x)) - y) ** 2)

    params, state, losses = fit(sparse_adam(), params, of)
    check_links(params, state)
    check_learned(losses, 0.7)


@row("Libraries", "Equinox", "`tx.init(eqx.filter(model, eqx.is_inexact_array))`")
def test_equinox():
    eqx = pytest.importorskip("equinox")
    x, y = task()
    model = eqx.nn.MLP(12, 3, 24, 1, activation=jnp.tanh, key=jax.random.key(0))
    tx = sparse_adam()
    first = state = tx.init(eqx.filter(model, eqx.is_inexact_array))
    model = eqx.combine(rlx2.mask(eqx.filter(model, eqx.is_inexact_array), state), model)

    @eqx.filter_jit
    def step(model: Any, state: Any) -> Any:
        of = lambda m: jnp.mean((jax.vmap(m)(x) - y) ** 2)  # noqa: E731
        value, grads = eqx.filter_value_and_grad(of)(model)
        params = eqx.filter(model, eqx.is_inexact_array)
        updates, state = tx.update(grads, state, params)
        return eqx.apply_updates(model, updates), state, value

    losses = []
    for _ in range(STEPS):
        model, state, value = step(model, state)
        losses.append(float(value))
    params = eqx.filter(model, eqx.is_inexact_array)
    assert set(layouts(params).values()) == {"oi"}
    check_links(params, state)
    check_moved(first, state)
    check_learned(losses)
    with pytest.raises(ValueError, match=r"eqx\.filter\(model, eqx\.is_inexact_array\)"):
        tx.init(model)


@row("Libraries", "Equinox, ensemble of convolutions", "kernels as `out, in, window`, by member")
def test_equinox_ensemble():
    eqx = pytest.importorskip("equinox")
    x = np.random.default_rng(0).standard_normal((16, 3, 12)).astype(np.float32)
    y = np.tanh(x[:, :2, 1:-1] - x[:, 1:, 2:])
    make = eqx.filter_vmap(lambda key: eqx.nn.Conv1d(3, 2, 3, key=key))
    params, rest = eqx.partition(make(jax.random.split(jax.random.key(0), 4)), eqx.is_inexact_array)
    assert layouts(params) == {"weight": "mois"}

    def of(params: Any) -> Any:
        one = lambda p: jax.vmap(eqx.combine(p, rest))(x)  # noqa: E731
        return jnp.mean((jnp.tanh(jax.vmap(one)(params)) - y) ** 2)

    params, state, losses = fit(sparse_adam(), params, of)
    check_links(params, state)
    check_learned(losses, 0.8)


@row("Libraries", "Haiku", "`tx.init(params)` of `hk.transform`")
def test_haiku():
    hk = pytest.importorskip("haiku")
    x, y = task()
    model = hk.without_apply_rng(
        hk.transform(lambda x: hk.nets.MLP([24, 3], activation=jnp.tanh)(x))
    )
    params = model.init(jax.random.key(0), x)
    assert layouts(params) == {"mlp/~/linear_0/w": "io", "mlp/~/linear_1/w": "io"}
    of = lambda p: jnp.mean((model.apply(p, x) - y) ** 2)  # noqa: E731
    params, state, losses = fit(sparse_adam(), params, of)
    check_links(params, state)
    check_learned(losses)


@row("Libraries", "Haiku, `jax.vmap` of `init`", "every member has its exact number of links")
def test_haiku_ensemble():
    hk = pytest.importorskip("haiku")
    x, y = task()

    def network(x: Any) -> Any:
        return hk.Linear(3, with_bias=False)(jnp.tanh(hk.Linear(24)(x)))

    model = hk.without_apply_rng(hk.transform(network))
    keys = jax.random.split(jax.random.key(0), 3)
    params = jax.vmap(lambda key: model.init(key, x))(keys)
    assert layouts(params) == {"linear/w": "mio", "linear_1/w": "mio"}
    of = lambda p: jnp.mean((jax.vmap(lambda q: model.apply(q, x))(p) - y) ** 2)  # noqa: E731
    params, state, losses = fit(sparse_adam(), params, of)
    check_links(params, state)
    check_learned(losses)
