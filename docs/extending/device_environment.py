"""A device environment: two pure functions. Training and simulation are one compiled program."""

import jax
import jax.numpy as jnp

import rlx2_jax as rlx2


class Pendulum:
    """Keep a pendulum upright; angle and velocity are the state."""

    action_dim, max_episode_steps = 1, 50

    def reset(self, key):
        state = jax.random.uniform(key, (2,), minval=-0.1, maxval=0.1)
        return state, self.observe(state)

    def step(self, state, action):
        angle, speed = state
        speed = speed + 0.05 * (9.8 * jnp.sin(angle) + 10 * action[0])
        state = jnp.stack([angle + 0.05 * speed, speed])
        return state, self.observe(state), jnp.cos(state[0]), jnp.abs(state[0]) > 1.0

    def observe(self, state):
        return jnp.stack([jnp.sin(state[0]), jnp.cos(state[0]), state[1]])


if __name__ == "__main__":
    env = Pendulum()
    config = rlx2.make_config(env, steps=60, warmup=20, hidden=(8,), batch_size=8, capacity=100)
    train = rlx2.make_train(env, config, rlx2.Lane(method="rigl"), evaluations=1, episodes=1)
    result = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), 4))
    print(result.metrics["return"].shape)  # (4 seeds, 1 evaluation)
