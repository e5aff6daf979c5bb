"""Growth and drop rules: by hand, masked and compact, in different lanes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from lanes import gradient_step, stack
from programs import jit

from rlx2_jax import config, sparsify
from rlx2_jax.agents import td3
from rlx2_jax.kernels import native
from rlx2_jax.networks import convert, optimize
from rlx2_jax.sparse import masks, rules, topology
from rlx2_jax.training import plan
from rlx2_jax.types import Batch

pytestmark = pytest.mark.fast

KEY = jax.random.key(3)


def layer(shape=(4, 5), seed=0):
    rng = np.random.default_rng(seed)
    weight, grad = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for _ in range(2))
    (uniform,) = rules.shared_uniform([shape], jnp.dtype("float32"))
    return rules.Layer(weight, grad, None, None, grad, uniform)


def test_rules_by_hand():
    one = layer()
    np.testing.assert_array_equal(rules.GROW["gradient"](KEY, one), one.dense_grad)
    np.testing.assert_array_equal(rules.DROP["magnitude"](one), np.abs(one.weight))
    np.testing.assert_array_equal(rules.DROP["sensitivity"](one), np.abs(one.weight * one.grad))
    drawn = np.asarray(rules.dense(rules.GROW["random"](KEY, one)))
    assert drawn.shape == (4, 5) and 0 <= drawn.min() < drawn.max() < 1
    guided = np.asarray(rules.guided(KEY, one, share=0.3))
    np.testing.assert_array_equal(guided, np.where(drawn < 0.3, one.dense_grad, 0))
    assert 0 < (guided != 0).sum() < 20


def test_factors_are_the_dense_gradient():
    rng = np.random.default_rng(0)
    x, g = rng.standard_normal((4, 7)), rng.standard_normal((5, 7))
    factors = rules.Factors(jnp.asarray(x, jnp.float32), jnp.asarray(g, jnp.float32))
    np.testing.assert_allclose(rules.dense(factors), x @ g.T, rtol=1e-5)
    assert rules.GROW["gradient"](KEY, layer()._replace(dense_grad=factors)) is factors


def test_one_draw_is_divided_among_the_layers():
    parts = rules.shared_uniform([(4, 5), (3,), (4, 5)], jnp.dtype("float32"))
    one, bias, two = (part(KEY) for part in parts)
    assert not np.array_equal(one, two)
    whole = jnp.concatenate([one.ravel(), bias, two.ravel()])
    np.testing.assert_array_equal(whole, jax.random.uniform(KEY, (43,)))
    np.testing.assert_array_equal(parts[0](KEY), one)
    assert not np.array_equal(parts[0](jax.random.key(4)), one)


def test_selection_by_lane():
    scores = [jnp.full((2, 2), float(i)) for i in range(3)]
    found = jit(jax.vmap(lambda i: rules.select(scores, i)))(jnp.arange(3))
    np.testing.assert_array_equal(found[:, 0, 0], [0, 1, 2])


def test_own_rules_are_registered_once():
    rule = lambda key, layer: layer.dense_grad  # noqa: E731
    try:
        rules.register_grow("mine", rule)
        rules.register_grow("mine", rule)
        assert config.Lane(grow="mine").grow in rules.GROW
        with pytest.raises(ValueError, match="already a rule 'mine'"):
            rules.register_grow("mine", lambda key, layer: layer.grad)
    finally:
        rules.GROW.pop("mine", None)
    with pytest.raises(ValueError, match="letters, digits"):
        rules.register_drop("no such", rules.magnitude)


@pytest.fixture
def lonely_inputs():
    """An arbitrary rule that differs from all others: prefers inputs with small gradients."""

    def rule(key, layer):
        score = rules.dense(layer.dense_grad)
        return 1.0 / (1.0 + jnp.abs(score).mean(axis=1, keepdims=True)) + 0 * score

    rules.register_grow("lonely", rule)
    yield "lonely"
    del rules.GROW["lonely"]


def batch(seed, n=2, rows=16):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)  # noqa: E731
    ends = jnp.zeros((rows, n), bool)
    return Batch(
        draw(rows, 4), jnp.tanh(draw(rows, 2)), draw(rows, n), draw(rows, n, 4), ends, ends
    )


def test_every_rule_chooses_the_same_links_in_both_forms_and_in_mixed_lanes(lonely_inputs):
    """Lanes of one program with different rules; one mask update from the same state."""
    pairs = [(g, d) for g in rules.GROW for d in rules.DROP]
    fields = {"hidden": (12, 12), "batch_size": 16, "mask_interval": 2, "n_max": 2, "steps": 1000,
              "warmup": 10, "grow": tuple(rules.GROW), "drop": tuple(rules.DROP)}  # fmt: skip
    lanes = [
        config.Lane(seed=0, n=2, grow=g, drop=d, actor_sparsity=0.6, critic_sparsity=0.6)
        for g, d in pairs
    ]
    chosen, batches = {}, stack([batch(i) for i in range(3)])
    for form in ("masked", "compact"):
        cfg = config.make("td3", 4, 2, execution=form, **fields)
        hypers = stack([config.hyper(cfg, lane) for lane in lanes])
        state = stack([td3.init(jax.random.key(0), cfg, lane) for lane in lanes])

        def update(state, hyper, count, cfg=cfg):
            return td3.update(
                state, jax.tree.map(lambda x: x[count], batches), KEY, count, count, cfg, hyper
            )[0]

        step = jit(jax.vmap(update, (0, 0, None)))
        for count in map(jnp.int32, (1, 2)):
            state = step(state, hypers, count)
        critic = jit(jax.vmap(convert.to_masked))(state.critic)
        chosen[form] = jax.device_get(jax.tree.leaves(critic.masks))
    for one, two in zip(*chosen.values()):
        np.testing.assert_array_equal(one, two)
    kernels = [x for x in chosen["masked"] if x.ndim == 4]  # [lanes, critics, in, out]
    bits = {np.concatenate([k[i].ravel() for k in kernels]).tobytes() for i in range(len(pairs))}
    assert len(bits) == len(pairs)  # no two pairs of rules agree
    for kernel in kernels:
        assert len(set(kernel.sum(axis=(2, 3)).ravel().tolist())) == 1


@pytest.mark.parametrize("drop", rules.DROP)
@pytest.mark.parametrize("grow", rules.GROW)
def test_sparsify_and_the_agents_agree(grow, drop):
    """One mask update of a network's step, and of `sparsify` around Adam."""
    rng = np.random.default_rng(1)
    params = {"w": {"kernel": jnp.asarray(rng.standard_normal((6, 7)), jnp.float32)}}
    grads = {"w": {"kernel": jnp.asarray(rng.standard_normal((6, 7)), jnp.float32)}}
    tx = sparsify(optax.adam(0.1), 0.5, grow=grow, drop=drop, interval=1, t_end=10, seed=5)
    state: Any = tx.init(params)
    start = masks.apply(params, state.masks)
    new: Any = tx.update(grads, state, start)[1]
    schedule = topology.Schedule(jnp.float32(0.5), *(jnp.int32(x) for x in (1, 10, 0, 0)))
    network = optimize.init(start, state.masks, grow=(grow,))
    key = jax.random.wrap_key_data(state.key)
    own = gradient_step(
        network, grads, jnp.float32(0.1), jnp.int32(1), schedule,
        jax.random.fold_in(key, 1), interval=1, grow=(grow,), drop=(drop,),
    )  # fmt: skip
    np.testing.assert_array_equal(own.masks["w"]["kernel"], new.masks["w"]["kernel"])
    assert not np.array_equal(new.masks["w"]["kernel"], state.masks["w"]["kernel"])


def test_sparsify_takes_functions_and_refuses_unknown_names():
    tx = sparsify(
        optax.sgd(0.1), 0.5, grow=lambda key, layer: -jnp.arange(6.0).reshape(2, 3),
        drop=lambda layer: jnp.arange(6.0).reshape(2, 3), interval=1, t_end=10,
    )  # fmt: skip
    params = {"w": jnp.ones((2, 3))}
    state: Any = tx.init(params)
    new: Any = tx.update(params, state, params)[1]
    live = np.flatnonzero(np.asarray(state.masks["w"]))
    kept, grown = live[1:], 5 if 5 not in live[1:] else 4 if 4 not in live[1:] else 3
    assert set(np.flatnonzero(np.asarray(new.masks["w"]))) == {*kept.tolist(), grown}
    with pytest.raises(ValueError, match="grow='best': use one of"):
        sparsify(optax.sgd(0.1), 0.5, grow="best", interval=1, t_end=2)
    with pytest.raises(ValueError, match=r"method 'ss': .*'grow'; its options are structure"):
        sparsify(optax.sgd(0.1), 0.5, method="ss", grow="random")


def test_lanes_need_their_rule_in_the_program():
    cfg = config.make("td3", 4, 2, grow=("gradient",))
    with pytest.raises(ValueError, match=r"grow='random' of a lane: the program has"):
        config.hyper(cfg, config.Lane(method="set"))


def test_momentum_goes_by_the_average_of_dense_gradients():
    """m ← 0.9 m + 0.1 g at every update, absent links included; a program without it has none."""
    kernel = jnp.ones((3, 4))
    params, mask = {"w": {"kernel": kernel}}, {"w": {"kernel": jnp.eye(3, 4) > 0}}
    schedule = topology.Schedule(jnp.float32(0.5), *(jnp.int32(x) for x in (9, 10, 0, 0)))
    network = optimize.init(masks.apply(params, mask), mask, grow=("momentum",))
    for count, scale in ((1, 2.0), (2, 5.0)):
        grads = {"w": {"kernel": scale * kernel}}
        network = gradient_step(
            network, grads, jnp.float32(0.1), jnp.int32(count), schedule, KEY,
            interval=9, grow=("momentum",),
        )  # fmt: skip
    assert network.smoothed is not None
    expected = 0.9 * 0.1 * 2.0 + 0.1 * 5.0
    np.testing.assert_allclose(network.smoothed["w/kernel"], expected * kernel, rtol=1e-6)
    assert optimize.init(params, mask, grow=("gradient",)).smoothed is None
    with pytest.raises(ValueError, match="needs the smoothed gradient"):
        rules.momentum(KEY, layer())


def test_momentum_runs_masked_by_default():
    cfg = config.make("td3", 11, 3, hidden=(256, 256), grow=("gradient", "momentum"))
    lane = config.Lane(grow="momentum", actor_sparsity=0.98, critic_sparsity=0.95)
    assert plan.choose(cfg, [lane], "auto")[0].execution == "masked"
    if native.execution() != "off":
        assert plan.choose(cfg, [lane], "compact")[0].execution == "compact"
