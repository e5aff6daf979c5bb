"""Episode ends on tasks with known values: hand-worked tables, on the host and on the device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx2_jax import envs
from rlx2_jax.envs.probes import PROBES
from rlx2_jax.types import TimeStep

pytestmark = pytest.mark.fast

GAMMA = 0.9
STEPS = 60

# Observation acted on, resulting observation, next one to act on, reward, terminated, truncated.
TABLES = {
    "Truncation": [
        (1, 1, 1, 1, False, False),
        (1, 1, 1, 1, False, False),
        (1, 1, 1, 1, False, False),
        (1, 1, 1, 1, False, False),
        (1, 1, 1, 1, False, True),
        (1, 1, 1, 1, False, False),
    ],
    "FinalObservation": [
        (0, 1, 1, 0, False, False),
        (1, 1, 0, 1, False, True),
        (0, 1, 1, 0, False, False),
        (1, 1, 0, 1, False, True),
    ],
    "Termination": [
        (0, 1, 1, 1, False, False),
        (1, 2, 2, 1, False, False),
        (2, 3, 3, 1, False, False),
        (3, 4, 0, 1, True, False),
        (0, 1, 1, 1, False, False),
    ],
    "BothEnds": [
        (0, 1, 1, 1, False, False),
        (1, 2, 2, 1, False, False),
        (2, 3, 0, 1, True, True),
        (0, 1, 1, 1, False, False),
        (1, 2, 2, 1, False, False),
        (2, 3, 0, 1, True, True),
    ],
}


def host_rollout(name: str) -> tuple[np.ndarray, TimeStep]:
    """Observations acted on f32[T, 2, 1] and the steps, stacked over time."""
    tasks = envs.make_host(f"rlx2_jax/{name}-v0", 2)
    acted, steps = [tasks.reset([0, 1])], []
    for _ in range(STEPS):
        steps.append(tasks.step(np.zeros((2, 1), np.float32)))
        acted.append(steps[-1].obs)
    return np.stack(acted[:-1]), TimeStep(*(np.stack(field) for field in zip(*steps)))


def device_rollout(name: str) -> tuple[np.ndarray, TimeStep]:
    """The same from the device form, vmapped and scanned."""
    env = envs.make_device(f"rlx2_jax/{name}-v0")

    def body(state, _):
        after, step = jax.vmap(env.step)(state, jnp.zeros((2, 1)))
        return after, (state.obs, step)

    start = jax.vmap(env.reset)(jax.random.split(jax.random.PRNGKey(0), 2))
    acted, step = jax.lax.scan(body, start, None, STEPS)[1]
    return np.asarray(acted), TimeStep(*(np.asarray(field) for field in step))


ROLLOUTS = {"host": host_rollout, "device": device_rollout}


@pytest.mark.parametrize("backend", ROLLOUTS)
@pytest.mark.parametrize("name", TABLES)
def test_hand_worked_tables(backend, name):
    acted, step = ROLLOUTS[backend](name)
    for env in range(2):
        for t, row in enumerate(TABLES[name]):
            seen = (acted[t, env, 0], step.next_obs[t, env, 0], step.obs[t, env, 0])
            seen += (step.reward[t, env], step.terminated[t, env], step.truncated[t, env])
            assert seen == row, f"step {t} of environment {env}"
    assert [np.asarray(field).dtype for field in step] == ["f4", "f4", "f4", "?", "?"]


def test_values_by_hand():
    g = GAMMA
    values = {name.split("/")[1]: probe.value(g) for name, probe in PROBES.items()}
    np.testing.assert_allclose(values["Truncation-v0"], [1 / (1 - g)])
    np.testing.assert_allclose(values["FinalObservation-v0"], [g / (1 - g), 1 / (1 - g)])
    lives = [1 + g + g**2 + g**3, 1 + g + g**2, 1 + g, 1, 0]
    np.testing.assert_allclose(values["Termination-v0"], lives)
    np.testing.assert_allclose(values["BothEnds-v0"], lives[1:])


def evaluate(acted, next_obs, reward, ends) -> dict[float, float]:
    """Tabular policy evaluation on transitions: V(s) = mean(r + γ (1 - end) V(s'))."""
    states = np.unique([acted, next_obs])
    values = dict.fromkeys(states.tolist(), 0.0)
    for _ in range(300):
        beyond = np.vectorize(values.get)(next_obs) * ~ends
        for s in np.unique(acted):
            values[float(s)] = float(np.mean((reward + GAMMA * beyond)[acted == s]))
    return values


@pytest.mark.parametrize("backend", ROLLOUTS)
@pytest.mark.parametrize("name", TABLES)
def test_transitions_carry_the_true_values(backend, name):
    acted, step = ROLLOUTS[backend](name)
    found = evaluate(acted[..., 0], step.next_obs[..., 0], step.reward, step.terminated)
    probe = PROBES[f"rlx2_jax/{name}-v0"]
    for obs, value in zip(probe.observations, probe.value(GAMMA)):
        assert found[obs] == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("backend", ROLLOUTS)
def test_wrong_treatments_give_visibly_wrong_values(backend):
    acted, step = ROLLOUTS[backend]("Truncation")
    cut = step.terminated | step.truncated
    found = evaluate(acted[..., 0], step.next_obs[..., 0], step.reward, cut)
    assert found[1.0] == pytest.approx(1 / (1 - 0.8 * GAMMA), rel=1e-5)  # not 1 / (1 - γ)

    acted, step = ROLLOUTS[backend]("FinalObservation")
    found = evaluate(acted[..., 0], step.obs[..., 0], step.reward, step.terminated)
    assert found[1.0] == pytest.approx(1 / (1 - GAMMA**2), rel=1e-5)  # not 1 / (1 - γ)
