"""Code shared by the algorithms: initial networks and the delayed n-step switch."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lanes import assert_equal, assert_on_mask, setting

from rlx2_jax import config
from rlx2_jax.agents import common as agent
from rlx2_jax.agents import td3

CFG = setting("td3", dtype="float64")


@pytest.fixture(autouse=True, scope="module")
def float64():
    """As in the tests of the algorithms, which need the same initial networks."""
    with jax.enable_x64(True):
        yield


@pytest.mark.fast
def test_delayed_switch():
    hyper = config.hyper(CFG, config.Lane(t0=10, n=3))
    by_steps = dataclasses.replace(CFG, switch="steps")
    for t, n in [(1, 1), (9, 1), (10, 3), (11, 3)]:
        other = jnp.int32(20 - t)
        assert int(agent.switched_n(other, jnp.int32(t), CFG, hyper)) == n
        assert int(agent.switched_n(jnp.int32(t), other, by_steps, hyper)) == n


def test_equal_seeds_share_dense_weights():
    key = jax.random.key(7)
    dense = td3.init(key, CFG, config.Lane(method="dense"))  # ignores the lane's sparsity
    assert all(m.all() for m in jax.tree.leaves((dense.actor.masks, dense.critic.masks)))
    for method, sparsity in [("ss", 0.5), ("set", 0.6), ("rigl", 0.7), ("rlx2", 0.8)]:
        lane = config.Lane(method=method, actor_sparsity=sparsity, critic_sparsity=sparsity / 2)
        state = td3.init(key, CFG, lane)
        for whole, sparse in zip(dense, state):
            masked = jax.tree.map(lambda p, m: p * m, whole.params, sparse.masks)
            assert_equal(sparse.params, masked)
            assert_equal(sparse.params, sparse.target)
            assert_on_mask(sparse)
        q1, q2 = state.critic.params["Dense_0"]["kernel"]
        assert not np.array_equal(q1, q2)


def test_a_fresh_state_can_be_donated():
    leaves = jax.tree.leaves(td3.init(jax.random.key(0), CFG, config.Lane()))
    assert len({x.unsafe_buffer_pointer() for x in leaves}) == len(leaves)


def test_targets_are_copied_before_masking_on_request():
    cfg, key = dataclasses.replace(CFG, targets="polyak"), jax.random.key(1)
    dense, state = (td3.init(key, cfg, config.Lane(method=m)) for m in ("dense", "rlx2"))
    assert_equal(state.critic.target, dense.critic.params)
    assert_equal(state.actor.target, dense.actor.params)


def test_magnitude_masks_keep_the_largest_weights():
    cfg = dataclasses.replace(CFG, mask_init="magnitude")
    dense, state = (
        td3.init(jax.random.key(1), cfg, config.Lane(method=m)).actor for m in ("dense", "ss")
    )
    for layer, mask in zip(dense.params.values(), state.masks.values()):
        size, live = np.abs(layer["kernel"]), np.asarray(mask["kernel"])
        assert live.all() or size[live].min() >= size[~live].max()


@pytest.mark.parametrize("field", ["actor_sparsity", "critic_sparsity"])
def test_a_sparsity_that_leaves_a_layer_without_links_is_refused(field):
    with pytest.raises(ValueError, match=r"sparsity 0.9999 leaves .* use at most"):
        td3.init(jax.random.key(0), CFG, dataclasses.replace(config.Lane(), **{field: 0.9999}))
