"""64 lanes in one program: 4 methods x 4 sparsities x 4 seeds of the whole algorithm.

python examples/sweep_lanes.py

Methods are traced hyper-parameters (ζ_0, growth rule, n, trim ratio) and sparsities are masks, so
all lanes share one compiled `train` and differ only in its arguments.
"""

import jax
import jax.numpy as jnp

import rlx2_jax as rlx2
from rlx2_jax.config import hyper

METHODS = ("ss", "set", "rigl", "rlx2")


class Balance:
    """Keep a pole upright. The state is angle and angular velocity."""

    action_dim, max_episode_steps = 1, 100

    def reset(self, key):
        state = jax.random.uniform(key, (2,), minval=-0.2, maxval=0.2)
        return state, state

    def step(self, state, action):
        angle, speed = state
        speed = speed + 0.05 * (9.8 * jnp.sin(angle) + 12 * action[0])
        state = jnp.stack([angle + 0.05 * speed, speed])
        return state, state, jnp.cos(state[0]), jnp.abs(state[0]) > 0.8


def main(steps=6000, warmup=500, hidden=(32, 32), sparsities=(0.5, 0.8, 0.9, 0.95), seeds=4):
    env = Balance()
    config = rlx2.make_config(
        env,
        steps=steps,
        warmup=warmup,
        hidden=hidden,
        batch_size=32,
        mask_interval=max(steps // 60, 1),
        buffer_interval=max(steps // 20, 1),
    )
    common = {"learning_rate": 1e-3, "tau": 0.01, "t0": steps // 4}
    keys = jax.random.split(jax.random.key(0), seeds)
    lanes, agents = [], []
    for sparsity in sparsities:  # methods of equal sparsity start from equal networks
        lane = rlx2.Lane(actor_sparsity=sparsity, critic_sparsity=sparsity, **common)
        init = jax.jit(jax.vmap(lambda key, lane=lane: rlx2.td3.init(key, config, lane)))
        agents += [init(keys)] * len(METHODS)
        lanes += [
            rlx2.Lane(method=m, actor_sparsity=sparsity, critic_sparsity=sparsity, **common)
            for m in METHODS
        ]
    train = rlx2.make_train(env, config, evaluations=3, episodes=4)
    over_seeds = jax.vmap(train, in_axes=(0, None, 0))
    over_lanes = jax.jit(jax.vmap(over_seeds, in_axes=(None, 0, 0)))
    stack = lambda trees: jax.tree.map(lambda *x: jnp.stack(x), *trees)  # noqa: E731
    result = over_lanes(keys, stack([hyper(config, lane) for lane in lanes]), stack(agents))

    returns = result.metrics["return"][..., -1].mean(axis=1).reshape(len(sparsities), -1)
    print("return of", *(f"{m:>6}" for m in METHODS))
    for sparsity, row in zip(sparsities, returns):
        print(f"{sparsity:9.2f}", *(f"{x:6.1f}" for x in row))
    return result


if __name__ == "__main__":
    main()
