"""Critics as an ensemble: the leading axis, REDQ's subset, and algorithms as values."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lanes import quick, setting, windows

from rlx2_jax import agents, config, networks
from rlx2_jax.agents import common, sac, td3
from rlx2_jax.agents.algorithm import Algorithm
from rlx2_jax.algorithms import NETWORK_USE
from rlx2_jax.options import _INHERITED
from rlx2_jax.sparse import accounting

pytestmark = pytest.mark.fast
KEY = jax.random.key(5)
LANE = config.Lane(actor_sparsity=0.5, critic_sparsity=0.5)


def test_members_have_separate_weights_and_masks():
    cfg = setting("td3", critics=3)
    critic = quick(lambda: agents.ALGORITHMS["td3"].init(jax.random.key(0), cfg, LANE))().critic
    assert critic.members == 3
    kernel, mask = critic.params["Dense_0"]["kernel"], critic.masks["Dense_0"]["kernel"]
    assert kernel.shape[0] == mask.shape[0] == 3
    for i, j in itertools.combinations(range(3), 2):
        assert not np.array_equal(kernel[i], kernel[j]) and not np.array_equal(mask[i], mask[j])
        assert mask[i].sum() == mask[j].sum()


def test_the_first_critics_do_not_depend_on_the_others_values():
    """Equal members give equal Q, each equal to the member alone."""
    cfg = setting("sac", critics=4)
    critic = agents.ALGORITHMS["sac"].init(jax.random.key(1), cfg, LANE).critic
    obs, action = jnp.ones((6, cfg.obs_dim)), jnp.zeros((6, cfg.action_dim))
    q = networks.q_values(networks.online(critic), obs, action)
    assert q.shape == (4, 6)
    np.testing.assert_array_equal(networks.q_value(networks.online(critic), obs, action), q[0])
    np.testing.assert_array_equal(networks.minimum(q), np.asarray(q).min(axis=0))


def test_a_target_uses_a_random_subset():
    q = jnp.arange(5.0)[:, None] + jnp.zeros((5, 3))
    cfg = setting("sac", critics=5, critic_subset=2)
    keys = jax.random.split(jax.random.key(0), 500)
    found = np.asarray(jax.vmap(lambda key: common.target_value(q, key, cfg))(keys))
    assert (found == found[:, :1]).all()  # one subset for the whole batch
    # min of two of {0..4}, all ten pairs alike: 0 in 4 of 10, then 3, 2, 1
    shares = np.bincount(found[:, 0].astype(int), minlength=5) / 500
    np.testing.assert_allclose(shares, [0.4, 0.3, 0.2, 0.1, 0.0], atol=0.07)
    whole = dataclasses.replace(cfg, critic_subset=0)
    assert (common.target_value(q, keys[0], whole) == 0).all()


def test_redqs_actor_climbs_the_mean():
    """With a subset the actor's loss has the mean over all critics, not their minimum."""
    batch, one = windows(0, 16, dtype="float32"), jnp.int32(1)
    losses = {}
    for subset in (0, 2):
        cfg = setting("sac", critics=4, critic_subset=subset)
        state = sac.init(jax.random.key(2), cfg, LANE)
        hyper = config.hyper(cfg, LANE)._replace(learning_rate=jnp.zeros(()))
        update = quick(lambda s, c=cfg, h=hyper: sac.update(s, batch, KEY, one, one, c, h))
        _, metrics = update(state)
        noise = sac.draw_noise(jax.random.split(KEY, 3)[0], cfg).actor
        action, log_prob = networks.squashed_sample(networks.online(state.actor), batch.obs, noise)
        q = networks.q_values(networks.online(state.critic), batch.obs, action)
        value = q.mean(0) if subset else q.min(0)
        losses[subset] = float(metrics["actor_loss"])
        assert losses[subset] == pytest.approx(float(jnp.mean(log_prob - value)), abs=1e-5)
    assert losses[0] != losses[2]


def test_settings_of_ensembles_are_checked():
    with pytest.raises(ValueError, match="critic_subset=3: use at most critics=2"):
        setting("sac", critic_subset=3)
    with pytest.raises(ValueError, match="critics=0"):
        setting("sac", critics=0)


def test_the_ledger_counts_all_critics():
    sizes = (11, 3, (256, 256), 0.9, 0.8)
    two, ten = (accounting.ledger("sac", accounting.Networks(*sizes, critics=n)) for n in (2, 10))
    assert ten.critic_parameters == two.critic_parameters
    extra = ten.online_parameters - two.online_parameters
    assert extra == pytest.approx(8 * two.critic_parameters)
    assert ten.critic_update_flops > 4 * two.critic_update_flops


def test_an_algorithm_is_a_value():
    """One that is SAC under another name is configured and trained like it."""
    own = Algorithm("soft", NETWORK_USE["sac"], sac.init, sac.act, sac.update, sac.mean_action)
    agents.register_algorithm(own, like="sac")
    try:
        cfg, like = (config.make(name, 3, 1) for name in ("soft", "sac"))
        assert dataclasses.replace(cfg, algo="sac") == like
        assert cfg.actor_layers == like.actor_layers and cfg.scheme == like.scheme
        with pytest.raises(ValueError, match="already an algorithm 'td3'"):
            agents.register_algorithm(own._replace(name="td3"), like="sac")
        with pytest.raises(ValueError, match="like='none'"):
            agents.register_algorithm(own._replace(name="other"), like="none")
    finally:
        for table in (agents.ALGORITHMS, NETWORK_USE, _INHERITED):
            table.pop("soft")


@pytest.mark.parametrize("execution", ["masked", "compact"])
def test_compile_time_does_not_grow_with_a_large_ensemble(execution):
    """Up to ten critics are unrolled; more are one batched program."""
    batch, one = windows(0, 16, dtype="float32"), jnp.int32(1)

    def size(critics: int) -> int:
        cfg = setting("td3", critics=critics, execution=execution)
        init = jax.jit(lambda: td3.init(jax.random.key(2), cfg, LANE))
        state, hyper = jax.eval_shape(init), config.hyper(cfg, LANE)
        update = jax.jit(lambda s: td3.update(s, batch, KEY, one, one, cfg, hyper)[0])
        return len(init.lower().as_text().splitlines()) + len(
            update.lower(state).as_text().splitlines()
        )

    assert size(40) < 1.1 * size(20)


def test_a_large_ensemble_computes_as_its_members_alone():
    cfg = setting("td3", critics=12)
    critic = agents.ALGORITHMS["td3"].init(jax.random.key(1), cfg, LANE).critic
    obs, action = jax.random.normal(KEY, (6, cfg.obs_dim)), jnp.zeros((6, cfg.action_dim))
    q = networks.q_values(networks.online(critic), obs, action)
    assert q.shape == (12, 6) and len(set(np.asarray(q[:, 0]).tolist())) == 12
    np.testing.assert_array_equal(networks.minimum(q), np.asarray(q).min(axis=0))
    for i in range(12):
        params = jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], critic.params)
        alone = networks.online(critic._replace(params=params, members=1))
        np.testing.assert_allclose(networks.q_values(alone, obs, action)[0], q[i], rtol=1e-5)
    y = jnp.linspace(-1.0, 1.0, 6)
    expected = ((np.asarray(q) - np.asarray(y)) ** 2).mean(axis=1).sum()
    np.testing.assert_allclose(common.squared_errors(q, y), expected, rtol=1e-5)
