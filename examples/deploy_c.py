"""From training to a C program: train a sparse policy, export it, compile it, run it.

`rlx2 export` does the same with the actor of a run; this example trains a policy itself.

python examples/deploy_c.py            # needs a C compiler
"""

import subprocess
import tempfile
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import rlx2_jax as rlx2
from rlx2_jax import export
from rlx2_jax.export import c, compiled

# A pole to keep balanced: the training simulator, in C.
MAIN = r"""
#include <math.h>
#include <stdio.h>

void policy_act(const float *obs, float *action);

int main(void) {
    float state[2] = {0.1f, 0.0f}, action[1];
    int step = 0;
    while (step < 100 && fabsf(state[0]) <= 0.8f) {
        policy_act(state, action);
        state[1] += 0.05f * (9.8f * sinf(state[0]) + 12.0f * action[0]);
        state[0] += 0.05f * state[1];
        step++;
    }
    printf("%d %.6f\n", step, state[0]);
    return 0;
}
"""


class Policy(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            x = nn.relu(nn.Dense(64)(x))
        return nn.Dense(1)(x)  # the exported policy applies tanh, as below


def mean_angle(params, first):
    """Mean square of the angle over 100 steps from many initial states; differentiable."""

    def step(state, _):
        angle, speed = state
        action = jnp.tanh(Policy().apply({"params": params}, jnp.stack(state, axis=-1)))[:, 0]
        speed = speed + 0.05 * (9.8 * jnp.sin(angle) + 12.0 * action)
        angle = jnp.clip(angle + 0.05 * speed, -1.0, 1.0)
        return (angle, speed), jnp.mean(angle**2)

    return jnp.mean(jax.lax.scan(step, (first, jnp.zeros_like(first)), None, 100)[1])


def train(steps, sparsity):
    """Trains a sparse policy by gradients through the simulator; returns it with its masks."""
    params = Policy().init(jax.random.key(0), jnp.zeros((1, 2)))["params"]
    adam = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(3e-3))
    tx = rlx2.sparsify(adam, sparsity, interval=20, t_end=int(0.75 * steps))

    def update(carry, key):
        params, state = carry
        first = jax.random.uniform(key, (64,), minval=-0.3, maxval=0.3)
        loss, grads = jax.value_and_grad(mean_angle)(params, first)
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), loss

    keys = jax.random.split(jax.random.key(1), steps)
    run = jax.jit(lambda carry: jax.lax.scan(update, carry, keys))
    (params, state), losses = run((params, tx.init(params)))
    print(f"mean square of the angle: {losses[0]:.4f} at first, {losses[-1]:.4f} at the end")
    return params, rlx2.masks_of(state)


def main(steps=400, sparsity=0.95):
    policy = export.from_actor(*train(steps, sparsity), "pole").pruned()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = c.source(policy, "policy")
        (folder / "policy.c").write_text(source.text)
        (folder / "main.c").write_text(MAIN)
        cc, program = compiled.compiler() or "cc", folder / "balance"
        command = [cc, "-std=c99", "-O2", folder / "policy.c", folder / "main.c", "-lm"]
        subprocess.run([*map(str, command), "-o", str(program)], check=True)
        done = subprocess.run([str(program)], check=True, capture_output=True, text=True)
    print(f"policy.c: {policy.links} links, {source.data_bytes} bytes of constants")
    survived, angle = done.stdout.split()
    print(f"the C program balanced for {survived} of 100 steps, last angle {angle}")
    return policy, int(survived), float(angle)


if __name__ == "__main__":
    main()
