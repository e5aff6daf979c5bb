"""Parity with reference numbers of the authors' released code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx2_jax import config
from rlx2_jax.agents import sac, td3
from rlx2_jax.networks import optimize
from rlx2_jax.sparse import masks, topology
from rlx2_jax.types import Batch, Network

pytestmark = pytest.mark.fast


def test_erdos_renyi_allocation(golden):
    _, cases = golden("er_allocation")
    for case in cases:
        shapes = list(zip(case["sizes"][:-1], case["sizes"][1:]))
        found = masks.layer_sparsities(shapes, case["sparsity"])
        np.testing.assert_allclose(found, case["layer_sparsity"], atol=1e-12)
        assert [masks.links(s, p) for s, p in zip(shapes, found)] == case["kept"]


@pytest.mark.parametrize("jit", [False, True])
def test_rigl_mask_updates(golden, jit):
    data, settings = golden("rigl_mask_updates")
    evolve = jax.jit(topology.evolve) if jit else topology.evolve
    for case in settings["updates"]:
        fraction = topology.update_fraction(case["step"], settings["zeta0"], settings["t_end"])
        assert fraction == pytest.approx(case["fraction"], rel=1e-6)
        read = lambda field, case=case: {  # noqa: E731
            f"l{j}": jnp.asarray(data[f"u{case['update']}/l{j}/{field}"].T) for j in range(3)
        }
        mask = jax.tree.map(lambda m: m > 0, read("mask"))
        params, new_mask = evolve(read("weight"), mask, read("dense_grad"), fraction)
        for j in range(3):
            np.testing.assert_array_equal(new_mask[f"l{j}"], read("new_mask")[f"l{j}"] > 0)
            np.testing.assert_array_equal(params[f"l{j}"], read("new_weight")[f"l{j}"])


def _mlp(data, prefix, first):
    return {
        f"Dense_{i}": {
            "kernel": jnp.asarray(data[f"{prefix}/l{first + i}.weight"].T),
            "bias": jnp.asarray(data[f"{prefix}/l{first + i}.bias"]),
        }
        for i in range(3)
    }


def _mask(data, prefix, first):
    return {
        f"Dense_{i}": {
            "kernel": jnp.asarray(data[f"{prefix}/{first + i}"].T > 0),
            "bias": jnp.ones(data[f"{prefix}/{first + i}"].shape[0], bool),
        }
        for i in range(3)
    }


def _network(data, step, name):
    """The network `name` of the golden trajectory at `step`, with no moments yet."""
    at = f"step{step}/{name}"
    members = 2 if name == "critic" else None

    def read(reader, prefix, offset):
        if members is None:
            return reader(data, prefix, 1 + offset)
        twins = [reader(data, prefix, first + offset) for first in (1, 4)]
        return jax.tree.map(lambda *x: jnp.stack(x), *twins)

    target = read(_mlp, f"{at}_target", 0) if f"{at}_target/l1.weight" in data else None
    params, masks = read(_mlp, at, 0), read(_mask, f"{at}_mask", -1)
    return optimize.init(params, masks, target=target, members=members)


def _batch(data, t):
    get = lambda name: jnp.asarray(data[f"batch/{name}"][t])  # noqa: E731
    return Batch(
        obs=get("state")[:, 0],
        action=get("action")[:, 0],
        reward=get("reward")[..., 0],
        next_obs=get("next_state"),
        terminated=get("not_done")[..., 0] == 0,
        truncated=get("reset")[..., 0] == 1,
    )


def _assert_close(ours: Network, theirs: Network, where: str):
    for field in ("params", "target"):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, err_msg=where),
            getattr(ours, field),
            getattr(theirs, field),
        )
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a, b, err_msg=where), ours.masks, theirs.masks
    )


def _setting(settings, algo):
    cfg = config.make(
        algo,
        settings["state_dim"],
        settings["action_dim"],
        name="reference",
        hidden=(settings["hidden"],) * 2,
        batch_size=settings["batch"],
        mask_interval=settings["mask_interval"],
        n_max=settings["nstep"],
    )
    lane = config.Lane(
        zeta0=settings["zeta0"],
        n=settings["nstep"],
        t0=settings["nstep_delay"],
        t_end=settings["t_end_critic"],
        discount=settings["discount"],
        tau=settings["tau"],
        learning_rate=settings["lr"],
        target_noise=settings.get("policy_noise", 0.0),
    )
    return cfg, config.hyper(cfg, lane)


def test_td3_trajectory(golden):
    data, settings = golden("td3_updates")
    cfg, hyper = _setting(settings, "td3")
    assert int(hyper.actor.t_end) == settings["t_end_actor"]
    state = td3.State(_network(data, 0, "actor"), _network(data, 0, "critic"))
    update = jax.jit(td3.update, static_argnums=5)
    for t in range(1, settings["steps"] + 1):
        state, _ = update(state, _batch(data, t - 1), jax.random.key(t), t, t, cfg, hyper)
        _assert_close(state.actor, _network(data, t, "actor"), f"actor, update {t}")
        _assert_close(state.critic, _network(data, t, "critic"), f"critic, update {t}")


def test_sac_trajectory(golden):
    data, settings = golden("sac_updates")
    cfg, hyper = _setting(settings, "sac")
    actor, critic = _network(data, 0, "actor"), _network(data, 0, "critic")
    log_alpha = jnp.asarray(data["step0/log_alpha"]).reshape(())
    leak = jax.tree.map(jnp.zeros_like, critic.params)
    state = sac.State(actor, critic, log_alpha, optimize.adam.init(log_alpha), leak)
    update = jax.jit(sac.update, static_argnums=5)
    for t in range(1, settings["steps"] + 1):
        draws = [data[f"noise/step{t}/{j}"] for j in range(3) if f"noise/step{t}/{j}" in data]
        noise = sac.Noise(jnp.stack([draws[0], draws[-2]]), jnp.asarray(draws[-1]))
        batch = _batch(data, t - 1)
        state, _ = update(state, batch, jax.random.key(t), t, t, cfg, hyper, noise=noise)
        _assert_close(state.actor, _network(data, t, "actor"), f"actor, update {t}")
        _assert_close(state.critic, _network(data, t, "critic"), f"critic, update {t}")
        np.testing.assert_allclose(
            state.log_alpha, data[f"step{t}/log_alpha"].reshape(()), atol=1e-6
        )
