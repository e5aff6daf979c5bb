"""Tasks on the device, and settings for short training runs on them."""

from typing import Any

import jax
import jax.numpy as jnp
from lanes import setting

from rlx2_jax import config
from rlx2_jax.envs.base import EnvSpec
from rlx2_jax.envs.device import DeviceEnv, EnvState
from rlx2_jax.types import TimeStep


class Slide:
    """A point on a line that the action moves; reward for being near 0."""

    action_dim = 1
    max_episode_steps = 8

    def reset(self, key):
        x = jax.random.uniform(key, (), minval=-1.0, maxval=1.0)
        return x, jnp.stack([x, 1.0])

    def step(self, x, action):
        x = jnp.clip(x + 0.3 * action[0], -1.0, 1.0)
        return x, jnp.stack([x, 1.0]), -jnp.abs(x), jnp.abs(x) >= 1.0


class Still:
    """An environment without loops or branches."""

    spec = EnvSpec(4, 2, 8)

    def env(self) -> DeviceEnv:
        def reset(key: jax.Array) -> EnvState:
            if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
                key = jax.random.key_data(key)
            return EnvState(jnp.float32(0), jnp.zeros(4), key, jnp.int32(0))

        def step(state: EnvState, action: jax.Array) -> tuple[EnvState, TimeStep]:
            obs = 0.9 * state.obs + 0.1 * jnp.sum(action) + jnp.arange(4.0) / 10
            new = state._replace(obs=obs, elapsed=state.elapsed + 1)
            no = jnp.bool_(False)
            cut = new.elapsed % 8 == 0
            return new, TimeStep(obs, obs, -jnp.sum(obs**2), no, cut)

        return DeviceEnv(self.spec, reset, step)


def short_setting(algo: str = "td3", **fields: Any) -> config.Config:
    """Sixty steps with every event of long runs."""
    small = {"warmup": 9, "steps": 60, "capacity": 40, "oldest_k": 8, "buffer_interval": 7}
    return setting(algo, **{**small, **fields})


def lanes_of(form: str, count: int = 2) -> list[config.Lane]:
    """Lanes of one program."""
    return [
        config.Lane(seed=i, execution=form, actor_sparsity=0.5, critic_sparsity=0.5, t0=10)
        for i in range(count)
    ]
