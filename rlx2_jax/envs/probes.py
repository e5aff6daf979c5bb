"""Tiny tasks with known values, to detect wrong handling of episode ends.

A probe is a table: after t steps of an episode it returns `observations[t]`, and the next step
earns `rewards[t]` for any action; the last entry of each table repeats forever. Importing this
module registers each probe in Gymnasium as `rlx2_jax/<name>-v0`; `device` returns it in JAX.
"""

from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from rlx2_jax.envs.base import EnvSpec, unknown_id
from rlx2_jax.envs.device import DeviceEnv, from_functions

NAMESPACE = "rlx2_jax/"


class Probe(NamedTuple):
    """One table; episodes terminate after `lifetime` steps and are truncated after `limit`."""

    observations: tuple[float, ...]
    rewards: tuple[float, ...]
    lifetime: int | None
    limit: int | None

    def value(self, gamma: float) -> np.ndarray:
        """The true discounted return from each entry of `observations`, f64[len]."""
        last = len(self.rewards) - 1
        if self.lifetime is None:
            beyond, end = self.rewards[last] / (1 - gamma), max(last, len(self.observations))
        else:
            beyond, end = 0.0, self.lifetime
        values = np.zeros(end + 1)
        values[end] = beyond
        for t in reversed(range(end)):
            values[t] = self.rewards[min(t, last)] + gamma * values[t + 1]
        return values[: len(self.observations)]


PROBES = {
    # One state, reward 1: its value is 1 / (1 - γ). If truncation is treated as termination, a
    # fifth of the transitions do not bootstrap and the value falls to 1 / (1 - 4γ/5).
    f"{NAMESPACE}Truncation-v0": Probe((1.0,), (1.0,), None, 5),
    # The start has value γ / (1 - γ), the other state 1 / (1 - γ). If the final observation is
    # replaced by the next episode's first, the latter falls to 1 / (1 - γ²), about half.
    f"{NAMESPACE}FinalObservation-v0": Probe((0.0, 1.0), (0.0, 1.0), None, 2),
    # Four steps: value 1 + γ + γ² + γ³ at the start, more if termination bootstraps.
    f"{NAMESPACE}Termination-v0": Probe((0.0, 1.0, 2.0, 3.0, 4.0), (1.0,), 4, None),
    # Terminates on the same step at which it is truncated; termination counts.
    f"{NAMESPACE}BothEnds-v0": Probe((0.0, 1.0, 2.0, 3.0), (1.0,), 3, 3),
}


class ProbeEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """A probe as a Gymnasium task (the caller adds its time limit)."""

    def __init__(self, probe: Probe):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._probe = probe
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._t = 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> Any:
        rewards = self._probe.rewards
        reward = rewards[min(self._t, len(rewards) - 1)]
        self._t += 1
        return self._observe(), reward, self._t == self._probe.lifetime, False, {}

    def state_dict(self) -> dict[str, np.ndarray]:
        return {"t": np.array(self._t)}

    def load_state_dict(self, arrays: dict[str, np.ndarray]) -> None:
        self._t = int(arrays["t"])

    def _observe(self) -> np.ndarray:
        table = self._probe.observations
        return np.array([table[min(self._t, len(table) - 1)]], np.float32)


def device(env_id: str) -> DeviceEnv:
    """A probe on the device, by its Gymnasium id."""
    if env_id not in PROBES:
        raise unknown_id(env_id, PROBES, "the probes")
    probe = PROBES[env_id]
    observations, rewards = jnp.array(probe.observations), jnp.array(probe.rewards)

    def reset(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.int32(0), observations[:1]

    def step(t: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        reward = rewards[jnp.minimum(t, len(rewards) - 1)]
        t = t + 1
        obs = observations[jnp.minimum(t, len(observations) - 1)][None]
        return t, obs, reward, t == (probe.lifetime or -1)

    return from_functions(reset, step, EnvSpec(1, 1, probe.limit))


for _id, _probe in PROBES.items():
    gymnasium.register(
        _id,
        entry_point="rlx2_jax.envs.probes:ProbeEnv",
        max_episode_steps=_probe.limit,
        kwargs={"probe": _probe},
    )
