"""Shared by the integration tests: the rows of their table, a task, and the checks of every row."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import rlx2_jax as rlx2
from rlx2_jax.sparse import leaves, masks

SPARSITY = 0.75
PLAN: dict[str, Any] = {"interval": 10, "t_end": 120}
STEPS = 150


class Row(NamedTuple):
    """One line of the table in docs/integrations.md."""

    group: str
    name: str
    use: str
    test: str


def row(group: str, name: str, use: str) -> Callable[[Any], Any]:
    """Adds a test to the table."""

    def enter(test: Any) -> Any:
        test.rows = [Row(group, name, use, f"{test.__module__}.py::{test.__name__}")]
        return test

    return enter


def rows(group: str, uses: dict[str, str]) -> Callable[[Any], Any]:
    """Adds a test with one parameter per row, whose code is the row's."""

    def enter(test: Any) -> Any:
        where = f"{test.__module__}.py::{test.__name__}"
        test.rows = [Row(group, name, f"`{use}`", where) for name, use in uses.items()]
        return test

    return enter


def sparse_adam(rate: float = 1e-2, **options: Any) -> Any:
    return rlx2.sparsify(optax.adam(rate), SPARSITY, **{**PLAN, **options})


def task(rng: int = 0, inputs: int = 12, outputs: int = 3) -> tuple[Any, Any]:
    """Inputs, and the outputs of a sparse linear layer and tanh."""
    draw = np.random.default_rng(rng)
    truth = draw.standard_normal((inputs, outputs)) * (draw.random((inputs, outputs)) < 0.4)
    x = draw.standard_normal((64, inputs)).astype(np.float32)
    return x, np.tanh(x @ truth).astype(np.float32)


def network(key: Any, sizes: Sequence[int] = (12, 24, 3)) -> Any:
    """Parameters of a network of plain arrays."""
    keys = jax.random.split(key, len(sizes) - 1)
    return {
        f"layer_{n}": {"kernel": jax.random.normal(k, (i, o)) / i**0.5, "bias": jnp.zeros(o)}
        for n, (k, i, o) in enumerate(zip(keys, sizes, sizes[1:]))
    }


def loss(params: Any, x: Any, y: Any) -> Any:
    h = x
    for n, layer in enumerate(params.values()):
        h = jnp.tanh(h) if n else h
        h = h @ layer["kernel"] + layer["bias"][None]
    return jnp.mean((h - y) ** 2)


def fit(tx: Any, params: Any, of: Callable[..., Any], steps: int = STEPS) -> tuple[Any, Any, Any]:
    """Parameters, state and losses of a training run from masked parameters."""

    def step(carry: Any, _: None) -> Any:
        params, state = carry
        value, grads = jax.value_and_grad(of)(params)
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), value

    state = tx.init(params)
    carry = rlx2.mask(params, state), state
    (params, state), losses = jax.jit(lambda c: jax.lax.scan(step, c, None, length=steps))(carry)
    return params, state, losses


def check_links(params: Any, state: Any, sparsity: Any = SPARSITY) -> None:
    """Every member of every sparse leaf has exactly its Erdős–Rényi share, and all other
    entries are zero; other leaves are dense."""
    found = leaves.describe(params)
    chosen = [leaf for leaf in found if leaf.sparse]
    assert chosen
    each = [leaf.member_shape for leaf in chosen for _ in range(leaf.size("m"))]
    counts = [masks.links(s, part) for s, part in zip(each, masks.layer_sparsities(each, sparsity))]
    total = 0
    known = jax.tree_util.tree_flatten_with_path(rlx2.masks_of(state))[0]
    found_masks = {leaves.names(path): np.asarray(m) for path, m in known}
    for leaf, x in zip(found, jax.tree.leaves(params), strict=True):
        mask = found_masks.get(leaf.path, np.ones(leaf.shape, bool))
        if not leaf.sparse:
            assert mask.all()
            continue
        stack = tuple(a for a, letter in enumerate(leaf.layout) if letter != "m")
        live = mask.sum(axis=stack).ravel()
        expected, counts = counts[: live.size], counts[live.size :]
        assert live.tolist() == expected, leaf
        assert not np.asarray(x)[~mask].any(), f"{leaf.path} has left its mask"
        total += int(live.sum())
    size = sum(np.prod(leaf.shape) for leaf in chosen)
    np.testing.assert_allclose(rlx2.sparsity(state), 1 - total / size, atol=1e-6)


def check_moved(before: Any, after: Any) -> None:
    """The masks of two states differ."""
    pairs = zip(jax.tree.leaves(rlx2.masks_of(before)), jax.tree.leaves(rlx2.masks_of(after)))
    assert any(bool((np.asarray(a) != np.asarray(b)).any()) for a, b in pairs)


def check_learned(losses: Any, share: float = 0.5) -> None:
    values = np.asarray(losses)
    assert np.isfinite(values).all()
    assert values[-1] < share * values[0], (values[0], values[-1])
