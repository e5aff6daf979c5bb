"""Two devices of one process: `python two_devices.py pmap|shard_map|auto|mesh` prints `exact`."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from embedding import STEPS, check_learned, check_links, loss, network, sparse_adam, task

import rlx2_jax as rlx2

X, Y = task()
TX = sparse_adam()


def parallel(mode: str) -> None:
    """Each device has half of the batch; gradients are averaged."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x, y)
        value, grads = jax.lax.pmean((value, grads), "data")
        updates, state = TX.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    params = network(jax.random.key(0))
    state = TX.init(params)
    carry: Any = rlx2.mask(params, state), state
    if mode == "pmap":
        run = jax.pmap(step, axis_name="data")
        carry = jax.tree.map(lambda x: jnp.stack([x, x]), carry)
        batch: Any = X.reshape(2, -1, X.shape[1]), Y.reshape(2, -1, Y.shape[1])
    else:
        spec, whole = jax.P("data"), jax.P()
        run = jax.jit(
            jax.shard_map(
                step, mesh=mesh, in_specs=(whole, whole, spec, spec), out_specs=(whole,) * 3
            )
        )
        batch = X, Y
    losses = []
    for _ in range(STEPS):
        *carry, value = run(*carry, *batch)
        losses.append(float(np.ravel(value)[0]))
    params, state = carry
    if mode == "pmap":
        both = [jax.tree.map(lambda x, i=i: x[i], (params, state)) for i in range(2)]
        jax.tree.map(np.testing.assert_array_equal, *both)
        params, state = both[0]
    check_links(params, state)
    check_learned(losses)


def automatic() -> None:
    """Weights sharded by the compiler train like those on one device."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = {"layer_0": jax.P(None, "x"), "layer_1": jax.P("x", None)}
    params = network(jax.random.key(0))
    sharded = {
        name: {**layer, "kernel": jax.device_put(layer["kernel"], jax.NamedSharding(mesh, spec))}
        for (name, layer), spec in zip(params.items(), specs.values())
    }

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, X, Y)
        updates, state = TX.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    first = jax.jit(TX.init)(sharded)
    jax.tree.map(
        np.testing.assert_array_equal, rlx2.masks_of(first), rlx2.masks_of(TX.init(params))
    )
    carry: Any = rlx2.mask(sharded, first), first
    losses = []
    for _ in range(STEPS):
        *carry, value = step(*carry)
        losses.append(float(value))
    assert len(carry[0]["layer_0"]["kernel"].sharding.device_set) == 2
    check_links(*carry)
    check_learned(losses)


def explicit() -> None:
    """Weights sharded over an explicit mesh."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        specs = {"layer_0": jax.P(None, "x"), "layer_1": jax.P("x", None)}
        params = {
            name: {**layer, "kernel": jax.device_put(layer["kernel"], specs[name])}
            for name, layer in network(jax.random.key(0)).items()
        }

        def of(params: Any) -> Any:
            whole = jax.tree.map(lambda x: jax.sharding.reshard(x, jax.P()), params)
            return loss(whole, jnp.asarray(X), jnp.asarray(Y))

        @jax.jit
        def step(params: Any, state: Any) -> Any:
            value, grads = jax.value_and_grad(of)(params)
            updates, state = TX.update(grads, state, params)
            return optax.apply_updates(params, updates), state, value

        state = TX.init(params)
        carry: Any = rlx2.mask(params, state), state
        losses = []
        for _ in range(STEPS):
            *carry, value = step(*carry)
            losses.append(float(value))
        params, state = carry
        for name, spec in specs.items():
            kernels = (params[name]["kernel"], rlx2.masks_of(state)[name]["kernel"])
            assert all(jax.typeof(x).sharding.spec == spec for x in kernels)
    check_links(*jax.device_get((params, state)))
    check_learned(losses)


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 2)
    mode = sys.argv[1]
    {"mesh": explicit, "auto": automatic}.get(mode, lambda: parallel(mode))()
    print("exact")
