"""SimBa, an architecture defined in one module: masked and compact, all algorithms and loops."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from both_forms import compare_float64
from device_tasks import Slide
from lanes import assert_close, assert_equal, assert_on_mask, quick, setting
from small_runs import small_run, stop_after

import rlx2_jax as rlx2
from rlx2_jax import config, networks
from rlx2_jax.agents import common, sac, td3
from rlx2_jax.kernels import layout
from rlx2_jax.networks import convert, masked
from rlx2_jax.training import execute, guards, plan, preflight, summary
from rlx2_jax.training.lane_ledger import lane_ledger

SIMBA: dict[str, Any] = {"architecture": "simba", "hidden": None, "width": 8, "blocks": 2}
SMALLER = SIMBA | {"blocks": 1}  # compiled in half the time
LANE = config.Lane(actor_sparsity=0.6, critic_sparsity=0.5, method="rigl")
ALGORITHMS = {"td3": td3, "sac": sac}


def make(algo: str = "td3", **fields: Any) -> config.Config:
    return setting(algo, **{**SIMBA, **fields})


def both(algo: str, **fields: Any) -> list[Any]:
    """The same agent, masked and compact, after a few observations."""
    obs = 3 * np.random.default_rng(0).normal(size=(3, 5, 4)) + np.arange(4.0)
    found = []
    for form in ("masked", "compact"):
        cfg = make(algo, execution=form, **fields)
        agent = quick(lambda cfg=cfg: ALGORITHMS[algo].init(jax.random.key(0), cfg, LANE))()
        for batch in obs:
            agent = common.observe(agent, jnp.asarray(batch))
        found.append(agent)
    return found


def by_steps(steps: list[tuple], params: Any, x: np.ndarray) -> np.ndarray:
    """The exported policy, in NumPy."""
    saved: list[np.ndarray] = []
    for kind, *arguments in steps:
        if kind == "normalize":
            x = (x - arguments[0]) * arguments[1]
        elif kind == "linear":
            layer = params
            for key in arguments[0].split("/"):
                layer = layer[key]
            x = x @ layer["kernel"] + layer["bias"]
        elif kind == "relu":
            x = np.maximum(x, 0)
        elif kind == "layer_norm":
            scale, bias, epsilon = arguments
            centred = x - x.mean(axis=-1, keepdims=True)
            x = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon)
            x = x * scale + bias
        elif kind == "save":
            saved.append(x)
        else:
            assert kind == "add_saved"
            x = x + saved.pop()
    assert not saved
    return x


@pytest.mark.fast
def test_the_module_matches_its_steps():
    dense, compact = (agent.actor for agent in both("td3"))
    noise = lambda x: x + 0.1 * np.sin(np.arange(x.size, dtype=np.float32)).reshape(x.shape)  # noqa: E731
    params = jax.tree.map(np.asarray, dense.params)
    params["norm"] = jax.tree.map(noise, params["norm"])
    x = np.random.default_rng(1).normal(size=(7, 4)).astype(np.float32)
    stats = jax.tree.map(np.asarray, dense.stats)
    steps = dense.module.steps(params, stats)
    want = by_steps(steps, params, x)
    np.testing.assert_allclose(networks.bind(dense, params)(jnp.asarray(x)), want, atol=1e-5)
    packed = convert.like(dense._replace(params=params), compact)
    np.testing.assert_allclose(networks.online(packed)(jnp.asarray(x)), want, atol=1e-5)
    assert [kind for kind, *_ in steps].count("linear") == len(dense.module.layers(4)) == 6
    mlp = networks.MLP((3, 2))
    assert mlp.steps({}) == [("linear", "Dense_0"), ("relu",), ("linear", "Dense_1")]


@pytest.mark.fast
def test_a_plain_mlp_is_the_module_applied():
    """The fused kernels match the module."""
    module = networks.MLP((6, 5, 2))
    params, _, _ = networks.init(jax.random.key(0), module, 4)
    x = jax.random.normal(jax.random.key(1), (3, 4))
    applied: Any = module.apply({"params": params}, x)
    np.testing.assert_allclose(masked.bind(params, module=module)(x), applied, atol=1e-6)


@pytest.mark.fast
def test_observations_are_normalized_by_all_that_were_seen():
    agent = both("sac")[1]
    obs = 3 * np.random.default_rng(0).normal(size=(3, 5, 4)) + np.arange(4.0)
    for network in (agent.actor, agent.critic):
        stats = network.stats["normalize"]
        assert int(stats["count"]) == 15
        np.testing.assert_allclose(stats["mean"], obs.reshape(-1, 4).mean(axis=0), rtol=1e-5)
        np.testing.assert_allclose(stats["var"], obs.reshape(-1, 4).var(axis=0), rtol=1e-5)
    same = common.observe(agent, jnp.ones((2, 4)), jnp.asarray(False))
    assert_equal(same.critic.stats, agent.critic.stats)


@pytest.mark.fast
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_gradients_of_both_forms_are_equal_in_float64(algo):
    with jax.enable_x64(True):
        dense, compact = both(algo, dtype="float64", critics=3)
        rng = np.random.default_rng(2)
        obs, action = (jnp.asarray(rng.normal(size=(9, n))) for n in (4, 2))

        def loss(network: Any, params: Any, action: jax.Array) -> jax.Array:
            q = networks.q_values(networks.bind(network, params), obs, action, separate_inputs=True)
            return jnp.sum(jnp.sin(q))

        grad = quick(
            lambda network: jax.grad(loss, (1, 2))(network, network.params, action),
        )
        (own, to_action), (flat, same) = (grad(agent.critic) for agent in (dense, compact))
        own = jax.tree.map(lambda g, m: jnp.where(m, g, 0.0), own, dense.critic.masks)
        tree = convert.to_masked(compact.critic._replace(params=flat)).params
        assert_close(own, tree, 1e-12)
        assert_close(to_action, same, 1e-12)
        assert min(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(own)) > 0


@pytest.mark.parametrize("algo", ["td3", pytest.param("sac", marks=pytest.mark.slow)])
def test_float64_training_is_equal(algo):
    lanes = (
        config.Lane(seed=3, method="set", mask_interval=8, zeta0=0.3),
        config.Lane(seed=5, method="rlx2", t0=20, n=2, t_end=60, critic_sparsity=0.8),
    )
    compare_float64(algo, lanes, 32, **SMALLER)


@pytest.mark.parametrize(
    ("algo", "form"),
    [
        ("td3", "compact"),
        ("sac", "masked"),
        pytest.param("td3", "masked", marks=pytest.mark.slow),
        pytest.param("sac", "compact", marks=pytest.mark.slow),
    ],
)
def test_training_on_the_device(algo, form):
    small = {"steps": 80, "warmup": 20, "batch_size": 8, "capacity": 80, "mask_interval": 10}
    small |= {"policy_delay": 1, "target_interval": 1}  # so a loop's body is one step, not two
    cfg = rlx2.make_config(Slide(), algo, **small, **SMALLER, execution=form)
    train = rlx2.make_train(Slide(), cfg, LANE, evaluations=1, episodes=1)
    found = quick(jax.vmap(train))(jax.random.split(jax.random.key(0), 2))
    assert np.isfinite(found.metrics["critic_loss"]).all()
    first = config.lane_links(cfg, LANE)
    for name, live in (("actor", first.actor), ("critic", first.critic)):
        network = getattr(found.agent, name)
        assert network.stats["normalize"]["count"].tolist() == [81, 81]
        assert (network.moved > 0).all()
        for i in range(2):
            dense = convert.to_masked(jax.tree.map(lambda x, i=i: x[i], network))
            assert_on_mask(dense)
            masks = layout.flatten(dense.masks).items()
            kernels = [int(mask.sum()) for path, mask in masks if path.endswith("/kernel")]
            assert kernels == [(network.members or 1) * n for n in live]


@pytest.mark.fast
def test_sizes_are_those_of_the_architecture():
    assert config.make("td3", 3, 1, architecture="simba").width == 512
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"hidden": (16,)}, r"hidden=\(16,\).*'simba' is sized by width and blocks"),
        ({"architecture": "mlp", "hidden": None}, "width=8: architecture='mlp' is sized by hidden"),
        ({"architecture": "cnn"}, "architecture='cnn': use one of"),
        ({"blocks": 65}, "blocks=65"),
    )
    for fields, text in wrong:
        with pytest.raises(ValueError, match=text):
            make(**fields)
    with pytest.raises(ValueError, match=r"'tiny' trains a narrower MLP.*'simba'"):
        config.resolve(make(), config.Lane(method="tiny"))
    with pytest.raises(ValueError, match=r"actor_sparsity=0.9999 with width=8, blocks=2"):
        config.resolve(make(), config.Lane(actor_sparsity=0.9999))
    with pytest.raises(ValueError, match="already an architecture 'mlp'"):
        networks.register_architecture("mlp", networks.SimBa)


@pytest.mark.fast
def test_ledger_and_estimates():
    cfg = config.make("td3", 11, 3, architecture="simba", width=64, blocks=2)
    lane = config.Lane(actor_sparsity=0.98, critic_sparsity=0.95)
    shapes = [(14, 64), (64, 256), (256, 64), (64, 256), (256, 64), (64, 1)]
    assert [shape for _, shape in cfg.critic_layers] == shapes
    ledger = lane_ledger(cfg, lane)
    assert ledger.critic_parameters == pytest.approx(0.05 * sum(i * o for i, o in shapes))
    assert ledger.relative.actor_parameters == pytest.approx(0.02)
    assert sum(config.lane_links(cfg, lane).critic) == pytest.approx(
        ledger.critic_parameters, abs=6
    )
    assert "--width=64" in preflight.lane_needs(cfg, 1)
    row = {"critic_sparsity/q1/hidden_0/expand": 0.5, "critic_sparsity/q2/embed": 0.25}
    want = (0.5 * 64 * 256 + 0.25 * 14 * 64) / (64 * 256 + 14 * 64)
    assert summary.sparsity(row, "critic", cfg) == pytest.approx(want)


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "form"), [("td3", "compact"), ("sac", "masked")])
def test_a_run_is_resumed_exactly(algo, form, tmp_path, monkeypatch):
    run = small_run(algo=algo)
    cfg = dataclasses.replace(run.config, **SIMBA)
    lanes = [config.resolve(cfg, lane) for lane in run.lanes[:2]]
    run = dataclasses.replace(run, config=cfg, lanes=plan.choose(cfg, lanes, form))
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    found = execute.execute(run, whole, progress=False)
    assert all(lane["critic_evolutions"] > 0 for lane in found["lanes"])
    with monkeypatch.context() as patch:
        stop_after(patch, 137)
        with pytest.raises(guards.Stopped):
            execute.execute(run, broken, progress=False)
    execute.execute(run, broken, resume=True, say=lambda _: None, progress=False)
    for name in ("evaluations.csv", "metrics.csv"):
        assert (broken / name).read_text() == (whole / name).read_text()
    with np.load(whole / "final" / "lane-0.npz") as file:
        assert file["actor/stats/normalize/count"] == 241
