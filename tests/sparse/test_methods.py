"""The defining property of every method of `sparsify`; some are compared with jaxpruner."""

import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from paths import GOLDEN
from programs import jit

from rlx2_jax import masks_of, sparsify
from rlx2_jax.sparse import groups, methods
from rlx2_jax.sparse.leaves import Leaf

pytestmark = pytest.mark.fast

# Recorded with jaxpruner at its last commit (April 2024): create_masks of its pruners (global ones
# without normalization), the top-k functions of mask_calculator, SET._update_masks with RigL's
# scores and a drop fraction of 1/4, and PolynomialSchedule (updates every 10 steps from 10 to 110,
# power 3) at steps 9, 29, 59, 109 and 150.
JAXPRUNER = np.load(GOLDEN / "jaxpruner.npz")
SHAPES = {"a": (8, 12), "b": (12, 16)}


def recorded(name: str) -> dict[str, Any]:
    return {layer: {"kernel": jnp.asarray(JAXPRUNER[f"{name}/{layer}"])} for layer in SHAPES}


WEIGHTS, GRADS = recorded("weights"), recorded("grads")


def after(updates: int = 1, sparsity: Any = 0.75, **options: Any) -> tuple[Any, Any]:
    """Parameters and state after some updates with `GRADS`, which are not applied (rate 0)."""
    tx = sparsify(optax.sgd(options.pop("rate", 0.0)), sparsity, **options)
    params, state = WEIGHTS, tx.init(WEIGHTS)
    step = jit(lambda p, s: tx.update(GRADS, s, p))
    for _ in range(updates):
        changes, state = step(params, state)
        params = optax.apply_updates(params, changes)
    return params, state


def live(state: Any) -> dict[str, int]:
    return {k: int(m["kernel"].sum()) for k, m in masks_of(state).items()}


def same_masks(state: Any, name: str) -> None:
    jax.tree.map(np.testing.assert_array_equal, masks_of(state), recorded(name))


def on_the_mask(params: Any, state: Any) -> None:
    for layer in SHAPES:
        off = ~np.asarray(masks_of(state)[layer]["kernel"])
        assert not np.asarray(params[layer]["kernel"])[off].any()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("magnitude", {"method": "magnitude"}),
        ("saliency", {"method": "snip", "scope": "layer"}),
        ("global_magnitude", {"method": "magnitude", "scope": "global"}),
        ("global_saliency", {"method": "snip"}),
        ("nm", {"method": "magnitude", "structure": "2:4"}),
        ("block", {"method": "magnitude", "structure": (4, 2)}),
    ],
)
def test_pruning_as_jaxpruner(name, options):
    params, state = after(distribution="uniform", **options)
    same_masks(state, name)
    on_the_mask(params, state)


def test_rigl_as_jaxpruner():
    """From a recorded mask, at the update where ζ is 1/4."""
    tx = sparsify(optax.sgd(0.1), 0.5, interval=5, t_end=10, distribution="uniform")
    state: Any = tx.init(WEIGHTS)
    state = state._replace(codes=jax.tree.map(jnp.uint8, recorded("old")), count=jnp.int32(4))
    same_masks(jit(tx.update)(GRADS, state, WEIGHTS)[1], "rigl")


def test_gradual_pruning_follows_the_cubic_schedule():
    """Sizes and sparsities as in the record, whose steps count from 0."""
    tx = sparsify(
        optax.sgd(0.0), 0.8, method="gmp", start=10, interval=10, t_end=110, distribution="uniform"
    )
    first: Any = tx.init(WEIGHTS)
    assert live(first) == {"a": 96, "b": 192}
    step, previous = jit(tx.update), None
    for now, sparsity in zip((10, 30, 60, 110), JAXPRUNER["schedule"]):
        state = step(GRADS, first._replace(count=jnp.int32(now - 1)), WEIGHTS)[1]
        for layer, shape in SHAPES.items():
            final = math.floor(0.8 * math.prod(shape))
            assert live(state)[layer] == math.prod(shape) - math.floor(
                final * sparsity / 0.8 + 1e-4
            )
        mask = np.asarray(masks_of(state)["a"]["kernel"])
        assert previous is None or not (mask & ~previous).any()
        previous = mask
    for now in (9, 15, 111, 120):
        state = step(GRADS, first._replace(count=jnp.int32(now - 1)), WEIGHTS)[1]
        assert live(state) == {"a": 96, "b": 192}


def test_grasp_keeps_the_gradient_flow():
    """By hand: L = ½ Σ h θ², so H g = h² θ and the score is h² θ²: the two largest stay."""
    h = jnp.array([[1.0, 2.0], [3.0, 0.5]])
    params = {"w": jnp.array([[4.0, -1.0], [1.0, 10.0]])}  # h² θ²: 16, 4, 9, 25
    grad_fn = jax.grad(lambda p: 0.5 * jnp.sum(h * p["w"] ** 2))
    tx = sparsify(optax.sgd(0.1), 0.5, method="grasp")
    update = jit(lambda s: tx.update(grad_fn(params), s, params, grad_fn=grad_fn)[1])
    state = update(tx.init(params))
    assert masks_of(state)["w"].tolist() == [[True, False], [False, True]]
    with pytest.raises(ValueError, match="grasp needs the gradient function"):
        tx.update(params, tx.init(params), params)


def test_snip_by_hand():
    params = {"w": jnp.array([[4.0, -1.0], [1.0, 10.0]])}
    grads = {"w": jnp.array([[0.1, 2.0], [-3.0, 0.01]])}  # |θ g|: 0.4, 2, 3, 0.1
    tx = sparsify(optax.sgd(0.1), 0.5, method="snip")
    state = jit(tx.update)(grads, tx.init(params), params)[1]
    assert masks_of(state)["w"].tolist() == [[False, True], [True, False]]


@pytest.mark.parametrize("method", ["rigl", "set", "snfs", "dsr", "deepr", "srigl"])
def test_counts_are_kept_and_links_move(method):
    plan: Any = {} if method == "deepr" else {"interval": 2, "t_end": 100}
    tx = sparsify(optax.sgd(0.5), 0.75, method=method, **plan)
    start = tx.init(WEIGHTS)
    params, state = after(7, method=method, rate=0.5, **plan)
    on_the_mask(params, state)
    links = live(state)
    assert sum(links.values()) == sum(live(start).values())
    moved = links != live(start)
    assert moved == (method in ("snfs", "dsr"))  # between layers
    for layer in SHAPES:
        before, now = (np.asarray(masks_of(s)[layer]["kernel"]) for s in (start, state))
        assert (before != now).any() and links[layer] > 0


def test_deep_rewiring_keeps_signs():
    """A live link never has the sign opposite to its initial weight's."""
    params, _ = after(5, method="deepr", rate=0.5)
    for layer in SHAPES:
        weight, first = np.asarray(params[layer]["kernel"]), np.asarray(WEIGHTS[layer]["kernel"])
        assert (weight * first >= 0).all() and (weight != 0).any()


def leaves_of(*shapes):
    return [Leaf(f"l{i}", shape, "io", True) for i, shape in enumerate(shapes)]


def step_of(weights, mask, **fields):
    draws = [lambda key, x=x: jnp.zeros(x.shape) for x in weights]
    leaves = leaves_of(*(x.shape for x in weights))
    return groups.Step(leaves, weights, weights, mask, (), draws, jnp.int32(1), None, **fields)  # pyright: ignore[reportArgumentType]


def test_dsr_and_snfs_by_hand():
    """Two layers; half of eight links go. DSR: the four smallest of both, of which three survive in
    the second layer. SNFS: two of each; the second layer's gradients are three times as large."""
    weights = [jnp.array([[4.0, 0.1, 0.2, 0.3, 0, 0]]), jnp.array([[1.0, 2, 3, 0.4, 0, 0]])]
    masks = [w != 0 for w in weights]
    half = jnp.float32(0.5)
    survivors = lambda kept, score: kept.sum().astype(jnp.float32)  # noqa: E731
    zeros = [jnp.zeros((1, 6))] * 2
    new, _ = groups.redistribute(step_of(weights, masks), half, zeros, survivors, across=True)
    assert [int(m.sum()) for m in new] == [1 + 1, 3 + 3]
    assert new[0][0, 0] and new[1][0, :3].all()
    scores = [jnp.ones((1, 6)), jnp.array([[3.0, 3, 3, 3, 9, 3]])]
    mean = lambda kept, score: jnp.sum(kept * score) / kept.sum()  # noqa: E731
    new, _ = groups.redistribute(step_of(weights, masks), half, scores, mean, across=False)
    assert [int(m.sum()) for m in new] == [2 + 1, 2 + 3]
    assert new[0][0, [0, 3]].all() and new[1][0, [1, 2, 4]].all()


@pytest.mark.parametrize(
    ("total", "weights", "room", "expected"),
    [
        (10, [1.0, 1.0], [20, 20], [5, 5]),
        (10, [3.0, 1.0], [20, 20], [8, 2]),  # 7.5 and 2.5: the remainder goes to the first
        (10, [3.0, 1.0], [4, 20], [4, 6]),
        (10, [1.0, 0.0], [4, 4], [4, 4]),  # more than there is room for
        (3, [0.0, 0.0], [4, 4], [3, 0]),
        (0, [1.0, 2.0], [4, 4], [0, 0]),
        (5, [float("nan"), 1.0], [4, 8], [0, 5]),
    ],
)
def test_apportionment_is_exact(total, weights, room, expected):
    found = groups.apportion(jnp.int32(total), jnp.array(weights), jnp.array(room))
    assert found.tolist() == expected


@pytest.mark.parametrize("method", ["static", "srigl", "set"])
def test_constant_fan_in(method):
    plan: Any = {} if method == "static" else {"interval": 1, "t_end": 10}
    _, state = after(2, method=method, structure="fan_in", **plan)
    for layer, shape in SHAPES.items():
        fan_in = np.asarray(masks_of(state)[layer]["kernel"]).sum(axis=0)
        assert len(set(fan_in.tolist())) == 1 and 0 < fan_in[0] < shape[0]


@pytest.mark.parametrize("method", ["static", "rigl", "gmp", "snip"])
def test_n_of_every_m(method):
    plan: Any = {"interval": 1, "t_end": 3} if method in ("rigl", "gmp") else {}
    _, state = after(3, method=method, structure="2:4", **plan)
    for layer in SHAPES:
        mask = np.asarray(masks_of(state)[layer]["kernel"]).T  # [out, in]
        assert (mask.reshape(-1, 4).sum(axis=1) == 2).all()


def test_blocks():
    _, state = after(2, method="rigl", structure=(4, 2), interval=1, t_end=10)
    for layer, (rows, columns) in SHAPES.items():
        mask = np.asarray(masks_of(state)[layer]["kernel"])
        blocks = mask.reshape(rows // 4, 4, columns // 2, 2).sum(axis=(1, 3))
        assert set(np.unique(blocks)) == {0, 8}


def test_smoothed_gradients_decide():
    """SNFS grows by the average of gradients, not by the last one."""
    tx = sparsify(optax.sgd(0.0), 0.75, method="snfs", interval=2, t_end=10)
    state: Any = tx.init(WEIGHTS)
    state = jit(tx.update)(GRADS, state, WEIGHTS)[1]
    jax.tree.map(lambda m, g: np.testing.assert_allclose(m, 0.1 * g, rtol=1e-5),
                 state.extra["smoothed"], GRADS)  # fmt: skip


def test_messages():
    with pytest.raises(ValueError, match="8 inputs, which 2:3 cannot divide into groups of 3"):
        after(0, method="static", structure="2:3")
    for bad in ("4:2", "x", (4,), (0, 4)):
        with pytest.raises(ValueError, match="use None, 'fan_in'"):
            after(0, method="static", structure=bad)
    with pytest.raises(ValueError, match=r"does not support structure='2:4': use scope='layer'"):
        methods.gmp(interval=1, t_end=2, scope="global", structure="2:4")
    with pytest.raises(ValueError, match=r"start=5: gmp needs a start in \[0, t_end=2\)"):
        methods.gmp(interval=1, t_end=2, start=5)
    with pytest.raises(ValueError, match=r"method 'snip'.*'zeta0'; its options are at, scope"):
        after(0, method="snip", zeta0=0.5)
    with pytest.raises(ValueError, match=r"give the options \['at'\] to the method"):
        after(0, method=methods.snip(), at=3)
    with pytest.raises(ValueError, match="the same number of members"):
        tx = sparsify(optax.sgd(0.1), 0.5, method="dsr", interval=1, t_end=9, stacked={"a/*": 1})
        params = {"a": {"kernel": jnp.ones((2, 4, 4))}, "b": {"kernel": jnp.ones((4, 4))}}
        tx.update(params, tx.init(params), params)


def test_warnings_about_plans_without_effect():
    with pytest.warns(UserWarning, match="rigl never updates its masks: interval=10"):
        sparsify(optax.sgd(0.1), 0.5, interval=10, t_end=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sparsify(optax.sgd(0.1), 0.5, interval=9, t_end=10)
