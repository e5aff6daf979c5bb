"""A sparse classifier in Equinox: wrap the optimizer in one line.

python examples/classifier_equinox.py          # needs equinox
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import rlx2_jax as rlx2


def waves(key, n):
    """n noisy sine waves of 64 samples and random phase; the class is the frequency."""
    key_label, key_phase, key_noise = jax.random.split(key, 3)
    label = jax.random.randint(key_label, (n, 1), 0, 8)
    phase = jax.random.uniform(key_phase, (n, 1), maxval=2 * jnp.pi)
    time = jnp.linspace(0, 2 * jnp.pi, 64, endpoint=False)[None]
    noise = jax.random.normal(key_noise, (n, 64))
    return jnp.sin((label + 1) * time + phase) + noise, label[:, 0]


def main(steps=500, sparsity=0.9):
    model = eqx.nn.MLP(64, 8, width_size=128, depth=2, key=jax.random.key(0))
    tx = rlx2.sparsify(optax.adam(2e-3), sparsity, interval=50, t_end=int(0.75 * steps))
    state = tx.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model, state, key):
        x, label = waves(key, 128)

        def loss(model):
            logits = jax.vmap(model)(x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, label).mean()

        grads = eqx.filter_grad(loss)(model)
        updates, state = tx.update(grads, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), state

    for i in range(steps):
        model, state = step(model, state, jax.random.key(i))
    x, label = waves(jax.random.key(steps), 4096)
    accuracy = (jax.vmap(model)(x).argmax(axis=1) == label).mean()
    print(rlx2.summary(eqx.filter(model, eqx.is_inexact_array), state))
    print(f"accuracy {accuracy:.3f} at sparsity {rlx2.sparsity(state):.3f}")
    return float(accuracy)


if __name__ == "__main__":
    main()
