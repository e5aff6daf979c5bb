"""This package's Threefry gives the same bits as JAX's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx2_jax.prng import THREEFRY, normal

pytestmark = pytest.mark.fast


def draws(impl, seed):
    """Samples of every kind that the package draws."""
    key = jax.random.key(seed, impl=impl)
    folded = jax.random.fold_in(jax.random.fold_in(key, 3), 123_456)
    many = jax.random.split(folded, (2, 3))
    one = jax.random.split(folded)[1]
    return {
        "keys": jax.random.key_data(many),
        "normal": jax.random.normal(one, (7, 3)),
        "uniform": jax.random.uniform(many[1, 2], (5,)),
        "randint": jax.random.randint(one, (9,), 0, 1000),
        "bits8": jax.random.bits(one, (4, 3), jnp.uint8),
        "bits16": jax.random.bits(one, (3,), jnp.uint16),
        "scalar": jax.random.bits(one),
        "none": jax.random.bits(one, (0,)),
    }


@pytest.mark.long
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("seed", [0, 1, -1, 2**31 - 1])
def test_bits_are_those_of_jax(seed, wide):
    with jax.enable_x64(wide):
        got, want = draws(THREEFRY, seed), draws(None, seed)
        for name in want:
            np.testing.assert_array_equal(got[name], want[name], err_msg=name)
        if wide:
            pair = [jax.random.key(2**40 + 5, impl=impl) for impl in (THREEFRY, None)]
            ours, jaxs = (jax.random.bits(key, (6,), jnp.uint64) for key in pair)
            np.testing.assert_array_equal(ours, jaxs)


def test_lanes_and_jit():
    seeds = jnp.arange(5)
    got = jax.jit(jax.vmap(lambda s: jax.random.normal(jax.random.key(s, impl=THREEFRY), (4,))))
    want = jax.vmap(lambda s: jax.random.normal(jax.random.key(s), (4,)))
    np.testing.assert_array_equal(got(seeds), want(seeds))


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_lowers_for(platform):
    run = jax.jit(lambda seed: jax.random.normal(jax.random.key(seed, impl=THREEFRY), (4,)))
    run.trace(jnp.int32(0)).lower(lowering_platforms=(platform,))


def test_normal_numbers_do_not_depend_on_the_shape_they_are_drawn_in():
    for impl in (THREEFRY, None):
        key = jax.random.key(3, impl=impl)
        want = jax.random.normal(key, (4, 5, 3))
        np.testing.assert_array_equal(normal(key, (4, 5, 3), jnp.float32), want)
