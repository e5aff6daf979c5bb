"""Training as one pure function of a key."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_tasks import Slide
from programs import jit

import rlx2_jax as rlx2
from rlx2_jax import config as configs
from rlx2_jax.envs import make_device

pytestmark = pytest.mark.fast

SMALL = {"steps": 120, "warmup": 20, "hidden": (8, 8), "batch_size": 8, "capacity": 100}
SMALL |= {"mask_interval": 20, "buffer_interval": 20}
LANE = rlx2.Lane(method="rlx2", actor_sparsity=0.5, critic_sparsity=0.5, t0=30)


@pytest.fixture(scope="module")
def trained():
    """Three lanes of one compiled program, which is given their hyper-parameters."""
    config = rlx2.make_config(Slide(), **SMALL)
    run = jit(jax.vmap(rlx2.make_train(Slide(), config, LANE, evaluations=4, episodes=2)))
    keys = jax.random.split(jax.random.key(0), 3)
    return config, run, keys, run(keys, hypers(config, *[LANE] * 3))


def hypers(config, *lanes):
    return jax.tree.map(lambda *x: jnp.stack(x), *(configs.hyper(config, lane) for lane in lanes))


def test_lanes_have_metrics_and_differ(trained):
    _, _, _, found = trained
    assert found.metrics["step"].tolist() == [[45, 70, 95, 120]] * 3
    assert found.metrics["return"].shape == (3, 4)
    assert np.isfinite(found.metrics["critic_loss"]).all()
    kernels = np.asarray(found.agent.actor.params["Dense_1"]["kernel"])
    assert not np.array_equal(kernels[0], kernels[1])
    live = np.asarray(found.agent.actor.masks["Dense_1"]["kernel"])
    assert not kernels[~live].any() and len(set(live.sum(axis=(1, 2)).tolist())) == 1


def assert_is_lane_1(alone, found):
    lane = jax.tree.map(lambda x: x[1], found)
    for one, two in zip(jax.tree.leaves(alone), jax.tree.leaves(lane), strict=True):
        np.testing.assert_allclose(one, two, rtol=2e-4, atol=2e-4)


def test_a_lane_alone_is_the_same_lane(trained):
    """Also with the hyper-parameters of `make_train`."""
    config, _, keys, found = trained
    train = rlx2.make_train(Slide(), config, LANE, evaluations=4, episodes=2)
    assert_is_lane_1(jit(train)(keys[1]), found)


@pytest.mark.slow
@pytest.mark.parametrize(("evaluations", "steps"), [(0, []), (3, [53, 86, 119])])
def test_steps_after_the_last_evaluation_are_made(trained, evaluations, steps):
    config, _, keys, found = trained
    train = rlx2.make_train(Slide(), config, LANE, evaluations=evaluations, episodes=2)
    alone = jit(train)(keys[1])
    assert_is_lane_1(alone.agent, found.agent)
    assert not steps or alone.metrics["step"].tolist() == steps


def test_steps_after_the_last_evaluation_are_a_loop_of_their_own():
    """If there are none, nothing is compiled for them."""
    config, loops = rlx2.make_config(Slide(), **SMALL), {}
    for evaluations in (3, 4):
        train = rlx2.make_train(Slide(), config, LANE, evaluations=evaluations, episodes=2)
        jaxpr = jax.make_jaxpr(train)(jax.random.key(0)).jaxpr
        loops[evaluations] = sum(eqn.primitive.name == "while" for eqn in jaxpr.eqns)
    assert loops[3] == loops[4] + 1


def test_lanes_may_differ_in_hyper_parameters(trained):
    config, run, keys, _ = trained
    lanes = [dataclasses.replace(LANE, learning_rate=x) for x in (1e-3, 0.0, 1e-4)]
    found = run(keys[np.zeros(3, int)], hypers(config, *lanes))
    biases = np.asarray(found.agent.critic.params["Dense_0"]["bias"])
    first = jit(lambda key: rlx2.td3.init(key, config, LANE))(
        jax.random.fold_in(jax.random.fold_in(keys[0], 0), 0)
    )
    np.testing.assert_array_equal(biases[1], first.critic.params["Dense_0"]["bias"])
    assert not np.array_equal(biases[0], biases[1])
    assert not np.array_equal(biases[0], biases[2])


def test_replay_arrays_are_no_longer_than_the_run():
    config = rlx2.make_config(Slide(), **{**SMALL, "capacity": 10**6})
    train = rlx2.make_train(Slide(), config, LANE, evaluations=1, episodes=1)
    text = jax.jit(train).trace(jax.random.key(0)).lower().as_text()
    assert f"tensor<{config.steps + 2}x1x" in text and "tensor<1000002x1x" not in text


@pytest.mark.parametrize("algo", ["td3", "sac"])
def test_the_value_of_a_truncated_task_is_learned(algo):
    """Reward 1 at every step, truncated every 5 steps: value 1 / (1 - γ) = 2."""
    env = make_device("rlx2_jax/Truncation-v0")
    config = rlx2.make_config(env, algo, steps=900, warmup=60, hidden=(16, 16), batch_size=32)
    lane = rlx2.Lane(method="dense", discount=0.5, learning_rate=3e-3, tau=0.05, target_entropy=-9)
    result = jit(rlx2.make_train(env, config, lane, evaluations=1, episodes=1))(jax.random.key(1))
    assert float(result.metrics["return"][0]) == 5.0 and float(result.metrics["length"][0]) == 5.0
    if algo == "td3":  # SAC's values contain the entropy bonus
        assert float(result.metrics["q"][0]) == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action_dim": 2}, "use make_config"),
        ({"max_episode_steps": None}, "needs a time limit"),
    ],
)
def test_mistakes_are_found_before_anything_is_compiled(change, message):
    config = rlx2.make_config(Slide(), **SMALL)
    env = type("Other", (Slide,), change)()
    with pytest.raises(ValueError, match=message):
        rlx2.make_train(env, config, LANE)


def test_an_object_that_is_no_environment():
    with pytest.raises(TypeError, match="has no reset, step, action_dim"):
        rlx2.make_config(object())  # pyright: ignore[reportArgumentType]
    config = rlx2.make_config(Slide(), **SMALL)
    with pytest.raises(ValueError, match="only 100 steps"):
        rlx2.make_train(Slide(), config, LANE, evaluations=101)
