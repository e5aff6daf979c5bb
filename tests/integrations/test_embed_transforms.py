"""`sparsify` under JAX's transformations, and its state in files."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from embedding import (
    PLAN,
    SPARSITY,
    STEPS,
    check_learned,
    check_links,
    check_moved,
    fit,
    loss,
    network,
    row,
    sparse_adam,
    task,
)
from paths import ROOT

import rlx2_jax as rlx2

X, Y = task()


def of(params: Any) -> Any:
    return loss(params, X, Y)


def step(tx: Any) -> Any:
    def run(params: Any, state: Any) -> Any:
        updates, state = tx.update(jax.grad(of)(params), state, params)
        return optax.apply_updates(params, updates), state

    return run


@pytest.fixture(scope="module")
def trained():
    """25 updates, so two mask updates, by `scan`."""
    tx = sparse_adam()
    params, state, _ = fit(tx, network(jax.random.key(0)), of, 25)
    return tx, params, state


@row("Transformations", "`jit` and `lax.scan`", "equal to a loop of single updates")
def test_scan(trained):
    tx, params, state = trained
    one = jax.jit(step(tx))
    alone = network(jax.random.key(0)), tx.init(network(jax.random.key(0)))
    alone = rlx2.mask(*alone), alone[1]
    for _ in range(25):
        alone = one(*alone)
    jax.tree.map(np.testing.assert_array_equal, rlx2.masks_of(alone[1]), rlx2.masks_of(state))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), alone[0], params
    )
    check_links(params, state)


@row("Transformations", "`vmap` over seeds", "each run equals a single run, with its own masks")
def test_vmap():
    tx = sparse_adam()
    seeds = jax.vmap(network)(jax.random.split(jax.random.key(0), 2))
    lanes = jax.jit(jax.vmap(lambda params: fit(tx, params, of, 25)))(seeds)
    first, second = (jax.tree.map(lambda x, i=i: x[i], lanes[:2]) for i in range(2))
    for found in (first, second):
        check_links(*found)
    alone = fit(tx, jax.tree.map(lambda x: x[0], seeds), of, 25)
    jax.tree.map(np.testing.assert_array_equal, rlx2.masks_of(first[1]), rlx2.masks_of(alone[1]))
    check_moved(first[1], second[1])


@row("Transformations", "`vmap` over sparsities, intervals and ζ0", "traced numbers")
def test_vmap_over_settings():
    table = [(0.75, 10, 0.5), (0.5, 5, 0.3)]

    def run(sparsity: Any, interval: Any, zeta0: Any) -> Any:
        options: Any = {"interval": interval, "t_end": 120, "zeta0": zeta0}
        tx = rlx2.sparsify(optax.adam(1e-2), sparsity, **options)
        return fit(tx, network(jax.random.key(0)), of)

    columns = [jnp.array(column) for column in zip(*table)]
    lanes = jax.jit(jax.vmap(run))(*columns)
    for i, (sparsity, *_) in enumerate(table):
        params, state, losses = jax.tree.map(lambda x, i=i: x[i], lanes)
        check_links(params, state, sparsity)
        check_learned(losses)


@row("Transformations", "donation", "`jax.jit(step, donate_argnums=(0, 1))`")
def test_donation(trained):
    tx, *carry = trained
    kept = jax.tree.map(np.array, carry)
    copies = jax.tree.map(jnp.array, carry)
    donated = jax.jit(step(tx), donate_argnums=(0, 1))
    after = donated(*copies)
    assert all(x.is_deleted() for x in jax.tree.leaves(copies))
    expected = jax.jit(step(tx))(*jax.tree.map(jnp.asarray, kept))
    jax.tree.map(np.testing.assert_array_equal, after, expected)
    check_links(*after)


@row("Transformations", "`lax.cond`", "updates in a branch; the counter counts those taken")
def test_cond():
    tx = sparse_adam()
    one = step(tx)
    params = network(jax.random.key(0))
    state = tx.init(params)

    def every_other(carry: Any, i: Any) -> Any:
        return jax.lax.cond(i % 2 == 0, lambda c: one(*c), lambda c: c, carry), None

    carry = rlx2.mask(params, state), state
    carry, _ = jax.jit(lambda c: jax.lax.scan(every_other, c, jnp.arange(25)))(carry)
    assert int(carry[1].count) == 13
    expected = fit(tx, params, of, 13)
    jax.tree.map(np.testing.assert_array_equal, rlx2.masks_of(carry[1]), rlx2.masks_of(expected[1]))
    check_links(*carry)


@row("Transformations", "`jax.checkpoint`", "the loss is rematerialised; equal masks")
def test_checkpoint(trained):
    tx, _, state = trained
    params, found, _ = fit(tx, network(jax.random.key(0)), jax.checkpoint(of), 25)
    jax.tree.map(np.testing.assert_array_equal, rlx2.masks_of(found), rlx2.masks_of(state))
    check_links(params, found)


@row("Transformations", "bfloat16 or float16 parameters", "parameters and updates keep their type")
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision(dtype):
    tx = rlx2.sparsify(optax.adam(1e-2, eps=1e-4), SPARSITY, **PLAN)
    params, x, y = jax.tree.map(lambda a: jnp.asarray(a, dtype), (network(jax.random.key(0)), X, Y))
    params, state, losses = fit(tx, params, lambda p: loss(p, x, y).astype(jnp.float32))
    assert all(p.dtype == dtype for p in jax.tree.leaves(params))
    check_links(params, state)
    check_learned(losses)


@row("Transformations", "float32 parameters, bfloat16 gradients", "parameters stay float32")
def test_mixed_precision():
    tx = sparse_adam()
    x, y = jnp.asarray(X, jnp.bfloat16), jnp.asarray(Y, jnp.bfloat16)
    half = lambda params: jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)  # noqa: E731

    def one(carry: Any, _: None) -> Any:
        params, state = carry
        value, grads = jax.value_and_grad(lambda p: loss(p, x, y))(half(params))
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), value

    params = network(jax.random.key(0))
    carry = params, tx.init(params)
    carry, _ = one(carry, None)  # from now on the optimizer's state keeps its types
    (params, state), losses = jax.lax.scan(one, carry, None, length=STEPS)
    assert all(p.dtype == jnp.float32 for p in jax.tree.leaves(params))
    check_links(params, state)
    check_learned(losses.astype(jnp.float32))


@row(
    "Transformations", "differentiation through training", "exact, with `optax.adam(eps_root=...)`"
)
@pytest.mark.parametrize("mask_step", ["skip", "after"])
def test_meta_gradients(mask_step):
    """The derivative of the final loss by the learning rate, past two mask updates."""
    with jax.enable_x64(True):
        params, x, y = jax.tree.map(
            lambda a: jnp.asarray(a, jnp.float64), (network(jax.random.key(0)), X, Y)
        )

        def final(rate: Any) -> Any:
            adam = optax.inject_hyperparams(optax.adam)(learning_rate=rate, eps_root=1e-8)
            tx: Any = rlx2.sparsify(adam, SPARSITY, mask_step=mask_step, interval=5, t_end=40)
            found = fit(tx, params, lambda p: loss(p, x, y), 12)
            return loss(found[0], x, y)

        final = jax.jit(final)
        above, below = (float(final(1e-2 + e)) for e in (1e-6, -1e-6))
        np.testing.assert_allclose(jax.grad(final)(1e-2), (above - below) / 2e-6, rtol=1e-5)


def two_devices(mode: str) -> None:
    """In a subprocess, because the number of devices is fixed when JAX starts."""
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(ROOT), os.environ.get("PYTHONPATH", "")])
    found = subprocess.run(
        [sys.executable, str(here / "two_devices.py"), mode],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    assert found.stdout.split() == ["exact"]


@row("Transformations", "`pmap`", "gradients averaged over two devices; masks stay in sync")
def test_pmap():
    two_devices("pmap")


@row("Transformations", "`shard_map`", "gradients averaged over two devices; masks stay in sync")
def test_shard_map():
    two_devices("shard_map")


@row("Transformations", "sharded parameters", "`NamedSharding` under `jit`: masks as on one device")
def test_sharded_parameters():
    two_devices("auto")


@row("Transformations", "explicit mesh", "`jax.set_mesh`, weights sharded over two devices")
def test_explicit_mesh():
    two_devices("mesh")


def continues(tx: Any, saved: Any, restored: Any) -> None:
    """A restored state equals the saved one and trains identically."""
    jax.tree.map(np.testing.assert_array_equal, restored, saved)
    one = jax.jit(step(tx))
    carry, other = saved, jax.tree.map(jnp.asarray, restored)
    for _ in range(10):  # past a mask update
        carry, other = one(*carry), one(*other)
    jax.tree.map(np.testing.assert_array_equal, carry, other)
    check_moved(saved[1], carry[1])
    check_links(*other)


@row("Files", "Orbax", "`ocp.args.StandardSave` of parameters and state")
def test_orbax(trained, tmp_path):
    import orbax.checkpoint as ocp

    tx, *saved = trained
    saved = tuple(saved)
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(25, args=ocp.args.StandardSave(saved))
        manager.wait_until_finished()
        like = jax.tree.map(ocp.utils.to_shape_dtype_struct, saved)
        restored = manager.restore(25, args=ocp.args.StandardRestore(like))
    continues(tx, saved, restored)


@row("Files", "Flax", "`flax.serialization.to_bytes` and `from_bytes`")
def test_flax_serialization(trained):
    tx, params, state = trained
    blank = network(jax.random.key(5))
    data = flax.serialization.to_bytes((params, state))
    restored = flax.serialization.from_bytes((blank, tx.init(blank)), data)
    continues(tx, (params, state), restored)


@row("Files", "Equinox", "`eqx.tree_serialise_leaves` and `tree_deserialise_leaves`")
def test_equinox_serialisation(trained, tmp_path):
    eqx = pytest.importorskip("equinox")
    tx, params, state = trained
    path, blank = tmp_path / "state.eqx", network(jax.random.key(5))
    eqx.tree_serialise_leaves(path, (params, state))
    restored = eqx.tree_deserialise_leaves(path, (blank, tx.init(blank)))
    continues(tx, (params, state), restored)


@row("Files", "NumPy", "`jax.tree.map(np.asarray, state)`, `pickle`")
def test_numpy(trained):
    import pickle

    tx, params, state = trained
    restored = pickle.loads(pickle.dumps(jax.tree.map(np.asarray, (params, state))))
    continues(tx, (params, state), restored)
