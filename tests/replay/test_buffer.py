"""The replay buffer's contents and windows, against a plain-Python deque."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from deque_model import ACT, OBS, SHAPES, Model, N, Stream, example, filled, playing, policy
from lanes import quick

from rlx2_jax.replay import buffer
from rlx2_jax.types import Batch, Transition

add = jax.jit(buffer.add)
sample = quick(buffer.sample, static_argnums=(2, 3))
trim = jax.jit(buffer.trim)


def assert_windows(batch: Batch, model: Model, n: int, reach: int) -> np.ndarray:
    """Every row of `batch` is a window of the model in its first `reach` steps; returns which."""
    truth = model.windows(reach)
    start = {float(o[0]): i for i, o in enumerate(truth.obs)}
    got = jax.tree.map(np.asarray, batch)
    assert got.next_obs.shape == (len(got.obs), n, OBS)
    which = np.array([start.get(float(o[0]), -1) for o in got.obs])
    assert (which >= 0).all(), "a window that starts outside the valid ones"
    np.testing.assert_array_equal(got.obs, truth.obs[which])
    np.testing.assert_array_equal(got.action, truth.action[which])
    for name in ("reward", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(got, name)[:, :reach], getattr(truth, name)[which])
    # There is no bootstrapping after a termination, so the stored value does not matter.
    matters = (~truth.terminated | truth.truncated)[which]
    np.testing.assert_array_equal(
        got.next_obs[:, :reach][matters], np.asarray(truth.next_obs)[which][matters]
    )
    return which


@pytest.mark.fast
@pytest.mark.parametrize("shape", SHAPES)
def test_random_sequences_agree_with_a_deque(shape):
    envs, capacity, horizon = shape
    chunk = 8
    for seed in range(3):
        rng, stream = np.random.default_rng(seed), Stream(envs, seed, p_end=0.15 + 0.2 * seed)
        buf = buffer.init(capacity, example(envs), horizon=horizon, n=N)
        model = Model(buf)
        limit = capacity if seed == 0 else 5 * capacity // 8
        least = min(capacity, limit) // envs
        for i in range(20):
            valid, steps, lengths = rng.random(chunk) > 0.1, [], []
            for ok in valid:
                steps.append(stream.step())
                if ok:
                    model.add(steps[-1], limit)
                else:  # the episode continues from the last stored observation
                    stream.obs = steps[-1].obs
                lengths.append(len(model.steps))
            stacked = jax.tree.map(lambda *x: np.stack(x), *steps)
            buf, got = playing(buf, stacked, valid, limit)
            np.testing.assert_array_equal(got, lengths)
            least = min(least, *lengths) if i > 5 else least
            if rng.random() < 0.3:
                ratio, b_min = np.float32(rng.choice([0.1, 0.5])), int(rng.integers(0, 12))
                buf = trim(buf, 1.0, 0.5, ratio=ratio, b_min=b_min)
                keep = -(-b_min // envs)
                model.pop(max(0, min(int(len(model.steps) * ratio), len(model.steps) - keep)))
            assert int(buffer.size(buf)) == envs * len(model.steps)
            if len(model.steps) >= N:
                which = assert_windows(sample(buf, jax.random.key(i), 1024, N), model, N, N)
                assert len(set(which)) == (len(model.steps) - N + 1) * envs  # all of them occur
        if horizon and seed == 2:  # more truncations came than there are slots
            assert int(buf.finals_written) > 10 * model.slots and least < limit // envs // 2


def test_plain_equals_jitted():
    stream, plain = Stream(3, 0, p_end=0.4), buffer.init(12, example(3), horizon=1000)
    jitted, no = plain, [False, True, False, False]
    for i in range(12):
        t, valid = stream.step(), not no[i % 4]
        plain, jitted = (f(plain, t, limit=10, valid=valid) for f in (buffer.add, add))
    jax.tree.map(np.testing.assert_array_equal, plain, jitted)
    key = jax.random.key(0)
    windows = buffer.sample(plain, key, 8, 2), sample(plain, key, 8, 2)
    jax.tree.map(np.testing.assert_array_equal, *windows)


@pytest.mark.fast
@pytest.mark.parametrize(("shape", "n"), [(SHAPES[0], 1), (SHAPES[2], N)])
def test_starts_are_uniform_and_never_cross_the_write_position(shape, n):
    draws = 20_000
    for steps in (5, 40):
        buf, model = filled(shape, steps)
        which = assert_windows(sample(buf, jax.random.key(n), draws, n), model, n, n)
        starts = (len(model.steps) - n + 1) * shape[0]
        counts = np.bincount(which, minlength=starts)
        assert len(counts) == starts and counts.min() > 0
        chi2 = ((counts - draws / starts) ** 2 / (draws / starts)).sum()
        assert chi2 < starts - 1 + 4 * np.sqrt(2 * (starts - 1))


@pytest.mark.fast
def test_reach_admits_starts_nearer_the_write_position():
    reaching = quick(lambda buf, key, reach: buffer.sample(buf, key, 2048, N, reach=reach))
    for shape, reach in itertools.product([SHAPES[0], SHAPES[2]], (1, 2, 3)):
        buf, model = filled(shape, 30)
        which = assert_windows(reaching(buf, jax.random.key(reach), reach), model, N, reach)
        assert set(which) == set(range((len(model.steps) - reach + 1) * shape[0]))


@pytest.mark.fast
def test_one_environment_needs_no_environment_axis():
    buf = buffer.init(9, jax.tree.map(lambda x: x[0], example(1)))
    whole = buf
    for _, t in filled(SHAPES[0], 14)[1].steps:
        one = jax.tree.map(lambda x: x[0], t)
        buf, whole = add(buf, one), add(whole, t)
    jax.tree.map(np.testing.assert_array_equal, buf, whole)


def test_lanes_equal_one_by_one():
    shape, lanes = (3, 36, 1000), 4
    limits, ratios = jnp.array([36, 20, 36, 9]), jnp.array([0.0, 0.1, 0.5, 0.2])

    def run(steps: Transition, limit, ratio, key):
        def body(buf, t):
            return buffer.add(buf, t, limit=limit), None

        empty = buffer.init(shape[1], example(shape[0]), horizon=shape[2])
        buf, _ = jax.lax.scan(body, empty, steps)
        buf = buffer.trim(buf, buffer.policy_distance(buf, policy, 8), 0.0, ratio=ratio, b_min=6)
        buf = buffer.trim_until(buf, policy, 0.3, 8, b_min=9)
        return buf, buffer.sample(buf, key, 32, N)

    streams = [Stream(3, seed) for seed in range(lanes)]
    played = [[s.step() for _ in range(40)] for s in streams]
    steps = [jax.tree.map(lambda *x: jnp.stack(x), *p) for p in played]
    keys = jax.random.split(jax.random.key(5), lanes)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *steps)
    together = quick(jax.vmap(run))(stacked, limits, ratios, keys)
    alone = quick(run)
    for i in range(lanes):
        one = alone(steps[i], limits[i], ratios[i], keys[i])
        jax.tree.map(lambda a, b, i=i: np.testing.assert_array_equal(a[i], b), together, one)


def test_works_with_64_bit_types_on():
    with jax.enable_x64(True):
        stream, buf = Stream(3, 0), buffer.init(30, example(3))
        for _ in range(14):
            buf = add(buf, stream.step(), limit=24)
        kept = jax.jit(lambda b: buffer.trim_until(b, policy, 0.1, 6, b_min=9))(buf)
        assert sample(kept, jax.random.key(0), 4, 2).obs.dtype == jnp.float32
        types = jax.tree.map(lambda x: x.dtype, buffer.init(30, example(3)))
        assert jax.tree.map(lambda x: x.dtype, kept) == types


@pytest.mark.fast
def test_refusals():
    with pytest.raises(ValueError, match=r"capacity 5 gives 2 steps of 2 .* at least 6"):
        buffer.init(5, example(2), n=3)
    buf, one = buffer.init(8, example(2)), example(2)
    for field, wrong in [
        ("obs", jnp.zeros((2, OBS + 1))),
        ("obs", jnp.zeros((3, OBS))),
        ("action", jnp.zeros((2, ACT - 1))),  # would fit into the row, one column off
        ("reward", jnp.zeros((2, 1))),
        ("next_obs", jnp.zeros((2, OBS - 1))),
        ("mean", jnp.zeros((2, 1))),
    ]:
        with pytest.raises(ValueError, match=f"{field} has shape"):
            buffer.add(buf, one._replace(**{field: wrong}))
        with pytest.raises(ValueError, match="has shape"):
            buffer.init(8, one._replace(**{field: wrong}))
    for field, wrong, message in [
        ("obs", jnp.zeros((2, 4, 4)), "flatten images"),
        ("action", jnp.zeros((2, 0)), "at least one element"),
        ("action", jnp.zeros(2), "action has shape"),
        ("terminated", jnp.zeros(2), "terminated is float32: give bool"),
        ("reward", None, "reward has dtype object: give an array of real"),
        ("obs", jnp.zeros((2, OBS), complex), "obs has dtype complex64: give an array"),
        ("action", 0.0, r"action has shape \(\): give"),
    ]:
        with pytest.raises(ValueError, match=message):
            buffer.init(8, one._replace(**{field: wrong}))
    with pytest.raises(ValueError, match=r"capacity=8.5: give an integer"):
        buffer.init(8.5, example(2))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="a dict: give a Transition"):
        buffer.init(8, one._asdict())  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="valid has shape"):
        buffer.add(buf, one, valid=jnp.ones(2, bool))
    with pytest.raises(ValueError, match=r"unknown distance 'kl'.*'l2'"):
        buffer.policy_distance(buf, policy, 4, distance="kl")
    with pytest.raises(ValueError, match=r"unknown behaviour 'noise'.*'action'"):
        buffer.policy_distance(buf, policy, 4, behaviour="noise")
