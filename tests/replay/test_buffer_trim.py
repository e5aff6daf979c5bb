"""Policy distance of the oldest transitions, and trimming by it, against plain Python."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from deque_model import SHAPES, Model, example, filled, policy
from lanes import quick

from rlx2_jax.replay import buffer

add = jax.jit(buffer.add)
trim = jax.jit(buffer.trim, static_argnames=("hard", "full"))


def gaps(model: Model, distance: str, behaviour: str) -> np.ndarray:
    """The policy distance of each step, the oldest first."""
    gap = policy(model.field("obs")).astype(np.float64) - model.field(behaviour)
    if distance == "mse":
        return 0.5 * (gap**2).mean(axis=(1, 2))
    return np.sqrt((gap**2).sum(-1)).mean(1)


@pytest.mark.fast
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]])
def test_policy_distance_of_the_oldest(shape):
    cases = list(itertools.product((1, 7, 24), ("mse", "l2"), ("mean", "action")))
    measure = quick(
        lambda buf: [
            buffer.policy_distance(buf, policy, k, distance=form, behaviour=behaviour)
            for k, form, behaviour in cases
        ]
    )
    for steps in (4, 50):
        buf, model = filled(shape, steps)
        expected = [gaps(model, form, b)[: -(-k // shape[0])].mean() for k, form, b in cases]
        np.testing.assert_allclose(measure(buf), expected, rtol=1e-5)


@pytest.mark.fast
def test_policy_distance_without_means_compares_actions():
    buf = buffer.init(9, example(1, mean=False))
    _, model = filled(SHAPES[0], 9)
    for _, t in model.steps:
        buf = add(buf, t._replace(mean=None))
    got = jax.jit(lambda b: buffer.policy_distance(b, policy, 5))(buf)
    assert float(got) == pytest.approx(gaps(model, "mse", "action")[:5].mean(), rel=1e-5)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("distance", "ratio", "b_min", "options", "left"),
    [
        (0.3, 0.1, 0, {}, 90),
        (0.2, 0.1, 0, {}, 100),  # not above the threshold
        (0.3, 0.0, 0, {}, 100),  # a buffer of fixed capacity
        (0.3, 0.53, 0, {}, 47),  # floor(100 · 0.53), where float32 falls short of 53
        (0.3, 1.0, 0, {}, 0),
        (0.3, 0.1, 95, {}, 95),
        (0.3, 0.1, 95, {"hard": False}, 90),
        (0.3, 0.1, 100, {"hard": False}, 100),  # at b_min nothing is forgotten
        (0.3, 0.1, 0, {"full": False}, 100),  # at capacity, which is the default b_max
        (0.3, 0.1, 0, {"full": False, "b_max": 101}, 90),
        (0.3, 0.1, 0, {"full": True, "b_max": 100}, 90),
    ],
)
def test_trim_by_ratio(distance, ratio, b_min, options, left):
    buf = buffer.init(100, example(1))
    buf = buf._replace(length=jnp.int32(100), written=jnp.int32(130))
    kept = trim(buf, distance, 0.2, ratio=ratio, b_min=b_min, **options)
    assert int(kept.length) == left
    jax.tree.map(np.testing.assert_array_equal, kept._replace(length=buf.length), buf)


@pytest.mark.fast
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2], (3, 300, None)])
def test_trim_until_pops_no_more_than_it_must(shape):
    k = 4 * shape[0]
    until = quick(lambda buf, d0, b_min: buffer.trim_until(buf, policy, d0, k, b_min=b_min))
    for steps, seed in [(3, 0), (12, 1), (120, 2)]:
        buf, model = filled(shape, steps, seed)
        cost, held = gaps(model, "mse", "mean"), len(model.steps)
        # The mean of the oldest K after each number of pops; of an empty buffer it is 0.
        means = [cost[i : i + 4].mean() if i < held else 0.0 for i in range(held + 1)]
        middle = np.sort(means[:held])
        for d0 in [1e-6, *(middle[:-1] + middle[1:]) / 2, 10.0]:
            for b_min in (0, 5):
                most = max(0, held - -(-b_min // shape[0]))
                wanted = min(next(i for i, m in enumerate(means) if m <= d0), most)
                if np.min(np.abs(np.array(means) - d0)) > 1e-6:  # else rounding decides
                    assert held - int(until(buf, np.float32(d0), b_min).length) == wanted


@pytest.mark.fast
def test_trim_until_can_skip_a_full_buffer():
    buf, _ = filled(SHAPES[0], 30)
    until = jax.jit(lambda b, m: buffer.trim_until(b, policy, 0.0, 4, full=False, b_max=m))
    assert int(until(buf, 17).length) == 17
    assert int(until(buf, 18).length) == 0
