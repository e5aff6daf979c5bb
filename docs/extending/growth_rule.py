"""A growth rule: sample new links with probability proportional to |gradient|."""

import jax
import jax.numpy as jnp
import optax

import rlx2_jax as rlx2


def sampled(key, layer):
    """|g| / E with E exponential: the k largest are a sample of k places without replacement, with
    probabilities proportional to |g|."""
    gradient = jnp.abs(rlx2.rules.dense(layer.dense_grad))
    return gradient / -jnp.log(layer.uniform(key))


rlx2.register_grow("sampled", sampled)

if __name__ == "__main__":
    params = {"kernel": jnp.ones((8, 8)), "bias": jnp.zeros(8)}
    tx = rlx2.sparsify(optax.sgd(0.1), 0.75, grow="sampled", interval=2, t_end=100)
    state = tx.init(params)
    before = rlx2.masks_of(state)["kernel"]
    for i in range(4):
        gradient = jax.tree.map(lambda x, i=i: jnp.cos(x + i), params)
        updates, state = tx.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    after = rlx2.masks_of(state)["kernel"]
    print(f"{int(after.sum())} links, {int((after & ~before).sum())} of them new")
