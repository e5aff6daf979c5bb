"""SAC: one update against plain NumPy, lanes of one program, and a problem with a known answer.

Programs take longest to compile, so most tests share two: one lane's update, and all lanes'.
"""

import dataclasses
import math
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
from rlx2_jax.agents import sac
from rlx2_jax.types import Batch

# The intervals are not the paper's 1 and 1, on purpose: they are apart.
CFG = setting("sac", dtype="float64", policy_delay=2, target_interval=3)
LEAKED = dataclasses.replace(CFG, sac_growth="leaked")
update, update_lanes = quick(sac.update, static_argnums=5), quick(over_lanes(sac, CFG))
ALPHA_MOMENTS = (0.02, 0.3, 10)  # of the temperature in the middle of training: μ, ν, count
draw, draw_noise = quick(jax.random.fold_in), quick(sac.draw_noise, static_argnums=1)


@pytest.fixture(autouse=True, scope="module")
def float64():
    """Two programs that sum in another order part ways in float32, and not in float64."""
    with jax.enable_x64(True):
        yield


def step(state: Any, batch: Batch, key: jax.Array, count: int, hyper: config.Hyper) -> Any:
    """One update, given the noise that `update` would draw."""
    t, noise = np.int32(count), draw_noise(jax.random.split(key, 3)[0], CFG)
    return update(state, batch, key, t, t, CFG, hyper, noise=noise)


def train(state: Any, hyper: config.Hyper, key: jax.Array, batches: Batch) -> Any:
    """One update for each of `batches`."""
    metrics = {}
    for count, batch in enumerate(zip(*jax.tree.map(np.asarray, batches)), 1):
        draws = draw(key, np.int32(count))
        state, metrics = step(state, Batch(*batch), draws, count, hyper)
    return state, metrics


@pytest.fixture(scope="module")
def lanes():
    """Stacked lanes, and their hyper-parameters, keys and data."""
    states = [sac.init(jax.random.key(lane.seed), CFG, lane) for lane in LANES]
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
        for name in ("actor", "critic"):
            before, after = lane_of(getattr(start, name), i), lane_of(getattr(state, name), i)
            assert_on_mask(after)
            assert links(after) == links(before)
            pairs = zip(jax.tree.leaves(before.masks), jax.tree.leaves(after.masks))
            moves = lane.method in ("set", "rigl", "rlx2")
            assert moves == any((a != b).any() for a, b in pairs)
            assert all(np.isfinite(x).all() for x in jax.tree.leaves(after.params))


def sampled(params: Any, obs: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Actions of the squashed Gaussian, and their log probabilities."""
    mean, raw = np.split(update_model.mlp(params, obs), 2, axis=-1)
    log_std = -5.0 + 3.5 * (np.tanh(raw) + 1.0)
    action = np.tanh(mean + np.exp(log_std) * noise)
    normal = -0.5 * noise**2 - log_std - 0.5 * math.log(2.0 * math.pi)
    return action, (normal - np.log(1.0 - action**2)).sum(-1)


def numpy_target(
    actor: Any, critic: Any, b: Any, noise: Any, alpha: float, n: int, gamma: float
) -> np.ndarray:
    """Algorithm 5, lines 10-13, window by window and state by state."""
    y = np.zeros(len(b.obs))
    for i in range(len(b.obs)):
        total, discount, last, weights = update_model.n_step(
            b.reward[i], b.terminated[i], b.truncated[i], n, gamma
        )
        y[i] = total
        for k in range(last + 1):
            s = b.next_obs[i, k]
            action, log_prob = sampled(actor.params, s, noise.target[k, i])
            y[i] -= alpha * weights[k] * log_prob
            if k == last:
                y[i] += discount * min(update_model.q_values(critic.target, s, action))
    return y


def numpy_update(
    state: sac.State, batch: Batch, noise: Any, count: int, hyper: config.Hyper
) -> tuple[update_model.Model, update_model.Model, float, Any, Any]:
    """Expected results of the update: networks, log α, leak and the mean target."""
    actor, critic = map(update_model.Model.of, (state.actor, state.critic))
    noise, b = jax.tree.map(np.asarray, (noise, batch))
    log_alpha, lr = float(state.log_alpha), float(hyper.learning_rate)
    alpha, n = math.exp(log_alpha), 1 if count < int(hyper.t0) else int(hyper.n)
    y = numpy_target(actor, critic, b, noise, alpha, n, float(hyper.discount))

    def critic_loss(params: Any) -> Any:
        q1, q2 = update_model.q_values(params, b.obs, b.action)
        return np.mean((q1 - y) ** 2) + np.mean((q2 - y) ** 2)

    def actor_loss(params: Any, judges: Any) -> Any:
        action, log_prob = sampled(params, b.obs, noise.actor)
        return np.mean(alpha * log_prob - np.minimum(*update_model.q_values(judges, b.obs, action)))

    grads, leak = update_model.gradient(critic_loss, critic.params), state.leak
    scores = grads if leak is None else jax.tree.map(lambda g, x: g + np.asarray(x), grads, leak)
    critic.step(grads, count, hyper.critic, lr, scores)
    if count % CFG.policy_delay == 0:
        log_prob = sampled(actor.params, b.obs, noise.actor)[1]
        if leak is not None:
            leak = update_model.gradient(lambda q: actor_loss(actor.params, q), critic.params)
        grads = update_model.gradient(lambda p: actor_loss(p, critic.params), actor.params)
        actor.step(grads, count // CFG.policy_delay, hyper.actor, lr, grads)
        slope = alpha * np.mean(-log_prob - float(hyper.target_entropy))
        temperature = update_model.Model(log_alpha, True, *ALPHA_MOMENTS, None)
        temperature.step(slope, 1, hyper.actor, lr, None)
        log_alpha = temperature.params
    if count % CFG.target_interval == 0:
        critic.polyak(float(hyper.tau))
    return actor, critic, log_alpha, leak, np.mean(y)


def prepared(cfg: config.Config) -> tuple[sac.State, config.Hyper]:
    """A lane in the middle of training."""
    lane = config.Lane(actor_sparsity=0.4, critic_sparsity=0.3, t0=3, n=3, t_end=40)
    state = sac.init(jax.random.key(3), cfg, lane)
    return (
        state._replace(
            actor=update_model.warm(state.actor, 0),
            critic=update_model.warm(state.critic, 1),
            log_alpha=jnp.float64(-0.7),
            alpha_moments=state.alpha_moments._replace(
                mu=jnp.float64(ALPHA_MOMENTS[0]),
                nu=jnp.float64(ALPHA_MOMENTS[1]),
                count=jnp.int32(ALPHA_MOMENTS[2]),
            ),
        ),
        config.hyper(cfg, lane),
    )


# Updates 1 and 2 have n = 1; 4 evolves the critic, 8 both, 3 and 6 move the targets.
@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 8])
def test_update_equals_plain_numpy(count):
    (state, hyper), batch, t = prepared(CFG), windows(count, 16), np.int32(count)
    noise = draw_noise(jax.random.key(count), CFG)
    actor, critic, log_alpha, _, y = numpy_update(state, batch, noise, count, hyper)
    # `step` is far beyond T0: by default it is updates that count.
    key, far = jax.random.key(0), np.int32(500)
    new, metrics = update(state, batch, key, far, t, CFG, hyper, noise=noise)
    actor.assert_like(new.actor, "actor")
    critic.assert_like(new.critic, "critic")
    assert float(new.log_alpha) == pytest.approx(log_alpha, abs=1e-9)
    assert float(metrics["target"]) == pytest.approx(y)
    assert float(metrics["alpha"]) == pytest.approx(math.exp(-0.7))
    if count % 2:
        assert_equal((new.actor, new.log_alpha), (state.actor, state.log_alpha))


def test_leaked_growth():
    """The released code's critic scores carry the actor's loss of the last update."""
    (state, hyper), count = prepared(LEAKED), 8
    rng, t = np.random.default_rng(0), jnp.int32(count)
    state = state._replace(
        leak=jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape)), state.critic.params)
    )
    batch, noise = windows(0, 16), draw_noise(jax.random.key(0), CFG)
    leaking = quick(
        lambda s, b, z: sac.update(s, b, jax.random.key(0), t, t, LEAKED, hyper, noise=z)
    )
    new, _ = leaking(state, batch, noise)
    actor, critic, _, leak, _ = numpy_update(state, batch, noise, count, hyper)
    actor.assert_like(new.actor, "actor")
    critic.assert_like(new.critic, "critic")
    assert_close(new.leak, leak, 1e-7)
    clean = numpy_update(state._replace(leak=None), batch, noise, count, hyper)[1]
    pairs = zip(jax.tree.leaves(clean.masks), jax.tree.leaves(new.critic.masks))
    assert any((a != b).any() for a, b in pairs)  # the leak decided some links


def test_temperature_moves_towards_the_target_entropy():
    hyper = config.hyper(CFG, config.Lane())
    state = sac.init(jax.random.key(0), CFG, config.Lane())
    entropy = jnp.asarray(-1.5)
    temperature = quick(sac._temperature)
    for target, moves in [(-1.0, 1.0), (-2.0, -1.0)]:  # too little entropy: α rises
        goal = hyper._replace(target_entropy=jnp.float32(target))
        log_alpha, _ = temperature(state, -entropy * jnp.ones(16), goal)
        change = float(log_alpha - state.log_alpha)
        assert change == pytest.approx(moves * float(hyper.learning_rate), rel=1e-4)


def test_exploration():
    state, hyper = prepared(CFG)
    obs, act = jax.random.normal(jax.random.key(1), (200, 4)), quick(sac.act, static_argnums=3)
    action, mean = act(state, obs, jax.random.key(2), CFG, hyper)
    np.testing.assert_allclose(
        mean, networks.squashed_mean(networks.online(state.actor), obs), atol=1e-12
    )
    assert float(jnp.abs(action).max()) <= 1.0 and float(jnp.abs(action - mean).mean()) > 0.01
    bug = dataclasses.replace(CFG, exploration="mean")
    assert_equal(*act(state, obs, jax.random.key(2), bug, hyper))


def test_begins_as_the_paper_says():
    lane, key = config.Lane(actor_sparsity=0.5, critic_sparsity=0.4), jax.random.key(7)
    dense, sparse = (
        sac.init(key, CFG, dataclasses.replace(lane, method=m)) for m in ("dense", "rlx2")
    )
    assert all(m.all() for m in jax.tree.leaves((dense.actor.masks, dense.critic.masks)))
    for whole, part in [(dense.actor, sparse.actor), (dense.critic, sparse.critic)]:
        masked = jax.tree.map(lambda p, m: p * m, whole.params, part.masks)
        assert_equal(part.params, masked)  # equal seeds share dense weights
        assert_on_mask(part)
    assert sparse.actor.target is None and float(sparse.log_alpha) == 0.0
    assert_equal(sparse.critic.target, sparse.critic.params)
    assert sparse.leak is None
    hyper = config.hyper(CFG, config.Lane())
    assert float(hyper.target_entropy) == -2.0 and int(hyper.n) == 2
    leaves = jax.tree.leaves(sparse)
    assert len({x.unsafe_buffer_pointer() for x in leaves}) == len(leaves)  # may be donated


@pytest.mark.long
@pytest.mark.fast
def test_lowers_for_accelerators():
    cfg, lane = setting("sac"), config.Lane()
    state = jax.eval_shape(lambda: stack([sac.init(jax.random.key(0), cfg, lane)] * 8))
    hyper, keys = stack([config.hyper(cfg, lane)] * 8), jax.random.split(jax.random.key(0), 8)
    batch = windows(0, 8, 16, dtype="float32")
    traced = jax.jit(over_lanes(sac, cfg)).trace(state, batch, keys, jnp.int32(1), hyper)
    for platform in ("cuda", "tpu"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert "stablehlo.while" in text


def test_learns_a_known_answer():
    """One step with reward 1 - (a_0 - 0.5)²: this is Q*; the policy's mean goes to 0.5 and its
    entropy to the target's."""
    lane = config.Lane(
        actor_sparsity=0.3,
        critic_sparsity=0.3,
        learning_rate=3e-3,
        tau=0.05,
        t_end=600,
        mask_interval=20,
        target_entropy=0.6,
    )
    rng, shape = np.random.default_rng(0), (1200, 16)
    action, always = rng.uniform(-1, 1, (*shape, 2)), np.ones((*shape, 3), bool)
    obs, after = np.ones((*shape, 4)), np.zeros((*shape, 3, 4))
    reward = np.repeat(1.0 - (action[..., :1] - 0.5) ** 2, 3, axis=-1)
    batches = Batch(obs, action, reward, after, always, ~always)  # type: ignore[arg-type]
    state, hyper = sac.init(jax.random.key(0), CFG, lane), config.hyper(CFG, lane)
    state = state._replace(log_alpha=jnp.float64(-1.5))  # nearer to where it ends
    state, _ = train(state, hyper, jax.random.key(1), batches)
    assert_on_mask(state.actor)
    assert_on_mask(state.critic)
    best = networks.squashed_mean(networks.online(state.actor), jnp.ones(4))
    assert float(best[0]) == pytest.approx(0.5, abs=0.15)
    actions = jnp.array([[-0.5, 0.0], [0.0, 0.0], [0.5, 0.0], [0.9, 0.0]])
    q = networks.q_value(networks.online(state.critic), jnp.ones((4, 4)), actions)
    np.testing.assert_allclose(q, 1.0 - (actions[:, 0] - 0.5) ** 2, atol=0.1)
    noise = jax.random.normal(jax.random.key(2), (4000, 2))
    _, log_prob = networks.squashed_sample(networks.online(state.actor), jnp.ones((4000, 4)), noise)
    assert float(-log_prob.mean()) == pytest.approx(0.6, abs=0.2)
