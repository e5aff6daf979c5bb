"""examples/rlx2_td3.py matches the package in float64."""

import ast
import runpy
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from paths import ROOT

import rlx2_jax as rlx2
from rlx2_jax import config as configs
from rlx2_jax import networks
from rlx2_jax.agents.common import switched_n

PATH = ROOT / "examples" / "rlx2_td3.py"
UPDATES, WARMUP, OBS, ACT, T0 = 1000, 100, 4, 2, 400


@pytest.fixture(scope="module")
def single() -> Any:
    return SimpleNamespace(**runpy.run_path(str(PATH), run_name="rlx2_td3"))


@pytest.fixture(autouse=True)
def promotion():
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.fast
def test_it_stands_alone():
    tree = ast.parse(PATH.read_text())
    imported = {
        a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names
    }
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    standard = {"argparse", "dataclasses", "math", "functools", "itertools", "typing"}
    assert imported - standard == {"gymnasium", "jax", "jax.numpy", "numpy", "optax"}


@pytest.mark.fast
@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.85, 0.98])
@pytest.mark.parametrize("sizes", [(11, 256, 256, 3), (4, 32, 1), (376, 256, 256, 17)])
def test_links_of_each_layer(single, sizes, sparsity):
    shapes = list(pairwise(sizes))
    expected = rlx2.masks.layer_sparsities(shapes, sparsity)
    np.testing.assert_allclose(single.densities(shapes, sparsity), 1 - np.array(expected))
    params, masks = single.init_layers(np.random.default_rng(0), sizes, sparsity)
    for layer, mask, shape, s in zip(params, masks, shapes, expected):
        assert mask["w"].sum() == rlx2.masks.links(shape, s)
        assert not layer["w"][~mask["w"]].any()
        bound = 1 / shape[0] ** 0.5
        assert np.abs(layer["w"]).max() <= bound and np.abs(layer["b"]).max() <= bound


def _converted(single: Any, network: Any) -> Any:
    """A network of the package in the file's representation."""

    def tree(params: Any) -> list[dict]:
        return [{"w": layer["kernel"], "b": layer["bias"]} for _, layer in sorted(params.items())]

    adam = network.moments
    moments = optax.ScaleByAdamState(adam.count, tree(adam.mu), tree(adam.nu))
    trees = map(tree, (network.params, network.masks, network.target))
    return jax.tree.map(jnp.copy, single.Network(*trees, moments))


def _float64(batch: Any) -> Any:
    wide = lambda x: jnp.asarray(x, jnp.float64) if x.dtype == jnp.float32 else x  # noqa: E731
    return jax.tree.map(wide, batch)


def test_parameters_equal_the_packages_after_1000_updates(single):
    """The same first networks, transitions, batches and noise: 25 mask updates of the critics and
    12 of the actor, the switch to three steps, trims of the buffer. A file of float32 rounding
    would part ways at the first mask update, so both run in float64."""
    exact = lambda x: float(np.float32(x))  # noqa: E731  # hyper-parameters are float32 there
    rates = {"learning_rate": exact(3e-3), "tau": exact(0.05), "discount": exact(0.99)}
    shared = {"t0": T0, "d0": 0.05, "b_min": 150, "b_max": 400}
    args = single.Args(
        **rates, **shared, hidden=(16, 16), batch_size=16, steps=UPDATES + WARMUP, warmup=WARMUP,
        mask_interval=40, buffer_interval=50, oldest=64, target_noise=exact(0.2),
    )  # fmt: skip
    with jax.enable_x64(True):
        config = configs.make(
            "td3", OBS, ACT, hidden=(16, 16), batch_size=16, steps=args.steps, warmup=WARMUP,
            mask_interval=40, buffer_interval=50, oldest_k=64, capacity=400, dtype="float64",
        )  # fmt: skip
        lane = configs.Lane(**rates, **shared)
        hyper = configs.hyper(config, lane)
        agent = rlx2.td3.init(jax.random.key(0), config, lane)
        actor, critic = _converted(single, agent.actor), _converted(single, agent.critic)
        first = _masks(actor) + _masks(critic)
        Transition: Any = rlx2.Transition
        example = Transition(
            *(np.zeros(n, np.float32) for n in (OBS, ACT)), np.float32(0),
            np.zeros(OBS, np.float32), np.bool_(0), np.bool_(0), np.zeros(ACT, np.float32),
        )  # fmt: skip
        replay, memory = rlx2.buffer.init(400, example, n=3), single.ReplayBuffer(args, OBS, ACT)
        add = jax.jit(lambda replay, t: rlx2.buffer.add(replay, t, limit=400))

        @jax.jit
        def check(agent: Any, replay: Any) -> Any:
            policy = lambda obs: rlx2.td3.mean_action(networks.online(agent.actor), obs)  # noqa: E731
            gap = rlx2.buffer.policy_distance(replay, policy, 64)
            trimmed = rlx2.buffer.trim(replay, gap, hyper.d0, b_min=150, b_max=400)
            return trimmed.length, gap

        @jax.jit
        def learn(agent: Any, replay: Any, key: Any, count: Any) -> Any:
            keys = jax.random.split(key)
            reach = switched_n(count, count, config, hyper)
            batch = rlx2.buffer.sample(replay, keys[0], 16, 3, reach=reach)
            agent, _ = rlx2.td3.update(agent, _float64(batch), keys[1], count, count, config, hyper)
            return agent, batch

        rng, trims, checks = np.random.default_rng(1), 0, 0
        obs: Any = np.zeros(OBS, np.float32)
        for step in range(1, args.steps + 1):
            mean = np.float32(single.policy(actor.params, obs))
            action = np.clip(mean + 0.1 * rng.normal(size=ACT), -1, 1).astype(np.float32)
            next_obs = np.float32(0.9 * obs + rng.normal(size=OBS) + action.sum())
            ends = rng.random(2) < 0.05
            t = Transition(obs, action, np.float32(-(obs[0] ** 2)), next_obs, *ends, mean)
            replay = add(replay, t)
            memory.add(**t._asdict())
            obs = np.float32(rng.normal(size=OBS)) if ends.any() else next_obs
            if step % args.buffer_interval == 0:
                before, gap = memory.length, memory.distance(actor.params)
                memory.trim(actor.params)
                length, expected = check(agent, replay)
                replay = replay._replace(length=length)
                assert gap == pytest.approx(float(expected), abs=2e-4)  # half-precision actions
                checks, trims = checks + 1, trims + (memory.length < before)
            assert memory.length == int(replay.length)
            if (count := step - WARMUP) > 0:
                key, n = jax.random.key(count), 1 if count < T0 else 3
                agent, batch = learn(agent, replay, key, jnp.int32(count))
                sample_key, update_key = jax.random.split(key)
                key_row, _ = jax.random.split(sample_key)
                start = jax.random.randint(key_row, (16,), 0, jnp.int32(memory.length - n + 1))
                found = memory.windows(np.asarray(start), n)
                for name, value in found._asdict().items():
                    wanted = np.asarray(getattr(batch, name))
                    wanted = wanted if name in ("obs", "action") else wanted[:, :n]
                    if name == "next_obs":  # that of a terminal step is never used
                        value, wanted = (x[~found.terminated] for x in (value, wanted))
                    np.testing.assert_array_equal(value, wanted, name)
                noise_key = jax.random.split(update_key, 3)[0]
                actor, critic = single.update(
                    actor, critic, _float64(found), noise_key, count, args
                )
        last = _masks(actor) + _masks(critic)
        assert 0 < trims < checks
        moved = [int((a != b).sum()) for a, b in zip(first, last)]
        assert sum(moved) > 100
        for ours, theirs in ((actor, agent.actor), (critic, agent.critic)):
            theirs = _converted(single, theirs)
            for a, b in zip(_masks(ours), _masks(theirs)):
                np.testing.assert_array_equal(a, b)
            pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
            for a, b in pairs:
                assert a.dtype == b.dtype
                np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


def _masks(network: Any) -> list[np.ndarray]:
    return [np.asarray(layer["w"]) for layer in network.masks]


def test_it_trains_and_evaluates(single, capsys):
    args = single.Args(
        steps=60, warmup=30, hidden=(8,), batch_size=8, mask_interval=7, t0=20, b_min=10,
        b_max=40, buffer_interval=10, oldest=16, d0=0.0, eval_interval=30, episodes=1,
    )  # fmt: skip
    scores = single.train(args)
    assert [step for step, _ in scores] == [30, 60] and all(score > 0 for _, score in scores)
    buffer = int(capsys.readouterr().out.split()[-1])
    assert 10 <= buffer < 40
    assert single.train(args) == scores


@pytest.mark.slow
def test_it_learns_the_inverted_pendulum(single):
    args = single.Args(
        steps=20_000, warmup=1000, hidden=(64, 64), batch_size=128, learning_rate=1e-3,
        mask_interval=200, t0=2000, b_min=5000, b_max=20_000, buffer_interval=1000,
        eval_interval=2500, tau=0.01,
    )  # fmt: skip
    scores = [score for _, score in single.train(args)]
    assert max(scores) > 900, scores
