"""Restarts on the device: new initial states, with and without jit, under any depth of vmap."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from rlx2_jax.envs.base import EnvSpec
from rlx2_jax.envs.device import from_functions

pytestmark = pytest.mark.fast

LIMIT = 6


def drift():
    """Starts at a random place, moves by the action, terminates beyond 2; limit of 6 steps."""

    def reset(key):
        x = jax.random.uniform(key, (), minval=-0.5, maxval=0.5)
        return {"x": x, "moves": 0}, x[None]

    def step(state, action):
        x = state["x"] + action[0]
        return {"x": x, "moves": state["moves"] + 1}, x[None], 2.0, jnp.abs(x) > 2

    return from_functions(reset, step, EnvSpec(1, 1, LIMIT))


def simulate(key, actions):
    """The same in plain Python: rows of next_obs, obs, terminated, truncated."""
    key, start = jax.random.split(key)
    x = jax.random.uniform(start, (), minval=-0.5, maxval=0.5)
    rows, elapsed = [], 0
    for action in actions:
        x, elapsed = x + action[0], elapsed + 1
        final, terminated, truncated = x, bool(abs(x) > 2), elapsed == LIMIT
        if terminated or truncated:
            key, start = jax.random.split(key)
            x, elapsed = jax.random.uniform(start, (), minval=-0.5, maxval=0.5), 0
        rows.append((float(final), float(x), terminated, truncated))
    return rows


def rollout(env, key, actions):
    """One environment from one key through actions [T, 1]."""
    return jax.lax.scan(env.step, env.reset(key), actions)


def batch(*shape):
    """Keys and actions of shape [*shape, ...]; some drift out, some do not."""
    keys = jax.random.split(jax.random.PRNGKey(1), shape)
    actions = jax.random.uniform(jax.random.PRNGKey(2), (*shape, 40, 1), minval=-0.9, maxval=1.0)
    return keys, actions


def test_equals_plain_python():
    keys, actions = batch(8)
    _, steps = jax.jit(jax.vmap(functools.partial(rollout, drift())))(keys, actions)
    kinds = set()
    for i in range(8):
        rows = simulate(keys[i], actions[i])
        columns = [steps.next_obs[i, :, 0], steps.obs[i, :, 0]]
        np.testing.assert_allclose(np.stack(columns, 1), [r[:2] for r in rows], rtol=1e-6)
        ends = np.stack([steps.terminated[i], steps.truncated[i]], 1)
        np.testing.assert_array_equal(ends, [r[2:] for r in rows])
        kinds |= {r[2:] for r in rows}
    assert kinds == {(False, False), (True, False), (False, True), (True, True)}
    assert (steps.reward == 2).all()


def test_vmaps_equal_one_by_one():
    env = drift()
    keys, actions = batch(3, 4)
    run = functools.partial(rollout, env)
    nested = jax.jit(jax.vmap(jax.vmap(run)))(keys, actions)
    for i, j in np.ndindex(3, 4):
        one = jax.tree.map(operator.itemgetter((i, j)), nested)
        jax.tree.map(np.testing.assert_array_equal, one, jax.jit(run)(keys[i, j], actions[i, j]))


def test_scan_of_vmap_equals_vmap_of_scan():
    env = drift()
    keys, actions = batch(5)
    scanned = jax.jit(functools.partial(jax.lax.scan, jax.vmap(env.step)))
    state, steps = scanned(jax.vmap(env.reset)(keys), actions.swapaxes(0, 1))
    outside = jax.jit(jax.vmap(functools.partial(rollout, env)))(keys, actions)
    jax.tree.map(np.testing.assert_array_equal, outside[0], state)
    swapped = jax.tree.map(lambda x: x.swapaxes(0, 1), steps)
    jax.tree.map(np.testing.assert_array_equal, outside[1], swapped)


def test_a_shared_state_is_broadcast():
    env = drift()
    state = env.reset(jax.random.PRNGKey(0))
    actions = jnp.array([[0.1], [5.0]])
    after, step = jax.vmap(env.step, in_axes=(None, 0))(state, actions)
    assert step.terminated.tolist() == [False, True]
    assert after.elapsed.tolist() == [1, 0]


def test_starts_are_fresh_and_depend_on_the_key():
    env = drift()
    actions = jnp.full((60, 1), 5.0)
    first = rollout(env, jax.random.PRNGKey(0), actions)[1].obs[:, 0]
    again = rollout(env, jax.random.PRNGKey(0), actions)[1].obs[:, 0]
    other = rollout(env, jax.random.PRNGKey(1), actions)[1].obs[:, 0]
    assert len(np.unique(first)) == 60
    np.testing.assert_array_equal(first, again)
    assert not np.isin(first, other).any()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_resets_stay_inside_a_branch_under_vmap(depth):
    step = drift().step
    for _ in range(depth):
        step = jax.vmap(step)
    shape = (2,) * depth
    state = jax.eval_shape(lambda: _states(shape))
    outside = set(_primitives(jax.make_jaxpr(step)(state, jnp.zeros((*shape, 1))).jaxpr))
    assert "cond" in outside
    assert not any("random" in name or "threefry" in name for name in outside)


def _primitives(jaxpr):
    """Names of all that is computed in any case: everything but the branches of `cond`s."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        if equation.primitive.name != "cond":
            for inner in jaxprs_in_params(equation.params):
                yield from _primitives(inner)


def _states(shape):
    keys = jax.random.split(jax.random.PRNGKey(0), int(np.prod(shape)))
    states = jax.vmap(drift().reset)(keys)
    return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), states)


def test_state_is_plain_arrays_that_continue_exactly(tmp_path):
    env = drift()
    _, actions = batch(1)
    state = rollout(env, jax.random.PRNGKey(3), actions[0, :17])[0]
    leaves, tree = jax.tree.flatten(state)
    np.savez(tmp_path / "state.npz", *map(np.asarray, leaves))
    with np.load(tmp_path / "state.npz", allow_pickle=False) as loaded:
        restored = jax.tree.unflatten(tree, [jnp.asarray(loaded[k]) for k in loaded.files])
    assert state.key.dtype == jnp.uint32
    expected = jax.lax.scan(env.step, state, actions[0, 17:])
    jax.tree.map(
        np.testing.assert_array_equal, jax.lax.scan(env.step, restored, actions[0, 17:]), expected
    )


def test_typed_keys_are_taken_too():
    env = drift()
    typed, raw = env.reset(jax.random.key(4)), env.reset(jax.random.PRNGKey(4))
    jax.tree.map(np.testing.assert_array_equal, typed, raw)


def test_no_limit_means_no_truncation():
    still = lambda state, action: (state, state, 0.0, False)  # noqa: E731
    env = from_functions(lambda key: (jnp.zeros(1), jnp.zeros(1)), still, EnvSpec(1, 1, None))
    _, steps = rollout(env, jax.random.PRNGKey(0), jnp.zeros((50, 1)))
    assert not (steps.truncated | steps.terminated).any()
