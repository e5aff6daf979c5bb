"""A sparse classifier in Flax nnx: wrap the optimizer in one line.

python examples/classifier_nnx.py
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import rlx2_jax as rlx2


class Classifier(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(64, 128, rngs=rngs)
        self.second = nnx.Linear(128, 128, rngs=rngs)
        self.last = nnx.Linear(128, 8, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.first(x))
        return self.last(nnx.relu(self.second(x)))


def waves(key, n):
    """n noisy sine waves of 64 samples and random phase; the class is the frequency."""
    key_label, key_phase, key_noise = jax.random.split(key, 3)
    label = jax.random.randint(key_label, (n, 1), 0, 8)
    phase = jax.random.uniform(key_phase, (n, 1), maxval=2 * jnp.pi)
    time = jnp.linspace(0, 2 * jnp.pi, 64, endpoint=False)[None]
    noise = jax.random.normal(key_noise, (n, 64))
    return jnp.sin((label + 1) * time + phase) + noise, label[:, 0]


@nnx.jit
def step(model, optimizer, key):
    x, label = waves(key, 128)

    def loss(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(x), label).mean()

    optimizer.update(model, nnx.grad(loss)(model))


def main(steps=500, sparsity=0.9):
    model = Classifier(nnx.Rngs(0))
    tx = rlx2.sparsify(optax.adam(2e-3), sparsity, interval=50, t_end=int(0.75 * steps))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    for i in range(steps):
        step(model, optimizer, jax.random.key(i))
    x, label = waves(jax.random.key(steps), 4096)
    accuracy = (model(x).argmax(axis=1) == label).mean()
    print(rlx2.summary(nnx.state(model, nnx.Param), optimizer.opt_state))
    print(f"accuracy {accuracy:.3f} at sparsity {rlx2.sparsity(optimizer.opt_state):.3f}")
    return float(accuracy)


if __name__ == "__main__":
    main()
