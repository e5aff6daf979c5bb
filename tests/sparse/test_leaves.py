"""Selection of sparse leaves and the meaning of their axes: by library, pattern and stack."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from rlx2_jax import masks_of, sparsify
from rlx2_jax.sparse import leaves, masks

pytestmark = pytest.mark.fast


def described(params: Any, **options: Any) -> dict[str, str]:
    """Layouts of the sparse leaves by path."""
    return {x.path: x.layout for x in leaves.describe(params, **options) if x.sparse}


@jax.tree_util.register_pytree_node_class
class Node:
    """A pytree node that does not name its children."""

    def __init__(self, *children: Any):
        self.children = children

    def tree_flatten(self):
        return self.children, None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def zeros(tree: Any) -> Any:
    shape = lambda x: isinstance(x, tuple) and all(isinstance(n, int) for n in x)  # noqa: E731
    return jax.tree.map(jnp.zeros, tree, is_leaf=shape)


class Net(nn.Module):
    """A layer of every kind."""

    @nn.compact
    def __call__(self, tokens, image):
        x = nn.Embed(5, 8)(tokens)
        x = nn.LayerNorm()(nn.MultiHeadDotProductAttention(2)(x))
        y = nn.ConvTranspose(6, (2, 2))(nn.Conv(4, (3, 3))(image))
        lifted: Any = {
            "in_axes": None,
            "axis_size": 3,
            "variable_axes": {"params": 0},
            "split_rngs": {"params": True},
        }
        critics = nn.vmap(nn.Dense, **lifted)(7)(y)
        return x, critics, nn.DenseGeneral((2, 3))(y)


def test_linen():
    args = jnp.zeros((1, 3), int), jnp.zeros((1, 4, 4, 2))
    params = jax.eval_shape(Net().init, jax.random.key(0), *args)["params"]
    attention = "MultiHeadDotProductAttention_0"
    assert described(params) == {
        "Conv_0/kernel": "ssio",
        "ConvTranspose_0/kernel": "ssio",
        "VmapDense_0/kernel": "mio",
        "DenseGeneral_0/kernel": "ioo",
        **{f"{attention}/{name}/kernel": "ioo" for name in ("query", "key", "value")},
        f"{attention}/out/kernel": "iio",
    }


def test_nnx():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(5, 8, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(2, 8, rngs=rngs)
            self.linear = nnx.Linear(8, 4, rngs=rngs)
            self.norm = nnx.LayerNorm(4, rngs=rngs)

    names = ("key", "out", "query", "value")
    expected = {f"attention/{n}/kernel": "iio" if n == "out" else "ioo" for n in names}
    assert described(nnx.state(Model(nnx.Rngs(0)), nnx.Param)) == {
        **expected,
        "linear/kernel": "io",
    }
    make = nnx.vmap(lambda key: nnx.Linear(3, 4, rngs=nnx.Rngs(key)))
    ensemble = nnx.state(make(jax.random.split(jax.random.key(0), 5)))
    assert described(ensemble) == {"kernel": "mio"}


def test_plain_trees_and_haikus_names():
    tree = {
        "mlp/~/linear_0": {"w": (4, 5), "b": (5,)},
        "embed": {"embeddings": (9, 4)},
        "layer_norm": {"scale": (5,), "offset": (5,)},
        "critics": {"w": (2, 4, 5), "b": (2, 5)},
        "patch_embed": {"kernel": (2, 2, 3, 4), "bias": (4,)},
        "token_embed": {"weight": (9, 4)},
        "rnn": {"weight_ih": (12, 4), "w1": (3, 4), "wide_bias": (3, 4)},
        "attention": {"wq": (4, 6), "wo": (6, 4), "wte": (9, 4)},
        "empty": {"kernel": (0, 4)},
        "table": (4, 5),
    }
    assert described(zeros(tree)) == {
        "mlp/~/linear_0/w": "io",
        "critics/w": "mio",
        "patch_embed/kernel": "ssio",
        "rnn/weight_ih": "oi",
        "rnn/w1": "io",
        "attention/wq": "io",
        "attention/wo": "io",
    }
    assert described(zeros([((4, 5), (5,)), ((5, 2), (2,))])) == {"0/0": "io", "1/0": "io"}
    assert described({"layer": Node(jnp.ones((4, 5)), jnp.ones(5))}) == {"layer/0": "io"}
    assert described({"w": np.ones((3, 4), int), "s": 1.0}) == {}


def test_equinox():
    eqx = pytest.importorskip("equinox")
    keys = jax.random.split(jax.random.key(0), 5)

    class Model(eqx.Module):
        mlp: Any
        conv: Any
        embed: Any
        norm: Any
        attention: Any
        ensemble: Any

    make = lambda key: eqx.nn.Linear(3, 4, key=key)  # noqa: E731
    model = Model(
        eqx.nn.MLP(3, 2, 8, 2, key=keys[0]),
        eqx.nn.Conv2d(3, 16, 3, key=keys[1]),
        eqx.nn.Embedding(9, 4, key=keys[2]),
        eqx.nn.LayerNorm((4, 4)),
        eqx.nn.MultiheadAttention(2, 8, key=keys[3]),
        eqx.filter_vmap(make)(keys),
    )
    params = eqx.filter(model, eqx.is_inexact_array)
    projections = ("query", "key", "value", "output")
    assert described(params) == {
        **{f"mlp/layers/{i}/weight": "oi" for i in range(3)},
        "conv/weight": "oiss",
        **{f"attention/{name}_proj/weight": "oi" for name in projections},
        "ensemble/weight": "moi",
    }
    state = sparsify(optax.adam(1e-3), 0.5, method="static").init(params)
    assert np.asarray(masks_of(state).conv.bias).all()
    for layer, layout in ((model.conv, "oiss"), (model.ensemble, "moi")):  # a layer by itself
        assert described(eqx.filter(layer, eqx.is_inexact_array)) == {"weight": layout}


@pytest.mark.parametrize(
    ("path", "pattern", "found"),
    [
        ("kernel", "*/kernel", True),
        ("params/Dense_0/kernel", "*/kernel", True),
        ("params/embed/embedding", "embed*", True),
        ("params/Dense_0/kernel", "Dense_?/kernel", True),
        ("params/Dense_0/kernel", "kernel", True),
        ("params/Dense_0/kernel", "Dense_0", False),
        ("params/Dense_0/bias", "*/kernel", False),
    ],
)
def test_patterns(path, pattern, found):
    assert leaves.matches(path, pattern) == found


TREE = {"actor": {"kernel": (30, 40), "bias": (40,)}, "head": {"kernel": (40, 2), "bias": (2,)},
        "embed": {"embedding": (50, 8)}}  # fmt: skip


def links(sparsity: Any, tree: Any = TREE, **options: Any) -> dict[str, int]:
    params = zeros(tree)
    state = sparsify(optax.sgd(0.1), sparsity, method="static", **options).init(params)
    flat = jax.tree_util.tree_flatten_with_path(masks_of(state))[0]
    return {leaves.names(path): int(m.sum()) for path, m in flat}


def test_sparsity_by_value_pattern_list_and_function():
    dense = {"actor/bias": 40, "head/bias": 2}
    assert links(0.9)["embed/embedding"] == 400
    assert links({"*/kernel": 0.9, "embed*": 0}) == links(0.9)
    found = links({"actor*": 0.9, "embed*": 0.5})
    expected = {"actor/kernel": 120, "head/kernel": 80, "embed/embedding": 200}
    assert found == {**dense, **expected}
    found = links([0.9, 0.5])
    assert found == {**dense, "actor/kernel": 120, "head/kernel": 40, "embed/embedding": 400}
    found = links(lambda path, x: 0.5 if path == "head/kernel" else 0.9)
    assert found == {**dense, "actor/kernel": 120, "head/kernel": 40, "embed/embedding": 400}
    found = links(0.5, sparse="embed*")
    assert found == {**dense, "actor/kernel": 1200, "head/kernel": 80, "embed/embedding": 200}


@pytest.mark.parametrize(
    ("sparsity", "message"),
    [
        ("0.9", "'0.9' is not a number: give one in"),
        ({"a": "x"}, "'x' is not a number"),
        (np.ones(2), "is not a number"),
        (jnp.float32(1.5), r"not in \[0, 1\)"),
        (True, "True is not a number"),
        ({"nothing*": 0.9}, r"no leaf of params is sparse"),
        ({"*": 0.9, "actor*": 0.5}, r"'actor\*' is the first match of no weight"),
    ],
)
def test_messages(sparsity, message):
    with pytest.raises(ValueError, match=message):
        links(sparsity)


def test_numbers_as_arrays():
    assert links(jnp.float32(0.5)) == links(np.float64(0.5)) == links(np.array(0.5)) == links(0.5)


def test_layouts_and_stacks_given():
    assert described(zeros({"w": (2, 3, 4)}), stacked=1) == {"w": "mio"}
    assert described(zeros({"w": (2, 3, 4)}), layouts={"w": "oim"}) == {"w": "oim"}
    tree = zeros({"q": {"w": (2, 3, 4)}, "p": {"w": (3, 4)}})
    assert described(tree, stacked={"q/*": 1}) == {"p/w": "io", "q/w": "mio"}
    for letters in ("io", "mmm"):
        with pytest.raises(ValueError, match="give one letter per axis"):
            described(zeros({"w": (2, 3, 4)}), layouts={"w": letters})


@pytest.mark.parametrize("layouts", [None, {"*/w": "iom"}])
def test_members_have_exact_counts(layouts):
    """Every member has as many links as a single network, wherever the stack axis is."""
    alone = {"a": {"w": (30, 40), "b": (40,)}, "c": {"w": (40, 2), "b": (2,)}}
    axis = 0 if layouts is None else 2
    place = lambda s: (*s[:axis], 3, *s[axis:])  # noqa: E731
    stacked = {k: {"w": place(v["w"]), "b": (3, *v["b"])} for k, v in alone.items()}
    found = sparsify(optax.sgd(0.1), 0.9, method="set", interval=1, t_end=9, layouts=layouts)
    params: Any = jax.tree.map(lambda x: x + 1, zeros(stacked))
    state = found.init(params)
    expected = links(0.9, alone)
    for _ in range(2):
        for name in alone:
            mask = np.moveaxis(np.asarray(masks_of(state)[name]["w"]), axis, 0)
            assert mask.sum(axis=(1, 2)).tolist() == [expected[f"{name}/w"]] * 3
            assert not (mask[0] == mask[1]).all()
        state = found.update(params, state, params)[1]


def test_allocation_of_convolutions_and_attention():
    """Conv: as [window, in, out]; attention: with all heads as outputs."""
    tree = {"conv": {"kernel": (3, 3, 4, 8)}, "query": {"kernel": (8, 2, 4)}}
    plain = {"conv": {"kernel": (3, 3, 4, 8)}, "query": {"kernel": (8, 8)}}
    a = links(0.7, tree, layouts={"query/*": "ioo"}, distribution="erk")
    assert a == links(0.7, plain, distribution="erk")
    first, second = masks.layer_sparsities([(3, 3, 4, 8), (8, 8)], 0.7, "erk")
    assert a["conv/kernel"] == masks.links((3, 3, 4, 8), first)
    assert a["query/kernel"] == masks.links((8, 8), second)


SCANNED: Any = {  # attention whose biases alone could be read in two ways, and a layer without one
    "norm": {"scale": (4, 8), "bias": (4, 8)},
    "wide": {"kernel": (4, 16, 8)},
    "attention": {
        "query": {"kernel": (4, 8, 2, 4), "bias": (4, 2, 4)},
        "out": {"kernel": (4, 2, 4, 8), "bias": (4, 8)},
    },
}
STACKS = [
    ({"block": SCANNED}, {"wide": "mio", "query": "mioo", "out": "miio"}),
    # two levels: an ensemble of scanned blocks
    (
        {"block": jax.tree.map(lambda s: (3, *s), SCANNED, is_leaf=lambda x: isinstance(x, tuple))},
        {"wide": "mmio", "query": "mmioo", "out": "mmiio"},
    ),
    # a block without one beside networks that are not stacked: only its own subtree is
    ({"block": SCANNED, "head": {"kernel": (8, 2), "bias": (2,)}}, {"wide": "mio", "head": "io"}),
    # convolutions of three members, three inputs and a window of three
    (
        {"conv": {"w": (3, 3, 3, 3, 4), "b": (3, 4)}, "linear": {"w": (3, 6, 3)}},
        {"conv": "mssio", "linear": "mio"},
    ),
    ({"conv": {"kernel": (3, 5, 4), "bias": (4,)}}, {"conv": "sio"}),
    ({"conv": {"kernel": (3, 5, 4)}}, {"conv": "sio"}),
    ({"Dense_0": {"kernel": (3, 5, 4)}}, {"Dense_0": "mio"}),
    ({"DenseGeneral_0": {"kernel": (3, 5, 4)}}, {"DenseGeneral_0": "sio"}),
    ({"general": {"kernel": (2, 3, 4, 5), "bias": (4, 5)}}, {"general": "iioo"}),
    # one temperature per member
    (
        {"a": {"kernel": (2, 5, 4), "bias": (2, 4)}, "c": {"w": (2, 4, 4)}, "log_alpha": (2,)},
        {"a": "mio", "c": "mio"},
    ),
]


@pytest.mark.parametrize(("tree", "expected"), STACKS)
def test_stacks_are_read_from_the_shapes(tree, expected):
    found = {path.split("/")[-2]: layout for path, layout in described(zeros(tree)).items()}
    assert {name: found[name] for name in expected} == expected


def test_leaves_that_are_no_arrays():
    with pytest.raises(ValueError, match=r"a leaf that is not an array: act is <.*eqx\.filter"):
        described({"w": np.ones((3, 4)), "act": jax.nn.relu})
