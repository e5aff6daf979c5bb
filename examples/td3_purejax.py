"""Sparse TD3 in the style of PureJaxRL.

python examples/td3_purejax.py            # or --dense

Sparse training changes only the two marked lines: the optimizer, and the mask on the target
networks, whose averages would otherwise keep dropped links.
"""

import sys
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

import rlx2_jax as rlx2

GAMMA, TAU, BATCH, WARMUP, LIMIT = 0.98, 0.01, 128, 500, 200  # time limit of an episode
reset = partial(jax.random.uniform, shape=(2,), minval=-0.2, maxval=0.2)


class MLP(nn.Module):
    @nn.compact
    def __call__(self, *inputs):
        x = jnp.concatenate(inputs, axis=-1)
        for _ in range(2):
            x = nn.relu(nn.Dense(64)(x))
        return nn.Dense(1)(x)


class Critics(nn.Module):
    @nn.compact
    def __call__(self, obs, action):
        return tuple(MLP(name=name)(obs, action)[..., 0] for name in ("q1", "q2"))


def env_step(state, action):
    """A pole to keep balanced: state, reward, terminated."""
    angle, speed = state
    speed = speed + 0.05 * (9.8 * jnp.sin(angle) + 12 * action[0])
    angle = angle + 0.05 * speed
    return jnp.stack([angle, speed]), jnp.cos(angle), jnp.abs(angle) > 0.8


def make_train(steps, sparse=True):
    actor_net, critic_net = MLP(), Critics()
    tx, mask = optax.adam(1e-3), lambda params, opt_state: params
    if sparse:
        tx = rlx2.sparsify(tx, 0.9, interval=100, t_end=int(0.75 * steps))  # <- the optimizer
        mask = rlx2.mask  # <- the targets

    policy = lambda params, obs: jnp.tanh(actor_net.apply(params, obs))  # noqa: E731

    def create(key, net, *inputs):
        params = net.init(key, *inputs)
        state = TrainState.create(apply_fn=net.apply, params=params, tx=tx)
        return state, mask(params, state.opt_state)

    def learn(actor, critic, targets, batch, key, t):
        obs, action, reward, next_obs, terminated = batch
        noise = jnp.clip(0.2 * jax.random.normal(key, action.shape), -0.5, 0.5)
        next_action = jnp.clip(policy(targets[0], next_obs) + noise, -1, 1)
        q_next = jnp.minimum(*critic_net.apply(targets[1], next_obs, next_action))
        y = reward + GAMMA * ~terminated * q_next

        def critic_loss(params):
            return sum(jnp.mean((q - y) ** 2) for q in critic_net.apply(params, obs, action))

        def actor_loss(params):
            return -critic_net.apply(critic.params, obs, policy(params, obs))[0].mean()

        critic = critic.apply_gradients(grads=jax.grad(critic_loss)(critic.params))
        new = actor.apply_gradients(grads=jax.grad(actor_loss)(actor.params))
        actor = jax.tree.map(lambda a, b: jnp.where(t % 2 == 0, a, b), new, actor)  # delayed
        new = [optax.incremental_update(s.params, x, TAU) for s, x in zip((actor, critic), targets)]
        return actor, critic, (mask(new[0], actor.opt_state), mask(new[1], critic.opt_state))

    def train(key):
        keys = jax.random.split(key, 4)
        actor, actor_target = create(keys[0], actor_net, jnp.zeros(2))
        critic, critic_target = create(keys[1], critic_net, jnp.zeros(2), jnp.zeros(1))
        one = (jnp.zeros(2), jnp.zeros(1), jnp.zeros(()), jnp.zeros(2), jnp.zeros((), bool))
        replay = jax.tree.map(lambda x: jnp.zeros((steps, *x.shape), x.dtype), one)

        def time_step(carry, t):
            agent, replay, obs, age = carry
            key, explore, sample, start = jax.random.split(jax.random.fold_in(keys[2], t), 4)
            action = policy(agent[0].params, obs) + 0.1 * jax.random.normal(explore, (1,))
            action = jnp.where(t < WARMUP, jax.random.uniform(explore, (1,), minval=-1), action)
            action = jnp.clip(action, -1, 1)
            next_obs, reward, fell = env_step(obs, action)
            now = (obs, action, reward, next_obs, fell)
            replay = jax.tree.map(lambda all, x: all.at[t].set(x), replay, now)
            rows = jax.random.randint(sample, (BATCH,), 0, t + 1)
            batch = jax.tree.map(lambda x: x[rows], replay)
            new = learn(*agent, batch, key, t)
            agent = jax.tree.map(lambda a, b: jnp.where(t >= WARMUP, a, b), new, agent)
            done = fell | (age + 1 == LIMIT)
            obs, age = jnp.where(done, reset(start), next_obs), jnp.where(done, 0, age + 1)
            return (agent, replay, obs, age), fell

        agent = (actor, critic, (actor_target, critic_target))
        carry, fell = jax.lax.scan(time_step, (agent, replay, reset(keys[3]), 0), jnp.arange(steps))
        return carry[0], fell

    return train


def main(steps=6000, seeds=2, sparse=True):
    keys = jax.random.split(jax.random.key(0), seeds)
    agent, fell = jax.jit(jax.vmap(make_train(steps, sparse)))(keys)
    print(f"falls in {steps // 4} steps: {fell.reshape(seeds, 4, -1).sum(axis=2).tolist()}")
    return agent, fell


if __name__ == "__main__":
    main(sparse="--dense" not in sys.argv)
