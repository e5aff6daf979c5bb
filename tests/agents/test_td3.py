"""TD3: one update against plain NumPy, lanes of one program, and a problem with a known answer.

Programs take longest to compile, so all tests share two: one lane's update, and all lanes'.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import update_model
from lanes import (
    LANES,
    assert_close,
    assert_equal,
    assert_on_mask,
    lane_of,
    links,
    over_lanes,
    quick,
    setting,
    stack,
    windows,
)

from rlx2_jax import config, networks
from rlx2_jax.agents import td3
from rlx2_jax.types import Batch

# The target interval is not d, on purpose: the two are apart.
CFG = setting("td3", dtype="float64", policy_delay=2, target_interval=3)
update, update_lanes = quick(td3.update, static_argnums=5), quick(over_lanes(td3, CFG))
draw = quick(jax.random.fold_in)


@pytest.fixture(autouse=True, scope="module")
def float64():
    """Two programs that sum in another order part ways in float32, and not in float64."""
    with jax.enable_x64(True):
        yield


def train(state: Any, hyper: config.Hyper, key: jax.Array, batches: Batch, first: int = 1) -> Any:
    """One update for each of `batches`, the first of which is update number `first`."""
    metrics = {}
    for count, batch in enumerate(zip(*jax.tree.map(np.asarray, batches)), first):
        t = np.int32(count)
        state, metrics = update(state, Batch(*batch), draw(key, t), t, t, CFG, hyper)
    return state, metrics


@pytest.fixture(scope="module")
def lanes():
    """Stacked lanes, and their hyper-parameters, keys and data."""
    states = [td3.init(jax.random.key(lane.seed), CFG, lane) for lane in LANES]
    hypers = [config.hyper(CFG, lane) for lane in LANES]
    keys = [jax.random.key(100 + lane.seed) for lane in LANES]
    return stack(states), stack(hypers), stack(keys), stack([windows(i, 24, 16) for i in range(7)])


def test_lanes_of_one_program_equal_lanes_one_by_one(lanes):
    state, hyper, keys, data = lanes
    metrics = {}
    for t in range(24):  # T0 passes, actors and critics of all intervals evolve
        batch = jax.tree.map(lambda x, t=t: x[:, t], data)
        state, metrics = update_lanes(state, batch, keys, np.int32(t + 1), hyper)
    one_by_one = [train(*(lane_of(x, i) for x in lanes)) for i in range(len(LANES))]
    assert_close((state, metrics), stack(one_by_one), 1e-10)
    again = train(*(lane_of(x, 5) for x in lanes))
    assert_equal(again, one_by_one[5])  # the same seed repeats bit for bit


def test_hundreds_of_updates_keep_links_and_zeros(lanes):
    start, hyper, keys, data = lanes
    state = start
    for t in range(240):  # 60 mask updates of the critic and 30 of the actor
        batch = jax.tree.map(lambda x, t=t: x[:, t % 24], data)
        state, _ = update_lanes(state, batch, keys, np.int32(t + 1), hyper)
    for i, lane in enumerate(LANES):
        for name in td3.State._fields:
            before, after = lane_of(getattr(start, name), i), lane_of(getattr(state, name), i)
            assert_on_mask(after)
            assert links(after) == links(before)
            pairs = zip(jax.tree.leaves(before.masks), jax.tree.leaves(after.masks))
            moves = lane.method in ("set", "rigl", "rlx2")
            assert moves == any((a != b).any() for a, b in pairs)
            assert all(np.isfinite(x).all() for x in jax.tree.leaves(after.params))


def test_seeds_differ(lanes):
    state, hyper, _, data = (lane_of(x, 5) for x in lanes)
    data = jax.tree.map(lambda x: x[:2], data)
    one, other = (train(state, hyper, jax.random.key(k), data)[0].critic for k in (0, 1))
    pairs = zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params))
    assert any((a != b).any() for a, b in pairs)  # by target smoothing
    one, other = (td3.init(jax.random.key(k), CFG, LANES[5]).actor for k in (0, 1))
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params)):
        assert (a != b).any()


def numpy_update(state: Any, batch: Batch, count: int, hyper: config.Hyper, expert: Any) -> Any:
    """Expected results of the update, without target smoothing."""
    actor, critic = map(update_model.Model.of, state)
    gamma, lr, tau = (float(x) for x in (hyper.discount, hyper.learning_rate, hyper.tau))
    b = jax.tree.map(np.asarray, batch)
    n = 1 if count < int(hyper.t0) else int(hyper.n)
    y = np.zeros(len(b.obs))
    for i in range(len(b.obs)):
        total, discount, last, _ = update_model.n_step(
            b.reward[i], b.terminated[i], b.truncated[i], n, gamma
        )
        s = b.next_obs[i, last]
        action = np.tanh(update_model.mlp(actor.target, s))
        y[i] = total + discount * min(update_model.q_values(critic.target, s, action))
    if expert is not None:
        y = update_model.q_values(expert, b.obs, b.action)[0]

    def critic_loss(params: Any) -> Any:
        q1, q2 = update_model.q_values(params, b.obs, b.action)
        return np.mean((q1 - y) ** 2) + np.mean((q2 - y) ** 2)

    loss, grads = critic_loss(critic.params), update_model.gradient(critic_loss, critic.params)
    critic.step(grads, count, hyper.critic, lr, grads)
    judge = critic.params if expert is None else expert

    def actor_loss(params: Any) -> Any:
        action = np.tanh(update_model.mlp(params, b.obs))
        return -np.mean(update_model.q_values(judge, b.obs, action)[0])

    if count % CFG.policy_delay == 0:
        grads = update_model.gradient(actor_loss, actor.params)
        actor.step(grads, count // CFG.policy_delay, hyper.actor, lr, grads)
    if count % CFG.target_interval == 0:
        actor.polyak(tau)
        critic.polyak(tau)
    return actor, critic, loss, np.mean(y)


def prepared(method: str = "rlx2") -> tuple[td3.State, config.Hyper]:
    """A lane in the middle of training."""
    lane = config.Lane(
        method=method, actor_sparsity=0.4, critic_sparsity=0.3, target_noise=0.0, t0=3, t_end=40
    )
    state = td3.init(jax.random.key(3), CFG, lane)
    warmed = td3.State(update_model.warm(state.actor, 0), update_model.warm(state.critic, 1))
    return warmed, config.hyper(CFG, lane)


def test_update_equals_plain_numpy():
    state, hyper = prepared()
    # Updates 1 and 2 have n = 1; 4 evolves the critic, 8 both, 3 and 6 move the targets.
    for count in (1, 2, 3, 4, 6, 8):
        before, batch = state, windows(count, 16)
        actor, critic, loss, y = numpy_update(state, batch, count, hyper, None)
        # `step` is far beyond T0: by default it is updates that count.
        t = np.int32(count)
        state, metrics = update(state, batch, jax.random.key(0), np.int32(500), t, CFG, hyper)
        actor.assert_like(state.actor, f"actor, update {count}")
        critic.assert_like(state.critic, f"critic, update {count}")
        assert float(metrics["critic_loss"]) == pytest.approx(loss)
        assert float(metrics["target"]) == pytest.approx(y)
        if count % 2:
            assert_equal(state.actor._replace(target=0), before.actor._replace(target=0))
        if count in (1, 2):  # neither a target update nor a mask update
            assert_equal(state.actor.target, before.actor.target)
            assert_equal(state.critic.target, before.critic.target)


def test_guided_by_an_expert():
    """RigL+Q*: the critic regresses to the expert's Q, and the actor climbs it."""
    state, hyper = prepared("rigl")
    expert: Any = networks.online(
        td3.init(jax.random.key(4), CFG, config.Lane(method="dense")).critic
    )
    count = 8
    t = jnp.int32(count)  # a constant, not an argument: a smaller program
    guided = quick(
        lambda s, b: td3.update(s, b, jax.random.key(0), t, t, CFG, hyper, expert=expert)
    )
    batch = windows(0, 16)
    new, metrics = guided(state, batch)
    actor, critic, loss, y = numpy_update(
        state, batch, count, hyper, jax.tree.map(np.asarray, expert.params)
    )
    actor.assert_like(new.actor, "actor")
    critic.assert_like(new.critic, "critic")
    assert float(metrics["critic_loss"]) == pytest.approx(loss)
    assert float(metrics["target"]) == pytest.approx(y)


@pytest.mark.fast
def test_target_smoothing_is_clipped():
    cfg = setting("td3", hidden=(2,), n_max=1)
    # π' = tanh(bias), Q' = a_0: then y = ã_0 for a reward of 0 and γ = 1.
    signs = jnp.array([1.0, -1.0])
    critic = {
        "Dense_0": {"kernel": jnp.zeros((6, 2)).at[4].set(signs), "bias": jnp.zeros(2)},
        "Dense_1": {"kernel": signs[:, None], "bias": jnp.zeros(1)},
    }
    lane = config.Lane(method="dense", discount=1.0)
    shapes = jax.eval_shape(lambda: td3.init(jax.random.key(0), cfg, lane))
    start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    batch = windows(0, 1, n=1)._replace(
        reward=jnp.zeros((1, 1)), terminated=jnp.zeros((1, 1), bool)
    )

    @quick
    def targets(bias, sigma, clip):
        hyper = config.hyper(cfg, lane)._replace(target_noise=sigma, target_noise_clip=clip)
        actor = jax.tree.map(jnp.zeros_like, start.actor.params)
        actor["Dense_1"]["bias"] = jnp.full(2, bias)
        state = td3.State(
            start.actor._replace(target=actor),
            start.critic._replace(target=jax.tree.map(lambda x: jnp.stack([x, x]), critic)),
        )
        keys = jax.random.split(jax.random.key(1), 4096)
        return jax.vmap(
            lambda key: td3.update(state, batch, key, one, one, cfg, hyper)[1]["target"]
        )(keys)

    one = jnp.int32(1)
    y = np.asarray(targets(0.0, 0.2, 0.5))
    assert np.abs(y).max() == pytest.approx(0.5) and y.std() == pytest.approx(0.2, rel=0.05)
    assert 0.003 < (np.abs(y) > 0.4999).mean() < 0.03  # 1.2% of N(0, 0.2) lies beyond 0.5
    np.testing.assert_allclose(targets(0.3, 0.0, 0.5), np.tanh(0.3), atol=1e-6)
    np.testing.assert_allclose(targets(0.3, 0.2, 0.0), np.tanh(0.3), atol=1e-6)
    high = np.asarray(targets(3.0, 0.2, 0.5))  # ã stays an action
    assert high.max() == 1.0 and high.min() == pytest.approx(np.tanh(3.0) - 0.5, abs=1e-5)


def test_exploration():
    state, _ = prepared()
    obs, act = jax.random.normal(jax.random.key(1), (4000, 4)), quick(td3.act, static_argnums=3)
    hyper = config.hyper(CFG, config.Lane(exploration_noise=0.3))
    action, mean = act(state, obs, jax.random.key(2), CFG, hyper)
    np.testing.assert_allclose(mean, networks.policy(networks.online(state.actor), obs), atol=1e-12)
    noise = np.asarray(action - mean)
    assert noise.std() == pytest.approx(0.3, rel=0.05) and abs(noise.mean()) < 0.02
    far = jax.tree.map(lambda x: x + 3.0, state.actor.params)
    state = state._replace(actor=state.actor._replace(params=far))
    action, _ = act(state, obs, jax.random.key(2), CFG, hyper)
    assert float(jnp.abs(action).max()) == 1.0


@pytest.mark.long
@pytest.mark.fast
def test_lowers_for_accelerators():
    cfg, lane = setting("td3"), config.Lane()
    state = jax.eval_shape(lambda: stack([td3.init(jax.random.key(0), cfg, lane)] * 8))
    hyper, keys = stack([config.hyper(cfg, lane)] * 8), jax.random.split(jax.random.key(0), 8)
    batch = windows(0, 8, 16, dtype="float32")
    traced = jax.jit(over_lanes(td3, cfg)).trace(state, batch, keys, jnp.int32(1), hyper)
    for platform in ("cuda", "tpu"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert "stablehlo.while" in text  # policy delay and mask updates stay real branches


def test_paper_preset_evolves_after_the_optimizer_step():
    # The released code's choices run in the golden trajectories.
    cfg = dataclasses.replace(CFG, **config.preset("paper"))
    (state, hyper), t = prepared(), jnp.int32(4)
    paper = quick(lambda s, b: td3.update(s, b, jax.random.key(0), t, t, cfg, hyper))
    new, _ = paper(state, windows(0, 16))
    assert int(new.critic.moments.count) == 11
    assert links(new.critic) == links(state.critic)
    assert_on_mask(new.critic)
    four = np.int32(4)
    skipped, _ = update(state, windows(0, 16), jax.random.key(0), four, four, CFG, hyper)
    assert int(skipped.critic.moments.count) == 10


def test_learns_a_known_answer():
    """A first step with reward 1 - (a_0 - 0.5)², a second and last one with reward 1: Q* in the
    first state is 2 - (a_0 - 0.5)² with γ = 1, and the best first action 0.5."""
    lane = config.Lane(
        actor_sparsity=0.3,
        critic_sparsity=0.3,
        learning_rate=2e-3,
        discount=1.0,
        tau=0.05,
        t0=100,
        n=2,
        t_end=600,
        mask_interval=20,
    )
    rng, shape = np.random.default_rng(0), (800, 16)
    action, first = rng.uniform(-1, 1, (*shape, 2)), rng.random(shape) < 0.5
    obs = np.where(first, 1.0, -1.0)[..., None] * np.ones(4)
    gain, ends = np.where(first, 1.0 - (action[..., 0] - 0.5) ** 2, 1.0), np.ones(shape, bool)
    reward = np.stack([gain, np.ones(shape), np.zeros(shape)], axis=-1)
    terminated = np.stack([~first, ends, ends], axis=-1)
    nothing = np.zeros_like(terminated)
    batches = Batch(obs, action, reward, -np.ones((*shape, 3, 4)), terminated, nothing)  # type: ignore[arg-type]
    begin, hyper = td3.init(jax.random.key(0), CFG, lane), config.hyper(CFG, lane)
    state, _ = train(begin, hyper, jax.random.key(1), batches)
    # Once more with a fresh actor: the first one ran into a corner before its critic knew.
    state, _ = train(
        begin._replace(critic=state.critic), hyper, jax.random.key(1), batches, first=801
    )
    assert_on_mask(state.actor)
    assert_on_mask(state.critic)
    best = networks.policy(networks.online(state.actor), jnp.ones(4))[0]
    assert float(best) == pytest.approx(0.5, abs=0.15)
    actions = jnp.array([[-0.5, 0.0], [0.0, 0.0], [0.5, 0.0], [0.9, 0.0]])
    q = networks.q_value(networks.online(state.critic), jnp.ones((4, 4)), actions)
    np.testing.assert_allclose(q, 2.0 - (actions[:, 0] - 0.5) ** 2, atol=0.1)
