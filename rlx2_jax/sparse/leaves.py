"""Selects the sparse leaves of a parameter tree and interprets their axes.

The default rule selects by name and role, for Flax (Linen and NNX), Haiku and Equinox:

- float arrays with two or more axes, named `kernel`, `weight` or `w` (also `weight_ih`, `w1`,
  `wq`), or unnamed in a list, a tuple or a custom node;
- in linear, convolution, recurrent and attention layers. Embeddings, normalization layers and
  biases (with any number of axes) stay dense.

`kernel` and `w` are `[window..., in, out]`, attention kernels `[in, heads, size]` and
`[heads, size, out]`; `weight` is `[out, in, window...]`, as in Equinox. Leading axes of stacked
networks (`nn.vmap`, `nn.scan`, NNX and Equinox ensembles) are inferred from the shapes of biases
and scales (see `stacks`), from Linen's names (`Vmap...`, `Scan...`) and from Equinox's layers.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax.sparse import masks
from rlx2_jax.sparse.masks import Predicate
from rlx2_jax.sparse.stacks import Axes, bias_shape, read
from rlx2_jax.types import Array, Params

RULE = (
    "float arrays of two or more axes named kernel, weight or w (or unnamed) in linear, "
    "convolution, recurrent and attention layers; not embeddings, normalization or biases"
)
Sparsity = float | Array | Sequence[float] | Mapping[str, float] | Callable[[str, Any], float]
Choice = str | Sequence[str] | Predicate  # path patterns, or a predicate of path and leaf

_WEIGHT = re.compile(r"(kernel|weights?|w[a-z]?)(_\w*|\d+)?", re.IGNORECASE)
_UNNAMED = jax.tree_util.SequenceKey | jax.tree_util.FlattenedIndexKey
_BIAS = re.compile(r"(bias|b|scale|offset)(_\w*|\d+)?", re.IGNORECASE)
_EQUINOX = re.compile(r"Linear|Conv|GRUCell|LSTMCell")


class Leaf(NamedTuple):
    """One array of a parameter tree.

    Attributes:
      path: names joined by "/".
      shape: its shape.
      layout: one letter per axis: `m` stack members, `i` inputs, `o` outputs, others a window.
      sparse: whether it is sparse.
    """

    path: str
    shape: tuple[int, ...]
    layout: str
    sparse: bool

    def size(self, letter: str) -> int:
        """Product of the axes with this letter; `s` is the window."""
        known = letter if letter in "mio" else None
        sizes = (
            n
            for n, axis in zip(self.shape, self.layout)
            if (axis == letter if known else axis not in "mio")
        )
        return math.prod(sizes)

    @property
    def member_shape(self) -> tuple[int, ...]:
        """Shape `(window, in, out)` of one member, for the allocation of links."""
        window = [n for n, axis in zip(self.shape, self.layout) if axis not in "mio"]
        return (*window, self.size("i"), self.size("o"))


def names(path: jax.tree_util.KeyPath) -> str:
    """A key path as names joined by "/", without the `value` of an NNX variable."""
    keys = list(path)
    if keys and isinstance(keys[-1], jax.tree_util.GetAttrKey) and keys[-1].name == "value":
        keys = keys[:-1]
    return jax.tree_util.keystr(tuple(keys), simple=True, separator="/")


def matches(path: str, pattern: str) -> bool:
    """Whether a shell-style pattern matches `path` or a suffix of it that starts after a "/"."""
    parts = path.split("/")
    return any(fnmatchcase("/".join(parts[i:]), pattern) for i in range(len(parts))) or (
        fnmatchcase("/" + path, pattern)
    )


def describe(
    params: Params,
    sparse: Choice | None = None,
    stacked: int | Mapping[str, int] | None = None,
    layouts: Mapping[str, str] | None = None,
) -> list[Leaf]:
    """All leaves of a tree, in the order of `jax.tree.leaves`.

    Args:
      sparse: overrides the default rule: patterns, or a predicate of path and leaf.
      stacked: number of leading axes that stack networks, for all sparse leaves or by pattern.
      layouts: axis letters by pattern, as in `Leaf.layout`: {"conv/weight": "oihw"}.
    """
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    paths = [names(path) for path, _ in flat]
    shapes = {path: tuple(np.shape(leaf)) for path, (_, leaf) in zip(paths, flat)}
    _check_arrays(paths, [leaf for _, leaf in flat])
    layers = _equinox_layers(params)
    given = {path: _by_pattern(path, stacked) for path in paths}
    axes = read(shapes, given)
    described = []
    for path, (keys, leaf) in zip(paths, flat):
        layer = next((v for k, v in layers.items() if f"{path}/".startswith(k and f"{k}/")), None)
        layout = _layout(path, shapes[path], layer, axes[path], given[path])
        layout = _given_layout(path, shapes[path], layouts) or layout
        weight = _is_float(leaf) and 0 not in shapes[path] and len(layout.replace("m", "")) >= 2
        if sparse is None:
            chosen = weight and _by_name(path, keys, shapes, layer)
        elif callable(sparse):
            chosen = bool(sparse(keys, leaf))
        else:
            patterns = [sparse] if isinstance(sparse, str) else sparse
            bias = _BIAS.fullmatch(path.rpartition("/")[2])
            chosen = weight and not bias and any(matches(path, p) for p in patterns)
        described.append(Leaf(path, shapes[path], layout, chosen))
    return described


def allocate(
    leaves: Sequence[Leaf],
    arrays: Sequence[Any],
    sparsity: Sparsity,
    distribution: str = "erdos_renyi",
) -> list[int | Array]:
    """The number of links of one member of each sparse leaf: N - floor(S_l N).

    Args:
      arrays: the sparse leaves' values, for a callable `sparsity`.
      sparsity: of all sparse leaves together; or by pattern (the first match counts); or one value
        per sparse leaf; or a function of path and array.
    """
    chosen = [leaf for leaf in leaves if leaf.sparse]
    if isinstance(sparsity, Mapping):
        groups = [_first_match(leaf.path, sparsity) for leaf in chosen]
        links: list[Any] = [None] * len(chosen)
        for pattern in dict.fromkeys(groups):
            members = [i for i, group in enumerate(groups) if group == pattern]
            part = [chosen[i] for i in members]
            for i, n in zip(members, _allocated(part, sparsity[pattern], distribution)):
                links[i] = n
        return links
    if callable(sparsity):
        sparsity = [sparsity(leaf.path, x) for leaf, x in zip(chosen, arrays)]
    return _allocated(chosen, sparsity, distribution)


def check_sparsity(sparsity: Any) -> None:
    """Raises if a value in `sparsity` is invalid."""
    if callable(sparsity):
        return
    values = sparsity.values() if isinstance(sparsity, Mapping) else sparsity
    several = isinstance(sparsity, Mapping | Sequence) and not isinstance(sparsity, str)
    for value in values if several else (sparsity,):
        masks.check_sparsity(value)


def patterns_of(sparsity: Sparsity) -> list[str] | None:
    """The patterns of a `sparsity` by patterns, which also select the sparse leaves."""
    return list(sparsity) if isinstance(sparsity, Mapping) else None


def check_patterns(leaves: Sequence[Leaf], name: str, patterns: Any) -> None:
    """Raises if a pattern is the first match of no leaf (for `sparsity`: of no sparse leaf)."""
    if not isinstance(patterns, Mapping) or not leaves:
        return
    weights = [leaf for leaf in leaves if leaf.sparse or name != "sparsity"]
    used = {_first_match(leaf.path, patterns) for leaf in weights}
    for pattern in patterns:
        if pattern not in used:
            raise ValueError(
                f"{name}: pattern {pattern!r} is the first match of no weight; params has "
                + ", ".join(leaf.path for leaf in leaves)
            )


def _allocated(
    leaves: Sequence[Leaf], sparsity: float | Sequence[float] | Array, distribution: str
) -> list[int | Array]:
    members = [leaf.size("m") for leaf in leaves]
    shapes = [leaf.member_shape for leaf in leaves]
    if isinstance(sparsity, Sequence):
        sparsities = masks.layer_sparsities(shapes, sparsity, distribution)
    else:
        each = [shape for shape, m in zip(shapes, members) for _ in range(m)]
        starts = np.cumsum([0, *members])
        every = masks.layer_sparsities(each, sparsity, distribution)
        sparsities = [every[start] for start in starts[:-1]]
    return [masks.links(shape, s) for shape, s in zip(shapes, sparsities)]


def _first_match(path: str, patterns: Mapping[str, Any]) -> str:
    return next((p for p in patterns if matches(path, p)), "")


def _by_pattern(path: str, value: int | Mapping[str, int] | None) -> int | None:
    if isinstance(value, Mapping):
        return next((value[p] for p in value if matches(path, p)), None)
    return value


def _given_layout(path: str, shape: tuple[int, ...], layouts: Mapping[str, str] | None) -> str:
    pattern = _first_match(path, layouts or {})
    letters = (layouts or {}).get(pattern, "")
    if letters and (len(letters) != len(shape) or "i" not in letters or "o" not in letters):
        raise ValueError(
            f"layout {letters!r} for {path} of shape {shape}: give one letter per axis, with i for "
            "inputs, o for outputs, m for stacked members and any other for a window"
        )
    return letters


def _by_name(path: str, keys: Any, shapes: Mapping[str, Any], layer: Any) -> bool:
    parent, _, name = path.rpartition("/")
    if layer is not None:
        known = _EQUINOX.match(type(layer).__name__) is not None
        return known and name.startswith("weight")
    if not keys or isinstance(keys[-1], _UNNAMED):
        return True
    if not _WEIGHT.fullmatch(name):
        return False
    embeds = "embed" in parent.rpartition("/")[2].lower()
    return not embeds or bias_shape(path, shapes) is not None  # a patch embedding is linear


def _layout(path: str, shape: tuple[int, ...], layer: Any, axes: Axes, stacked: int | None) -> str:
    """One letter per axis of a leaf."""
    if path.rpartition("/")[2].lower().startswith("weight"):
        rank = 2 + getattr(layer, "num_spatial_dims", 0) if layer is not None else len(shape)
        members = max(len(shape) - rank, 0) if stacked is None else stacked
        return ("m" * members + "oi" + "s" * len(shape))[: len(shape)]
    members, inputs, outputs = axes
    window = max(len(shape) - members - inputs - outputs, 0)
    return ("m" * members + "s" * window + "i" * inputs + "o" * outputs)[: len(shape)]


def _equinox_layers(params: Params) -> dict[str, Any]:
    """Equinox's layers in a tree, by path."""
    is_layer = lambda x: type(x).__module__.startswith("equinox.nn.") and not hasattr(x, "layers")  # noqa: E731
    nodes = jax.tree_util.tree_flatten_with_path(params, is_leaf=is_layer)[0]
    layers = {names(path): x for path, x in nodes if is_layer(x)}
    for path, layer in list(layers.items()):  # layers that contain layers, such as attention
        inner = {f"{path}/{name}": value for name, value in vars(layer).items() if is_layer(value)}
        if inner:
            del layers[path]
            layers |= inner
    return layers


def _check_arrays(paths: Sequence[str], leaves: Sequence[Any]) -> None:
    """Raises if a leaf is not an array."""
    for path, leaf in zip(paths, leaves):
        if not (hasattr(leaf, "dtype") or isinstance(leaf, int | float | complex)):
            raise ValueError(
                f"params has a leaf that is not an array: {path or '(unnamed)'} is {leaf!r}. Give "
                "only arrays; for Equinox, eqx.filter(model, eqx.is_inexact_array)"
            )


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
