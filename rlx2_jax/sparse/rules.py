"""Growth and drop rules: the links that a mask update adds and removes.

Each rule is one function in a table. A growth rule scores every place of a layer; the free places
with the largest |score| get links:

    GROW[name](key, layer) -> [in, out], or `Factors` whose product is the score

A drop rule scores the links of a layer; those with the smallest |score| are dropped:

    DROP[name](layer) -> scores of the shape of `layer.weight`

Decorate growth rules that read `layer.smoothed` with `uses_smoothed`; networks then track the
exponentially smoothed dense gradient of every kernel. Decorate those that do not read
`layer.dense_grad` with `uses_no_gradient`.

`register_grow` and `register_drop` add custom rules. Every rule works in masked and compact
networks, in `topology.evolve`, `sparsify` and every agent, and as a value of `--grow` or `--drop`.
Lanes of one program may use different rules: the program computes all rules in use and selects by
lane.
"""

import functools
import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlx2_jax.types import Array


class Factors(NamedTuple):
    """A factored dense gradient: ∂L/∂θ = x gᵀ of a linear layer y = xᵀθ.

    Attributes:
      x: inputs: [in, batch].
      g: gradient of the loss with respect to the outputs: [out, batch].
    """

    x: Array
    g: Array


class Layer(NamedTuple):
    """The inputs of a rule. In masked networks `weight` and arrays of its shape are [in, out]; in
    compact networks they are vectors over the links.

    Attributes:
      weight: θ.
      grad: gradient with respect to `weight`.
      mu, nu: Adam's moments of `weight`; None with a foreign optimizer.
      dense_grad: gradient at every place, including absent links: [in, out], or its `Factors`.
      uniform: key -> [in, out], uniform in (0, 1); differs by layer.
      smoothed: smoothed dense gradient, for rules that declare it with `uses_smoothed`.
    """

    weight: Array
    grad: Array
    mu: Array | None
    nu: Array | None
    dense_grad: Array | Factors
    uniform: Callable[[Array], Array]
    smoothed: Array | None = None


SMOOTHING = 0.9  # decay of the smoothed gradient
GrowRule = Callable[[Array, Layer], Array | Factors]
DropRule = Callable[[Layer], Array]


def dense(score: Array | Factors) -> Array:
    """A score as an array [in, out]."""
    if not isinstance(score, Factors):
        return score
    highest = jax.lax.Precision.HIGHEST
    return jnp.einsum("...ib,...ob->...io", score.x, score.g, precision=highest)


def gradient(key: Array, layer: Layer) -> Array | Factors:
    """RigL (Evci et al., 2020) and RLx2: grows where the gradient is largest."""
    del key
    return layer.dense_grad


def uses_no_gradient(rule: GrowRule) -> GrowRule:
    """Declares that a growth rule does not read `layer.dense_grad`, so the ledger does not charge
    for it."""
    rule.needs_gradient = False  # pyright: ignore[reportFunctionMemberAccess]
    return rule


def needs_gradient(rule: GrowRule) -> bool:
    """Whether a growth rule needs the gradient of absent links."""
    return getattr(rule, "needs_gradient", True)


@uses_no_gradient
def random(key: Array, layer: Layer) -> Array:
    """SET (Mocanu et al., 2018): grows at random."""
    return layer.uniform(key)


def guided(key: Array, layer: Layer, share: float = 0.1) -> Array:
    """Guided stochastic exploration (Heddes et al., 2024): grows by gradient among a random 10%."""
    return jnp.where(layer.uniform(key) < share, dense(layer.dense_grad), 0.0)


def uses_smoothed(rule: GrowRule) -> GrowRule:
    """Declares that a growth rule reads `layer.smoothed`."""
    rule.needs_smoothed = True  # pyright: ignore[reportFunctionMemberAccess]
    return rule


def needs_smoothed(rule: GrowRule) -> bool:
    """Whether a growth rule reads `layer.smoothed`."""
    return getattr(rule, "needs_smoothed", False)


def smooth(average: Array, dense_grad: Array) -> Array:
    """m ← 0.9 m + 0.1 ∂L/∂θ, the average in `layer.smoothed`."""
    return SMOOTHING * average + (1.0 - SMOOTHING) * dense_grad


@uses_smoothed
def momentum(key: Array, layer: Layer) -> Array:
    """Sparse momentum (Dettmers and Zettlemoyer, 2019): grows by the smoothed gradient."""
    del key
    if layer.smoothed is None:
        raise ValueError("growth by momentum needs the smoothed gradient, `layer.smoothed`")
    return layer.smoothed


def magnitude(layer: Layer) -> Array:
    """Drops the smallest weights."""
    return jnp.abs(layer.weight)


def sensitivity(layer: Layer) -> Array:
    """Drops links whose removal changes the loss least, to first order: |θ ∂L/∂θ|."""
    return jnp.abs(layer.weight * layer.grad)


GROW: dict[str, GrowRule] = {
    "gradient": gradient,
    "random": random,
    "guided": guided,
    "momentum": momentum,
}
DROP: dict[str, DropRule] = {"magnitude": magnitude, "sensitivity": sensitivity}


def register_grow(name: str, rule: GrowRule) -> None:
    """Adds a growth rule under a name that configurations and flags can use.

    >>> import rlx2_jax as rlx2
    >>> def weakest_inputs(key, layer):
    ...     scores = rlx2.rules.dense(layer.dense_grad)
    ...     return 1 / (1 + abs(scores).sum(axis=1, keepdims=True)) + 0 * scores
    >>> rlx2.register_grow("weakest_inputs", weakest_inputs)
    >>> rlx2.Lane(grow="weakest_inputs").grow
    'weakest_inputs'
    >>> del rlx2.rules.GROW["weakest_inputs"]
    """
    _register(GROW, name, rule)


def register_drop(name: str, rule: DropRule) -> None:
    """Adds a drop rule under a name that configurations and flags can use."""
    _register(DROP, name, rule)


def _register(table: dict, name: str, rule: Callable) -> None:
    if not name.isidentifier():
        raise ValueError(f"rule name {name!r}: use letters, digits and underscores")
    if table.get(name, rule) is not rule:
        raise ValueError(f"there is already a rule {name!r}: choose another name")
    table[name] = rule


def select(scores: Sequence[Array | Factors], which: Array) -> Array | Factors:
    """The score of rule number `which` (traced); a single score passes through unchanged."""
    if len(scores) == 1:
        return scores[0]
    arrays = [dense(score) for score in scores]
    return functools.reduce(
        lambda chosen, i: jnp.where(which == i, arrays[i], chosen),
        range(1, len(arrays)),
        arrays[0],
    )


def shared_uniform(
    shapes: Sequence[tuple[int, ...]], dtype: jnp.dtype
) -> list[Callable[[Array], Array]]:
    """`Layer.uniform` for each array of a network: one draw per key, split among all arrays."""
    sizes = [math.prod(shape) for shape in shapes]
    drawn: list[tuple[Array, list[Array]]] = []  # the last key and its numbers

    def part(i: int, key: Array) -> Array:
        if not drawn or drawn[0][0] is not key:
            numbers = jax.random.uniform(key, (sum(sizes),), dtype)
            drawn[:] = [(key, jnp.split(numbers, list(accumulate(sizes))[:-1]))]
        return drawn[0][1][i].reshape(shapes[i])

    return [functools.partial(part, i) for i in range(len(shapes))]


def member_uniform(
    shapes: Sequence[tuple[int, ...]], members: int, dtype: jnp.dtype
) -> Callable[[Array | int, int, Array], Array]:
    """`(member, i, key) -> shapes[i]`: `Layer.uniform` of array i of one ensemble member.

    `member` may be traced. All members share one draw per key, split among them.
    """
    parts = shared_uniform([*shapes] * members, dtype)

    def uniform(member: Array | int, i: int, key: Array) -> Array:
        return jnp.stack([part(key) for part in parts[i :: len(shapes)]])[member]

    return uniform
