"""`sparsify` around networks of other libraries: exact links in every layer, and the loss falls."""

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

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
    network,
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


def sequences() -> tuple[Any, Any]:
    """Sequences, and a function of their means."""
    x = np.random.default_rng(0).standard_normal((16, 6, 12)).astype(np.float32)
    return x, np.tanh(2 * x.mean(axis=1)[:, :3])


def check_training(params: Any, of: Any, share: float = 0.5) -> None:
    tx = sparse_adam(2e-2)
    trained, state, losses = fit(tx, params, of)
    check_links(trained, state)
    check_moved(tx.init(params), state)
    check_learned(losses, share)


class Pair(NamedTuple):
    weight: Any
    bias: Any


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    kernel: Any
    bias: Any


@jax.tree_util.register_pytree_node_class
class Node:
    """Children without names."""

    def __init__(self, *children: Any):
        self.children = children

    def tree_flatten(self) -> Any:
        return self.children, None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> Any:
        return cls(*children)


@row(
    "Libraries", "plain JAX", "dictionaries, tuples, NamedTuples, dataclasses, custom nodes, `None`"
)
@pytest.mark.parametrize("kind", ["tuple", "named", "dataclass", "node"])
def test_plain_jax(kind):
    x, y = task()
    layers = network(jax.random.key(0))
    make = {"tuple": lambda *xs: xs, "named": Pair, "dataclass": Layer, "node": Node}[kind]
    params = [make(layer["kernel"], layer["bias"]) for layer in layers.values()]

    def of(params: Any) -> Any:
        (w0, b0), (w1, b1) = (jax.tree.leaves(layer) for layer in params["layers"])
        return jnp.mean((jnp.tanh(x @ w0 + b0) @ w1 + b1 - y) ** 2)

    check_training({"layers": params, "absent": None}, of)


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


class Recurrent(nn.Module):
    @nn.compact
    def __call__(self, x):
        outputs: Any = nn.RNN(nn.LSTMCell(8))(x)
        return nn.Dense(3)(outputs[:, -1])


@row("Libraries", "recurrent network (Linen)", "`nn.RNN` of an LSTM")
def test_linen_lstm():
    x, y = sequences()
    model = Recurrent()
    params: Any = model.init(jax.random.key(0), x)["params"]
    gates = {f"LSTMCell_0/{i}{gate}/kernel": "io" for i in "ih" for gate in "fgio"}
    assert layouts(params) == {"Dense_0/kernel": "io", **gates}
    check_training(params, lambda p: jnp.mean((cast(Any, model.apply({"params": p}, x)) - y) ** 2))


class Partitioned(nn.Module):
    @nn.compact
    def __call__(self, x):
        init = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model"))
        return jnp.tanh(nn.Dense(3, kernel_init=init)(x))


@row(
    "Libraries", "Flax Linen, `nn.with_partitioning`", "boxed parameters, with or without unboxing"
)
@pytest.mark.parametrize("boxed", [True, False])
def test_linen_partitioned(boxed):
    x, y = task()
    model = Partitioned()
    params: Any = model.init(jax.random.key(0), x)["params"]
    params = params if boxed else nn.meta.unbox(params)
    assert layouts(params) == {"Dense_0/kernel": "io"}
    check_training(params, lambda p: jnp.mean((cast(Any, model.apply({"params": p}, x)) - y) ** 2))


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


@row("Libraries", "Flax NNX, custom layers", "`nnx.Param` named `w`, next to BatchNorm and Dropout")
def test_nnx_custom_layers():
    x, y = task()

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.w = nnx.Param(jax.random.normal(rngs.params(), (12, 24)) / 4)
            self.b = nnx.Param(jnp.zeros(24))
            self.norm = nnx.BatchNorm(24, rngs=rngs)
            self.dropout = nnx.Dropout(0.1, rngs=rngs)
            self.out = nnx.Linear(24, 3, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            h = nnx.tanh(self.norm(x @ self.w[...] + self.b[...]))
            return self.out(self.dropout(h))

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, sparse_adam(), wrt=nnx.Param)
    assert layouts(nnx.state(model, nnx.Param)) == {"w": "io", "out/kernel": "io"}

    @nnx.jit
    def step(model: Any, optimizer: Any) -> Any:
        value, grads = nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(model)
        optimizer.update(model, grads)
        return value

    losses = [float(step(model, optimizer)) for _ in range(STEPS)]
    check_links(nnx.state(model, nnx.Param), optimizer.opt_state)
    check_learned(losses)


@row("Libraries", "Flax NNX, `nnx.scan` over layers", "every layer has its exact number of links")
def test_nnx_scan():
    x, y = task()

    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.norm = nnx.LayerNorm(12, rngs=rngs)
            self.linear = nnx.Linear(12, 12, rngs=rngs)

        def __call__(self, h: Any) -> Any:
            return h + nnx.tanh(self.linear(self.norm(h)))

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            make = nnx.split_rngs(splits=3)(nnx.vmap(lambda rngs: Block(rngs)))
            self.blocks = make(rngs)
            self.out = nnx.Linear(12, 3, rngs=rngs)

        def __call__(self, h: Any) -> Any:
            apply = nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(lambda h, b: b(h))
            return self.out(apply(h, self.blocks))

    graph, params, rest = nnx.split(Model(nnx.Rngs(0)), nnx.Param, ...)
    assert layouts(params) == {"blocks/linear/kernel": "mio", "out/kernel": "io"}
    check_training(params, lambda p: jnp.mean((nnx.merge(graph, p, rest)(x) - y) ** 2))


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


@row("Libraries", "Equinox, recurrent network", "`GRUCell`, `eqx.filter_jit(donate='all')`")
def test_equinox_gru():
    eqx = pytest.importorskip("equinox")
    x, y = sequences()

    class Model(eqx.Module):
        cell: Any
        out: Any

        def __call__(self, x: Any) -> Any:
            start = jnp.zeros(8)
            return self.out(jax.lax.scan(lambda h, x: (self.cell(x, h), None), start, x)[0])

    one, two = jax.random.split(jax.random.key(0))
    model: Any = Model(eqx.nn.GRUCell(12, 8, key=one), eqx.nn.Linear(8, 3, key=two))
    tx = sparse_adam(2e-2)
    state = tx.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit(donate="all")
    def step(model: Any, state: Any) -> Any:
        of = lambda m: jnp.mean((jax.vmap(m)(x) - y) ** 2)  # noqa: E731
        value, grads = eqx.filter_value_and_grad(of)(model)
        updates, state = tx.update(grads, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), state, value

    losses = []
    for _ in range(STEPS):
        model, state, value = step(model, state)
        losses.append(float(value))
    params = eqx.filter(model, eqx.is_inexact_array)
    names = ("cell/weight_ih", "cell/weight_hh", "out/weight")
    assert layouts(params) == dict.fromkeys(names, "oi")
    check_links(params, state)
    check_learned(losses)


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


@row("Libraries", "Haiku, convolution, GRU, attention", "kernels as `window, in, out`")
def test_haiku_layers():
    hk = pytest.importorskip("haiku")
    x, y = sequences()

    def network(x: Any) -> Any:
        h = jnp.tanh(hk.Conv1D(12, 3)(x))
        h += hk.MultiHeadAttention(2, 6, w_init=hk.initializers.VarianceScaling())(h, h, h)
        core = hk.GRU(8)
        h, _ = hk.dynamic_unroll(core, h.swapaxes(0, 1), core.initial_state(16))
        return hk.Linear(3)(h[-1])

    model = hk.without_apply_rng(hk.transform(network))
    params = model.init(jax.random.key(0), x)
    projections = ("query", "key", "value", "linear")
    assert layouts(params) == {
        "conv1_d/w": "sio",
        "gru/w_h": "io",
        "gru/w_i": "io",
        "linear/w": "io",
        **{f"multi_head_attention/{name}/w": "io" for name in projections},
    }
    check_training(params, lambda p: jnp.mean((model.apply(p, x) - y) ** 2))


@row("Libraries", "Haiku, `layer_stack`", "every layer has its exact number of links")
def test_haiku_layer_stack():
    hk = pytest.importorskip("haiku")
    x, y = task()

    def network(x: Any) -> Any:
        layers = hk.experimental.layer_stack(3)(lambda h: h + jnp.tanh(hk.Linear(12)(h)))
        return hk.Linear(3)(layers(x))

    model = hk.without_apply_rng(hk.transform(network))
    params = model.init(jax.random.key(0), x)
    assert sorted(layouts(params).values()) == ["io", "mio"]
    check_training(params, lambda p: jnp.mean((model.apply(p, x) - y) ** 2))
