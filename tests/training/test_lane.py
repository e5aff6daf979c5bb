"""One lane's step: what it stores, trims, learns and counts, alone and with other lanes."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lanes import LANES, assert_equal, lane_of, links, quick, setting, stack
from programs import equations

from rlx2_jax import config
from rlx2_jax.training import lane
from rlx2_jax.types import TimeStep

STEPS = 60


def make(algo: str = "td3", **fields):
    return setting(
        algo, **{"warmup": 12, "buffer_interval": 5, "capacity": 40, "oldest_k": 8, **fields}
    )


def time_step(lanes: int, t: jax.Array) -> TimeStep:
    """Random time steps, equal for all lanes, with both kinds of ends."""
    keys = jax.random.split(jax.random.fold_in(jax.random.key(9), t), 4)
    obs = jax.random.normal(keys[0], (1, 4))
    ends = jax.random.bernoulli(keys[1], 0.1, (1,)), jax.random.bernoulli(keys[2], 0.1, (1,))
    one = TimeStep(obs, obs + 0.5, jax.random.normal(keys[3], (1,)), *ends)
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (lanes, *x.shape)), one)


def stepper(cfg: config.Config, hypers, learn: bool):
    def step(state, t):
        lanes = state.seed.shape[0]
        one = lambda s, o, h: lane.step(s, o, t, cfg, h, learn=learn)  # noqa: E731
        return jax.vmap(one)(state, time_step(lanes, t), hypers)

    return step


def train(cfg: config.Config, lanes, steps: int = STEPS):
    """States after `steps`, the lanes vmapped."""
    state = stack([lane.init(cfg, one, jnp.zeros((1, 4)), horizon=None) for one in lanes])
    hypers = stack([config.hyper(cfg, one) for one in lanes])

    def run(state):
        for learn, first, last in ((False, 1, 12), (True, 13, steps)):
            step = stepper(cfg, hypers, learn)
            body = lambda s, t, step=step: (step(s, t)[0], None)  # noqa: E731
            state, _ = jax.lax.scan(body, state, jnp.arange(first, last + 1))
        return state

    return quick(run)(state)


@pytest.fixture(scope="module")
def together():
    return train(make(), LANES)


def test_lanes_together_equal_lanes_alone(together):
    for i in (3, 5):
        alone = train(make(), LANES[i : i + 1])
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
            lane_of(together, i),
            lane_of(alone, 0),
        )


def test_counters_count_events(together):
    evolutions = together.stats.evolutions["critic"]
    # 48 updates, every 4th due until T_end: 8 for the lane of interval 8.
    assert evolutions.tolist()[:3] == [0, 0, 0]
    assert evolutions[4] == 12 and evolutions[3] == 6
    assert together.stats.evolutions["actor"][4] == 6
    assert together.stats.trims[0] == 0 and together.stats.trims[5] > 0
    for i, one in enumerate(LANES):
        net = lane_of(together.agent.critic, i)
        start = lane.init_agent(make(), one, jnp.int32(one.seed)).critic
        assert links(net) == links(start)
        kernels = [mask for mask in jax.tree.leaves(net.masks) if mask.ndim == 3]
        for now, bits in zip(kernels, lane_of(together.stats.ever["critic"], i), strict=True):
            ever = np.unpackbits(bits, axis=-1, count=now[0].size).reshape(now.shape)
            assert (ever >= now).all()
            assert ever.sum() > now.sum() or evolutions[i] == 0 or now.all()


def test_seeds_differ_and_repeat():
    same = config.Lane(seed=7)
    state = train(make(), [same, same, config.Lane(seed=8)], 30)
    assert_equal(lane_of(state, 0), lane_of(state, 1))
    kernels = state.agent.actor.params["Dense_0"]["kernel"]
    assert not np.array_equal(kernels[0], kernels[2])
    assert not np.array_equal(state.acting.action[0], state.acting.action[2])


def test_equal_seeds_share_dense_weights_and_warmup_across_methods():
    cfg = make(targets="polyak")
    agents = [
        lane.init_agent(cfg, config.Lane(seed=3, method=m), jnp.int32(3))
        for m in ("dense", "ss", "rlx2")
    ]
    for other in agents[1:]:
        assert_equal(agents[0].critic.target, other.critic.target)
    seed = jnp.int32(3)
    a, b = lane.random_action(seed, 5, cfg), lane.random_action(seed, 6, cfg)
    assert not np.array_equal(a, b) and np.abs(np.concatenate([a, b])).max() <= 1


def test_a_lane_that_turns_non_finite_is_frozen_and_disturbs_no_other():
    cfg = make()
    lanes = [config.Lane(seed=0), config.Lane(seed=1)]
    hypers = stack([config.hyper(cfg, one) for one in lanes])
    state = stack([lane.init(cfg, one, jnp.zeros((1, 4))) for one in lanes])
    warm, learn = (quick(stepper(cfg, hypers, flag)) for flag in (False, True))
    for t in range(1, 13):
        state, _ = warm(state, jnp.int32(t))
    clean, metrics = state, {}
    poisoned = state.replay.data.at[0, :, :, -1].set(jnp.nan)
    state = state._replace(replay=state.replay._replace(data=poisoned))
    for t in range(13, 25):
        state, metrics = learn(state, jnp.int32(t))
        clean, _ = learn(clean, jnp.int32(t))
    assert state.stats.alive.tolist() == [False, True]
    assert metrics["finite"].tolist()[1]
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.agent.critic.params))
    start = lane.init_agent(cfg, lanes[0], jnp.int32(0))
    assert_equal(lane_of(state.agent.critic.params, 0), start.critic.params)
    assert_equal(lane_of(state.agent, 1), lane_of(clean.agent, 1))
    assert state.replay.written.tolist() == clean.replay.written.tolist()


def program_of_8():
    cfg = make(capacity=5000)
    lanes = [config.Lane(seed=i) for i in range(8)]
    hypers = stack([config.hyper(cfg, one) for one in lanes])
    state = jax.eval_shape(lambda: stack([lane.init(cfg, one, jnp.zeros((1, 4))) for one in lanes]))
    return stepper(cfg, hypers, True), state


def test_evolution_lies_in_a_real_branch():
    step, state = program_of_8()
    jaxpr = jax.make_jaxpr(step)(state, jnp.int32(1))
    found = [(eqn, inside) for eqn, inside in equations(jaxpr.jaxpr) if _is_selection(eqn)]
    # dropping and growing: two layers of the actor, two of all critics together
    assert len(found) == 8 and all(inside for _, inside in found)


def _is_selection(eqn) -> bool:
    """The bisection of `masks.largest`: a loop over integer ranks."""
    return eqn.primitive.name in ("while", "scan") and any(
        getattr(v.aval, "dtype", None) == jnp.uint32 and v.aval.ndim > 1 for v in eqn.invars
    )


def test_nothing_copies_the_replay_arrays():
    step, state = program_of_8()

    def many(state, first):
        body = lambda s, t: (step(s, t)[0], None)  # noqa: E731
        return jax.lax.scan(body, state, first + jnp.arange(3))[0]

    replay = state.replay
    shapes = [",".join(map(str, x.shape)) for x in (replay.data, replay.flags, replay.mean)]
    for function in (step, many):
        jitted = jax.jit(function, donate_argnums=0)
        compiled = jitted.lower(state, jnp.int32(20)).compile()
        text = str(compiled.as_text())
        assert all(f"[{shape}]" in text for shape in shapes)
        copied = [line for line in text.splitlines() if re.search(r"= \S+ copy\(", line)]
        assert not [line for line in copied if any(f"[{shape}]" in line for shape in shapes)]


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_the_lane_program_lowers_for_accelerators(platform):
    step, state = program_of_8()
    traced = jax.jit(step).trace(state, jnp.int32(20))
    assert "func" in traced.lower(lowering_platforms=(platform,)).as_text()


def test_several_updates_per_step():
    cfg = make(updates_per_step=2)
    one = config.Lane(seed=0)
    state = stack([lane.init(cfg, one, jnp.zeros((1, 4)))])
    hypers = stack([config.hyper(cfg, one)])
    step = quick(stepper(cfg, hypers, True))
    for t in (13, 14):
        state, _ = step(state, jnp.int32(t))
    assert state.agent.critic.moments.count.tolist() == [3]  # the 4th is a mask update
    assert state.stats.evolutions["critic"].tolist() == [1]


def test_too_short_a_warmup_is_refused():
    with pytest.raises(ValueError, match="warmup=1"):
        lane.init(make(warmup=1), config.Lane(), jnp.zeros((1, 4)))
