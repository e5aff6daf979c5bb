"""Cost of the replay buffer: memory per transition; time per step independent of capacity."""

import math
import re
import time

import jax
import jax.numpy as jnp
import pytest
from lanes import quick

from rlx2_jax import networks
from rlx2_jax.networks import masked
from rlx2_jax.replay import buffer
from rlx2_jax.types import Batch, Params, Transition

SIZES = {"Hopper": (11, 3), "HalfCheetah": (17, 6), "Ant": (105, 8), "Humanoid": (348, 17)}


def example(obs: int, act: int, mean: bool = True) -> Transition:
    """A transition of one environment, all zeros."""
    zeros, no = jnp.zeros, jnp.zeros(1, bool)
    means = zeros((1, act)) if mean else None
    return Transition(zeros((1, obs)), zeros((1, act)), zeros(1), zeros((1, obs)), no, no, means)


@pytest.mark.fast
@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("task", SIZES)
def test_memory_per_transition(task, mean):
    obs, act = SIZES[task]
    shapes = jax.eval_shape(lambda: buffer.init(1_000_000, example(obs, act, mean)))
    own = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(shapes)) / 1e6
    # Both observations, action, reward and noise-free action in float32, two flags of a byte.
    both = 4 * (2 * obs + act + 1 + act * mean) + 2
    assert own <= 0.6 * both


def steps(buf: buffer.Buffer, keys: jax.Array) -> tuple[buffer.Buffer, jax.Array]:
    """A scan that adds a transition and samples a batch at each of its steps."""
    obs = buf.finals.shape[1]

    def body(buf, key):
        a, b, c = jax.random.split(key, 3)
        one = example(obs, buf.data.shape[2] - obs - 1)._replace(
            obs=jax.random.normal(a, (1, obs)),
            next_obs=jax.random.normal(b, (1, obs)),
            truncated=jax.random.bernoulli(c, 0.1, (1,)),
        )
        buf = buffer.add(buf, one, limit=4_000)
        batch = buffer.sample(buf, c, 16, 3)
        return buf, batch.reward.sum() + batch.next_obs.sum()

    return jax.lax.scan(body, buf, keys)


@pytest.mark.fast
@pytest.mark.parametrize("lanes", [1, 8])
def test_adding_copies_nothing(lanes):
    buf, keys = buffer.init(5_000, example(11, 3)), jax.random.split(jax.random.key(0), 4)
    run = steps
    if lanes > 1:
        buf = jax.tree.map(lambda x: jnp.stack([x] * lanes), buf)
        keys, run = jnp.stack([keys] * lanes), jax.vmap(steps)
    program = quick(run, donate_argnums=0).lower(buf, keys).compile()
    text = program.as_text()
    assert text is not None and "5002" in text  # the rows of data, flags and mean
    copies = re.findall(r"= \w+\[[\d,]*\b5002\b[\d,]*\]\S* copy\(", text)
    assert not copies
    stats = program.memory_analysis()  # nothing else is as large as the replay
    assert stats is not None and stats.temp_size_in_bytes < buf.data.nbytes / 4
    assert stats.alias_size_in_bytes >= buf.data.nbytes


@pytest.mark.slow  # wall time is meaningless on a busy machine
def test_a_step_costs_the_same_at_any_capacity():
    params, _, _ = networks.init(jax.random.key(0), networks.MLP((64, 64, 1)), 14)

    def loss(params: Params, batch: Batch) -> jax.Array:
        q = masked.bind(params)(jnp.concatenate([batch.obs, batch.action], axis=-1))[:, 0]
        return jnp.mean((q - batch.reward.sum(axis=1)) ** 2)

    def train(buf: buffer.Buffer, params: Params, keys: jax.Array):
        def body(carry, key):
            buf, params = carry
            buf = buffer.add(buf, example(11, 3))
            grads = jax.grad(loss)(params, buffer.sample(buf, key, 256, 3))
            return (buf, jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads)), None

        return jax.lax.scan(body, (buf, params), keys)[0]

    run, keys = jax.jit(train, donate_argnums=0), jax.random.split(jax.random.key(1), 100)
    buffers = {}
    for capacity in (10_000, 1_000_000):
        full = jnp.int32(capacity)  # two arrays below, not one: both are donated
        buf = buffer.init(capacity, example(11, 3))._replace(written=full, length=full + 0)
        buffers[capacity] = jax.block_until_ready(run(buf, params, keys))[0]
    best = dict.fromkeys(buffers, math.inf)
    for _ in range(8):  # alternate, so that a busy machine slows both
        for capacity, buf in buffers.items():
            begin = time.perf_counter()
            buffers[capacity] = jax.block_until_ready(run(buf, params, keys))[0]
            best[capacity] = min(best[capacity], time.perf_counter() - begin)
    assert best[1_000_000] < 1.5 * best[10_000]
