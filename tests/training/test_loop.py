"""Both loops on environments with known values: in halves, single lanes, several lanes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx2_jax import config, envs, networks
from rlx2_jax.envs.probes import PROBES
from rlx2_jax.training import host_callback, segments
from rlx2_jax.training.device_loop import DeviceLoop
from rlx2_jax.training.host_loop import HostLoop

GAMMA = 0.9
PROBE = "rlx2_jax/Truncation-v0"
FINAL = "rlx2_jax/FinalObservation-v0"


def never() -> bool:
    return False


def setting(obs: int, act: int, **fields) -> config.Config:
    small = {
        "hidden": (32,),
        "batch_size": 32,
        "oldest_k": 32,
        "steps": 1500,
        "warmup": 60,
        "capacity": 400,
        "mask_interval": 50,
        "buffer_interval": 50,
    }
    return config.make("td3", obs, act, **{**small, **fields})


LANES = [
    config.Lane(
        seed=s,
        method=m,
        discount=GAMMA,
        learning_rate=3e-3,
        tau=0.05,
        actor_sparsity=0.2,
        critic_sparsity=0.3,
        t0=100,
        b_min=200,
    )
    for s, m in ((0, "dense"), (1, "rlx2"))
]


def host_loop(name: str, lanes, cfg=None, **options) -> HostLoop:
    cfg = cfg or setting(1, 1)
    return HostLoop(cfg, list(lanes), lambda n: envs.make_host(name, n), episodes=2, **options)


def q_of(loop, lane: int, observations) -> np.ndarray:
    """A lane's critic values of its policy at some observations."""
    states = loop.states()
    per = states[0].seed.shape[0]
    agent = jax.tree.map(lambda x: x[lane % per], states[lane // per].agent)
    obs = jnp.asarray(observations, jnp.float32)[:, None]
    action = networks.policy(networks.online(agent.actor), obs)
    q = networks.q_values(networks.online(agent.critic), obs, action)
    return np.asarray(networks.minimum(q))


@pytest.mark.parametrize("name", [PROBE, FINAL])
@pytest.mark.parametrize("where", ["host", "device"])
def test_truncation_bootstraps_from_the_final_observation(name, where):
    """Truncation as termination would give 1 / (1 - 4γ/5) = 3.6 instead of 10; the next episode's
    first observation as the final one, half the value of the second state."""
    if where == "host":
        loop = host_loop(name, LANES)
    else:
        loop = DeviceLoop(setting(1, 1), LANES, envs.make_device(name), episodes=2)
    loop.advance(1500, never)
    probe = PROBES[name]
    for lane in range(2):
        found = q_of(loop, lane, probe.observations)
        np.testing.assert_allclose(found, probe.value(GAMMA), rtol=0.08)
    loop.close()


def leaves_equal(a, b) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_pipelined_equals_one_after_the_other():
    cfg = setting(4, 1, steps=200)
    lanes = [config.Lane(seed=s, t0=50, b_min=100) for s in range(4)]
    loops = [host_loop("InvertedPendulum-v5", lanes, cfg, pipeline=flag) for flag in (True, False)]
    for loop in loops:
        loop.advance(200, never)
    leaves_equal(loops[0].states(), loops[1].states())
    together = loops[0].evaluate()
    # The same lanes alone: same keys, so the same environments; floats of another program differ
    # in their last bits only, over so few updates.
    alone = host_loop("InvertedPendulum-v5", lanes[2:3], cfg)
    alone.advance(60, never)
    again = host_loop("InvertedPendulum-v5", lanes, cfg)
    again.advance(60, never)
    for field in ("obs", "action"):
        np.testing.assert_allclose(
            getattr(alone.states()[0].acting, field)[0],
            getattr(again.states()[1].acting, field)[0],
            atol=1e-4,
        )
    assert together.returns.shape == (4, 2)
    actions = np.concatenate([np.asarray(s.acting.action).ravel() for s in loops[0].states()])
    assert len(set(actions.tolist())) == 4  # seeds reach the environments and the policies


def test_several_environments_per_lane():
    cfg = setting(4, 1, num_envs=3, steps=600, updates_per_step=1)
    loop = host_loop("InvertedPendulum-v5", [config.Lane(seed=0, t0=50, b_min=100)], cfg)
    loop.advance(80, never)
    state = loop.states()[0]
    assert state.replay.data.shape[2] == 3 and int(state.replay.written[0]) == 80
    assert len(set(np.asarray(state.acting.obs)[0, :, 0].tolist())) == 3
    row = loop.report()[0]
    assert row["updates"] == 60 and row["buffer_length"] <= 240


def pendulums(count: int = 4, **options) -> HostLoop:
    lanes = [config.Lane(seed=s, t0=50, b_min=100) for s in range(count)]
    return host_loop("InvertedPendulum-v5", lanes, setting(4, 1, steps=200), **options)


@pytest.fixture(scope="module")
def whole():
    """The states after 150 uninterrupted steps."""
    if not host_callback.available():
        pytest.skip("no kernel library: no program calls the host")
    loop = pendulums()
    loop.advance(150, never)
    yield loop.states()
    loop.close()


def test_calling_the_host_equals_a_dispatch_for_each_step(whole):
    """Another program, so the last bits may differ; over so few updates no more."""
    loop = pendulums(callbacks=False)
    loop.advance(150, never)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)  # noqa: E731
    jax.tree.map(close, loop.states(), whole)
    loop.close()


def test_a_stop_leaves_all_groups_at_one_time_and_changes_nothing(whole):
    loop = pendulums()
    calls = iter(range(10**6))
    loop.advance(150, lambda: next(calls) >= 150)  # two groups ask, each after every step
    at = loop.time
    assert 60 < at < 150 and [group.time for group in loop._groups] == [at, at]
    loop.advance(150, lambda: True)
    assert loop.time == at + 2  # a body has two steps
    loop.advance(150, never)
    leaves_equal(loop.states(), whole)
    loop.close()


def test_groups_that_wait_for_a_thread_meet_again_soon(whole):
    loop = pendulums(pipeline=False)  # one group after the other, as on one core
    calls = iter(range(10**6))
    loop.advance(150, lambda: next(calls) >= 130)  # the second group is on its way
    assert [group.time for group in loop._groups] == [100, 100]
    seconds = loop.seconds
    loop.advance(150, never)
    leaves_equal(loop.states(), whole)
    assert loop.seconds > seconds > 0
    loop.close()


def test_an_error_of_any_kind_ends_the_loop_and_loses_no_state(whole):
    loop = pendulums()
    first: Any = loop._envs[0]
    take = first.step
    assert loop._runner
    asked = loop._runner.callbacks[0]

    def step(actions, active=None):
        if asked.time == 80:
            raise ZeroDivisionError
        return take(actions, active)

    first.step = step
    with pytest.raises(ZeroDivisionError):
        loop.advance(150, never)
    times = [group.time for group in loop._groups]
    assert times[0] == loop.time == 80 and 80 <= times[1] <= 150
    first.step = take
    loop.advance(150, never)
    leaves_equal(loop.states(), whole)
    loop.close()


def test_a_closed_callback_is_refused(whole):
    loop = pendulums()
    loop.close()
    loop.close()
    assert loop._runner
    ask = jax.jit(lambda handle: host_callback.call(handle, jnp.zeros((2, 1, 1)), 4)[1])
    with pytest.raises(Exception, match="no callback registered"):
        jax.block_until_ready(ask(loop._runner.callbacks[0].handle))


SMALL: dict[str, Any] = {"hidden": (16, 16), "steps": 200, "warmup": 61, "policy_delay": 3}


@pytest.fixture(scope="module")
def small():
    """The states after 130 uninterrupted steps of networks so small that Adam is plain XLA."""
    loop = host_loop("InvertedPendulum-v5", LANES, setting(4, 1, **SMALL))
    loop.advance(130, never)
    yield loop.states()
    loop.close()


@pytest.mark.parametrize("pipeline", [True, False])
def test_any_stop_is_at_the_end_of_a_body_and_changes_no_bit(small, pipeline):
    """XLA computes the result of one step again inside the next one of a body, with other rounding,
    so a body must not be cut in two."""
    cfg = setting(4, 1, **SMALL)
    loop = host_loop("InvertedPendulum-v5", LANES, cfg, pipeline=pipeline)
    stops = []
    for calls in range(1, 100):
        left = iter(range(calls))
        loop.advance(130, lambda left=left: next(left, None) is None)
        stops.append(loop.time)
        if loop.time >= 130:
            break
    assert loop.time == 130 and len(stops) > 5
    assert all(segments.body_end(cfg, time) == time for time in stops[:-1])
    leaves_equal(loop.states(), small)
    loop.close()
