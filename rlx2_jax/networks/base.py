"""The base class of architectures: Flax modules, and the interface the rest of the package uses.

An architecture is one class in one file. It uses `Linear` for every layer that can be sparse; its
other parameters (LayerNorm) stay dense. `architectures.ARCHITECTURES` lists all architectures.
"""

import functools
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from rlx2_jax.kernels import layout
from rlx2_jax.types import Array, Masks, Network, Params

STATS = "stats"  # the variable collection that is updated from observations, not by gradients
Layers = tuple[tuple[str, tuple[int, int]], ...]  # (path in the parameters, (in, out))


class Sizes(NamedTuple):
    """The sizes and options of one network, from a configuration.

    Attributes:
      inputs: size of the input.
      outputs: size of the output.
      observations: how many of the leading inputs are the observation.
      hidden, width, blocks: set if in `Architecture.defaults`, else None.
      scheme: weight initialization, see `Linear`.
      dtype: of the parameters.
      precision: of matrix products.
    """

    inputs: int
    outputs: int
    observations: int
    hidden: tuple[int, ...] | None
    width: int | None
    blocks: int | None
    scheme: str
    dtype: str
    precision: str = "float32"


class BoundNetwork(Protocol):
    """A network with its parameters, as a callable: `online`, `target` and `bind` return one."""

    def __call__(self, x: Array) -> Array:
        """`[..., in] -> [..., out]`, or `[members, ..., out]` for an ensemble."""
        ...

    def first(self, x: Array) -> Array:
        """Output of the first member of an ensemble: `[..., out]`."""
        ...

    def each(self, x: Array) -> Array:
        """As `__call__`, with a separate copy of the input for each member."""
        ...

    def seeded(self, key: Array) -> "BoundNetwork":
        """The same network with random numbers (dropout), for a loss."""
        ...


class Architecture(nn.Module):
    """Base class. A module maps `[batch, in]` to `[batch, out]` and applies each `Linear` once.

    Attributes:
      defaults: its size settings (`hidden`, `width`, `blocks`) with their defaults.
      chain: whether it consists only of layers `Dense_0`, `Dense_1`, ... with ReLU in between; the
        fused kernels compute those in one call.
      narrows: whether it has narrower versions, for the Tiny baseline.

    A module with a field `precision` passes it to its `Linear` layers; others compute in float32.

    A module with running statistics keeps them in the collection `stats` and updates them in a
    method `observe(obs)`. A module with randomness (dropout) draws from the stream `dropout`, which
    exists if the caller gave a key (`Bound.seeded`).
    """

    defaults: ClassVar[Mapping[str, Any]] = {}
    chain: ClassVar[bool] = False
    narrows: ClassVar[bool] = False

    @classmethod
    def build(cls, sizes: Sizes) -> "Architecture":
        """The module of one network of a configuration."""
        raise NotImplementedError(f"{cls.__name__} has no build(sizes)")

    @nn.nowrap
    def layers(self, inputs: int) -> Layers:
        """Its sparse layers, in natural order of their names."""
        module: Any = self  # Flax modules are hashable, but type checkers do not know
        return _layers(module, inputs)

    @nn.nowrap
    def hidden_units(self) -> tuple[tuple[str, str], ...]:
        """Pairs of layers (a, b) such that only b reads the outputs of a. A unit without a link on
        either side is dead."""
        return ()

    @nn.nowrap
    def narrowed(self, width: int) -> "Architecture":
        """The same module with hidden layers of at most `width` units."""
        raise NotImplementedError(f"{type(self).__name__} has no narrower version")

    @nn.nowrap
    def tiny_width(self, inputs: int, sparsity: float) -> int:
        """The width whose dense module has about as many links as this one at `sparsity`."""
        raise NotImplementedError(f"{type(self).__name__} has no narrower version")

    @nn.nowrap
    def steps(self, params: Params, stats: Params | None = None) -> list[tuple]:
        """The operations on one vector x, in order, as plain tuples for exporters.

        ("linear", "path/of/layer")          x = θᵀ x + bias, with the layer's live links
        ("relu",)                            x = max(x, 0)
        ("normalize", mean, scale)           x = (x - mean) * scale
        ("layer_norm", scale, bias, ε)       x = (x - E x) / √(Var x + ε) * scale + bias
        ("save",), ("add_saved",)            push x; x = x + pop
        """
        raise NotImplementedError(f"{type(self).__name__} has no steps(): it cannot be exported")


def is_chain(module: Architecture | None) -> bool:
    """Whether the fused kernels can compute a network; None is a plain MLP of any size."""
    return module is None or module.chain


def apply(
    module: nn.Module, params: Params, stats: Params | None, key: Array | None, x: Array
) -> Array:
    """Applies a module to `[batch, in]`; kernels are arrays, or `CompactKernel`s."""
    variables = {"params": params} if stats is None else {"params": params, STATS: stats}
    y = module.apply(variables, x, rngs=None if key is None else {"dropout": key})
    assert isinstance(y, jax.Array)
    return y


def member_keys(key: Array | None, members: int | None) -> Array | None:
    """A key for each ensemble member: `[members]`; None without a key."""
    return None if key is None else jax.random.split(key, members or 1)


def observe(network: Network, obs: Array, active: Array | bool = True) -> Network:
    """Updates running statistics with new observations `[envs, obs]` if `active`."""
    if network.stats is None:
        return network
    variables = {"params": {}, STATS: network.stats}
    _, new = network.module.apply(variables, obs, method="observe", mutable=[STATS])
    keep = lambda a, b: jnp.where(active, a, b)  # noqa: E731
    return network._replace(stats=jax.tree.map(keep, new[STATS], network.stats))


def init(
    key: Array,
    module: Any,
    inputs: int,
    *,
    width: int | None = None,
    dtype: Any = "float32",
) -> tuple[Params, Masks, Params | None]:
    """Initial parameters of a module, a mask of the block that they fill, and statistics or None.

    With `width` (the Tiny baseline), initializes a narrower module, with its smaller fan-ins, in
    the corner of arrays of the full shape, padded with zeros. Without `width` the block is the
    whole array.
    """
    small = module if width is None else module.narrowed(width)
    variables = small.init(key, jnp.zeros((1, inputs), jnp.dtype(dtype)))
    params, stats = variables["params"], variables.get(STATS)
    full = params if width is None else _variables(module, inputs, str(dtype))["params"]

    def corner(like: Any, block: Array) -> Array:
        return jnp.pad(block, [(0, n - m) for n, m in zip(like.shape, block.shape)])

    padded = jax.tree.map(corner, full, params)
    block = jax.tree.map(lambda like, x: corner(like, jnp.ones_like(x, bool)), full, params)
    return padded, block, stats


def spec(module: Any, inputs: int, links: tuple[int, ...]) -> layout.Spec:
    """The compact spec of a module with room for `links` links in each layer."""
    layers = module.layers(inputs)
    names, shapes = zip(*layers)
    in_layers = {f"{name}/{part}" for name in names for part in ("kernel", "bias")}
    leaves = layout.flatten(_variables(module, inputs)["params"])
    others = tuple((path, leaf.shape) for path, leaf in leaves.items() if path not in in_layers)
    return layout.Spec(shapes, links, names, others)


@functools.lru_cache(maxsize=256)
def _variables(module: Any, inputs: int, dtype: str = "float32") -> Any:
    """Shapes of all variables of a module."""
    start = lambda: module.init(jax.random.key(0), jnp.zeros((1, inputs), dtype))  # noqa: E731
    variables = jax.eval_shape(start)
    if unknown := set(variables) - {"params", STATS}:
        raise ValueError(
            f"{type(module).__name__} has variable collections {sorted(unknown)}: keep running "
            f"statistics in {STATS!r}"
        )
    return variables


@functools.lru_cache(maxsize=256)
def _layers(module: Any, inputs: int) -> Layers:
    leaves = layout.flatten(_variables(module, inputs)["params"])
    layers = []
    for path, leaf in leaves.items():
        name, _, last = path.rpartition("/")
        if len(leaf.shape) >= 2:
            if last != "kernel" or len(leaf.shape) > 2 or f"{name}/bias" not in leaves:
                raise ValueError(
                    f"{type(module).__name__}: {path} of shape {leaf.shape} is not the kernel of a "
                    f"Linear layer: use networks.Linear for matrices"
                )
            layers.append((name, leaf.shape))
    return tuple(sorted(layers, key=lambda layer: layout.natural(layer[0])))
