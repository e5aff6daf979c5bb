"""A sparse classifier in Flax Linen: wrap the optimizer in one line.

python examples/classifier_linen.py
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

import rlx2_jax as rlx2


class Classifier(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            x = nn.relu(nn.Dense(128)(x))
        return nn.Dense(8)(x)


def waves(key, n):
    """n noisy sine waves of 64 samples and random phase; the class is the frequency."""
    key_label, key_phase, key_noise = jax.random.split(key, 3)
    label = jax.random.randint(key_label, (n, 1), 0, 8)
    phase = jax.random.uniform(key_phase, (n, 1), maxval=2 * jnp.pi)
    time = jnp.linspace(0, 2 * jnp.pi, 64, endpoint=False)[None]
    noise = jax.random.normal(key_noise, (n, 64))
    return jnp.sin((label + 1) * time + phase) + noise, label[:, 0]


@jax.jit
def step(state, key):
    x, label = waves(key, 128)

    def loss(params):
        logits = state.apply_fn({"params": params}, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, label).mean()

    return state.apply_gradients(grads=jax.grad(loss)(state.params))


def main(steps=500, sparsity=0.9):
    model = Classifier()
    params = model.init(jax.random.key(0), jnp.zeros((1, 64)))["params"]
    tx = rlx2.sparsify(optax.adam(2e-3), sparsity, interval=50, t_end=int(0.75 * steps))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=tx)
    for i in range(steps):
        state = step(state, jax.random.key(i))
    x, label = waves(jax.random.key(steps), 4096)
    accuracy = (model.apply({"params": state.params}, x).argmax(axis=1) == label).mean()
    print(rlx2.summary(state.params, state.opt_state))
    print(f"accuracy {accuracy:.3f} at sparsity {rlx2.sparsity(state.opt_state):.3f}")
    return float(accuracy)


if __name__ == "__main__":
    main()
