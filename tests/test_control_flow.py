"""In-place branches: values, lanes, copies."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import equations, is_branch, jit

from rlx2_jax.control_flow import after, every, no_fuse, when

pytestmark = pytest.mark.fast


def double(x):
    return jax.tree.map(lambda leaf: 2 * leaf, x)


def test_changes_only_when_due():
    x = {"a": jnp.arange(3.0), "b": jnp.int32(5)}
    assert when(jnp.asarray(True), double, x)["a"].tolist() == [0.0, 2.0, 4.0]
    assert when(jnp.asarray(False), double, x)["b"] == 5


def test_every():
    run = jit(lambda count: every(3, count, double, jnp.float32(1.0)))
    assert [float(run(jnp.int32(i))) for i in range(7)] == [2, 1, 1, 2, 1, 1, 2]
    always = jax.make_jaxpr(lambda count: every(1, count, double, jnp.float32(1.0)))(jnp.int32(0))
    assert not [
        eqn for eqn, _ in equations(always.jaxpr) if eqn.primitive.name in ("while", "cond")
    ]


def test_stays_a_branch_over_lanes_as_long_as_the_count_is_not_of_a_lane():
    lanes = jnp.ones((4, 3))
    own = lambda x, count: every(2, count, double, x)  # noqa: E731
    for axes, count, real in (((0, None), jnp.int32(2), True), ((0, 0), jnp.arange(4), False)):
        run = jax.vmap(own, axes)
        loops = [eqn for eqn, _ in equations(jax.make_jaxpr(run)(lanes, count).jaxpr)]
        loops = [eqn for eqn in loops if eqn.primitive.name == "while"]
        assert [is_branch(eqn) for eqn in loops] == [real]
        expected = np.where(np.broadcast_to(count, 4) % 2 == 0, 2.0, 1.0)
        np.testing.assert_array_equal(run(lanes, count)[:, 0], expected)


def copies_at_every_turn(choose) -> int:
    """Arrays that a scan copies at every turn, whether `choose` changes them or not."""

    def change(pair):
        a, b = pair
        return jnp.where(b > 0, a, 0.0) + a[::-1], jnp.where(a > 0, b, 0.0) + b[::-1]

    def many(pair):
        def body(pair, i):
            a, b = choose(i % 5 == 0, change, pair)
            return (1.5 * a, b), None

        return jax.lax.scan(body, pair, jnp.arange(20))[0]

    jitted = jax.jit(many, donate_argnums=0)
    text = str(jitted.lower((jnp.ones(777), jnp.ones(777))).compile().as_text())
    body = re.search(r" while\(.*body=%?([\w.\-]+)", text[text.index("ENTRY") :])
    assert body
    own = text[text.index(f"%{body[1]} (") :].split("\n}\n")[0]
    return len(re.findall(r"f32\[777\]\S* copy\(", own))


def test_unchanged_arrays_are_not_copied():
    assert copies_at_every_turn(when) == 0
    assert copies_at_every_turn(lambda due, f, x: jax.lax.cond(due, f, lambda y: y, x)) > 0


def test_no_fuse_changes_no_number_and_keeps_the_computation_separate():
    def both(key, use):
        x = jax.random.normal(key, (13,))
        return use(no_fuse(x)), use(x)

    for lanes in (None, 3):
        run = lambda key: both(key, lambda x: x)  # noqa: E731
        keys = jax.random.key(0)
        if lanes:
            run, keys = jax.vmap(run), jax.random.split(keys, lanes)
        np.testing.assert_array_equal(*jit(run)(keys))

    def consumed(key, wrap):
        return jnp.flip(wrap(jnp.log1p(key)).reshape(2, 8), 0) * 2.0

    texts = [
        str(jax.jit(lambda x, w=w: consumed(x, w)).lower(jnp.ones(16)).compile().as_text())
        for w in (no_fuse, lambda x: x)
    ]
    log_and_flip = [
        any("log" in part and "reverse" in part for part in text.split("\n}\n")) for text in texts
    ]
    assert log_and_flip == [False, True]


def test_after_changes_nothing_but_orders():
    for results in ((jnp.float32(1.5), jnp.bool_(True)), {"loss": jnp.float32(jnp.nan)}):
        assert int(jax.jit(after)(jnp.int32(7), results)) == 7
