"""DroQ, an algorithm defined in one file."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from both_forms import LANES, compare_float64
from lanes import quick, setting, windows
from programs import jit

import rlx2_jax as rlx2
from rlx2_jax import config, networks
from rlx2_jax.agents import ALGORITHMS
from rlx2_jax.agents.droq import RATE, DroQCritic
from rlx2_jax.envs import make_device

KEY = jax.random.key(0)
LANE = config.Lane(actor_sparsity=0.5, critic_sparsity=0.5)


def critic(**fields):
    return ALGORITHMS["droq"].init(KEY, setting("droq", **fields), LANE).critic


@pytest.mark.fast
def test_a_hidden_layer_is_normalized_and_nothing_is_dropped_without_a_key():
    net = critic()
    x = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    for i in range(2):
        params = jax.tree.map(lambda leaf, i=i: np.asarray(leaf[i]), net.params)
        y = x @ params["Linear_0"]["kernel"] + params["Linear_0"]["bias"]
        centred = y - y.mean(axis=1, keepdims=True)
        y = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-6)
        want = np.maximum(y, 0) @ params["Linear_1"]["kernel"] + params["Linear_1"]["bias"]
        np.testing.assert_allclose(networks.online(net)(jnp.asarray(x))[i], want, atol=1e-5)


@pytest.mark.fast
@pytest.mark.parametrize("form", ["masked", "compact"])
def test_a_key_drops_units_of_each_critic_differently(form):
    bound = networks.online(critic(execution=form, hidden=(64,)))
    x = jnp.ones((40, 6))
    q = bound.seeded(jax.random.key(1))(x)[..., 0]
    same = bound(x)[..., 0]
    changed = np.asarray(jnp.abs(q - same) > 1e-6)
    # Rows are equal, so a row without a dropped unit keeps its value: (1 - RATE)^64 of them.
    assert abs(changed.mean() - (1 - (1 - RATE) ** 64)) < 0.25
    assert not np.array_equal(changed[0], changed[1])
    assert not np.array_equal(q, bound.seeded(jax.random.key(2))(x)[..., 0])


@pytest.mark.fast
def test_the_actor_is_sacs_and_climbs_the_mean_of_its_critics():
    cfg = setting("droq")
    assert cfg.actor_module == setting("sac").actor_module
    assert isinstance(cfg.critic_module, DroQCritic)
    state = ALGORITHMS["droq"].init(KEY, cfg, LANE)
    hyper = config.hyper(cfg, LANE)._replace(learning_rate=jnp.zeros(()))
    batch, one = windows(0, 16, dtype="float32"), jnp.int32(1)
    key = jax.random.key(5)
    _, metrics = quick(lambda: ALGORITHMS["droq"].update(state, batch, key, one, one, cfg, hyper))()
    noise = rlx2.sac.draw_noise(jax.random.split(key, 3)[0], cfg).actor
    action, log_prob = networks.squashed_sample(networks.online(state.actor), batch.obs, noise)
    seeded = networks.online(state.critic).seeded(jax.random.fold_in(key, 5))
    value = networks.q_values(seeded, batch.obs, action).mean(axis=0)
    want = float(jnp.mean(log_prob - value))
    assert float(metrics["actor_loss"]) == pytest.approx(want, abs=1e-5)


def test_float64_training_is_equal_in_both_forms():
    compare_float64("droq", LANES[:2], 24)


def test_the_value_of_a_truncated_task_is_learned():
    """Reward 1 at every step, truncated every 5 steps: value 1 / (1 - γ) = 2, plus an entropy bonus
    that vanishes with the temperature."""
    env = make_device("rlx2_jax/Truncation-v0")
    cfg = rlx2.make_config(env, "droq", steps=400, warmup=60, hidden=(16,), batch_size=32,
                           updates_per_step=2)  # fmt: skip
    lane = rlx2.Lane(method="rigl", actor_sparsity=0.5, critic_sparsity=0.5, discount=0.5,
                     learning_rate=3e-3, tau=0.05, target_entropy=-9)  # fmt: skip
    result = jit(rlx2.make_train(env, cfg, lane, evaluations=1, episodes=1))(jax.random.key(1))
    assert float(result.metrics["return"][0]) == 5.0
    alpha = float(result.metrics["alpha"][0])
    assert float(result.metrics["q"][0]) == pytest.approx(2.0, abs=0.2 + 2 * alpha)


@pytest.mark.fast
def test_its_critics_need_hidden_layers():
    with pytest.raises(ValueError, match="sized by hidden: use architecture='mlp'"):
        cfg = setting("droq", architecture="simba", hidden=None, width=8, blocks=1)
        config.resolve(cfg, LANE)
