"""Programs of arbitrary operations: each operation alone, and in every exported format."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policies import (
    LARGE,
    TOLERANCE,
    compile_policy,
    needs_compiler,
    observations,
    random_program,
    run_steps,
    simba,
)

from rlx2_jax.export import (
    Linear,
    SparsePolicy,
    bundle,
    c,
    c_range,
    from_actor,
    npz,
    numpy_runtime,
    onnx,
    stablehlo,
)
from rlx2_jax.export.ops import OPS, AddSaved, LayerNorm, Normalize, Relu, Save
from rlx2_jax.export.quantize import dequantized

pytestmark = pytest.mark.fast
SIMBA = simba(7, 16, 2, 3)  # 2 residual blocks


def built(program, kind: str = "td3", **kw) -> SparsePolicy:
    params, masks, steps = program
    return from_actor(params, masks, kind, steps=steps, **kw)


def identity(size: int) -> Linear:
    return Linear.of(np.eye(size, dtype=np.float32), np.eye(size, dtype=bool), np.zeros(size))


def act_of(policy: SparsePolicy, format_: str, folder):
    """The policy's function after a round trip through a file."""
    if format_ in ("c", "int8"):
        return compile_policy(policy, folder, int8=format_ == "int8")
    path = folder / f"policy.{format_}"
    if format_ == "npz":
        npz.save(policy, path)
        return numpy_runtime.load(path)
    if format_ == "onnx":
        onnx.save(policy, path)
        return lambda obs: onnx.run(path, obs)
    return lambda obs: np.asarray(jax.jit(stablehlo.function(policy))(obs))


FORMATS = ["npz", "onnx", "stablehlo", *(pytest.param(x, marks=needs_compiler) for x in ("c",))]


@pytest.mark.parametrize("op", [op.name for op in OPS])
@pytest.mark.parametrize("format_", ["reference", *FORMATS])
def test_each_operation_by_itself(op, format_, tmp_path):
    """Between two linear ones, which are the identity, against JAX."""
    rng = np.random.default_rng(0)
    x = (0.3 * rng.normal(size=(50, 6)) + 0.1).astype(np.float32)
    scale, bias = rng.normal(size=(2, 6)).astype(np.float32)
    weight = rng.normal(size=(6, 6)).astype(np.float32)
    wide = lambda a: jnp.asarray(a)[None]  # noqa: E731
    middle, wanted = {
        "linear": ([Linear.of(weight, weight > 0, bias)], x @ (weight * (weight > 0)).T + bias),
        "relu": ([Relu()], jax.nn.relu(x)),
        "normalize": ([Normalize.make(bias, abs(scale))], (x - bias) * abs(scale)),
        "layer_norm": (
            [LayerNorm.make(scale, bias, 1e-3)],
            jax.nn.standardize(jnp.asarray(x), epsilon=1e-3) * wide(scale) + wide(bias),
        ),
        "save": (
            [Save(), Normalize.make(bias, abs(scale)), AddSaved()],
            x + (x - bias) * abs(scale),
        ),
        "add_saved": ([Save(), Save(), Relu(), AddSaved(), AddSaved()], 2 * x + np.maximum(x, 0)),
    }[op]
    policy = SparsePolicy("test", (identity(6), *middle, identity(6)))
    act = policy.act if format_ == "reference" else act_of(policy, format_, tmp_path)
    np.testing.assert_allclose(act(x), np.tanh(wanted), atol=2e-6)


@pytest.mark.parametrize("format_", [*FORMATS, pytest.param("int8", marks=needs_compiler)])
def test_a_residual_network_in_every_format(format_, tmp_path):
    policy = built(SIMBA)
    small = policy.pruned()
    assert small.links < policy.links and small.sizes[1] == 16  # residual units all stay
    assert max(small.sizes) < 64
    obs = observations(policy)
    wanted = run_steps(SIMBA[0], SIMBA[2], obs)
    assert 0.3 < np.abs(wanted).mean() < 0.9
    assert np.abs(policy.act(obs) - wanted).max() <= TOLERANCE
    act = act_of(small, format_, tmp_path)
    if format_ == "int8":
        wanted = dequantized(small).act(obs)
    error, close = bundle.deviation(small, obs, act(obs), wanted)
    assert close and error <= TOLERANCE
    assert policy.rounding(obs).max() < 1e-4  # so that a wrong file is noticed


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed, tmp_path):
    """Operations in any order, nested residuals, observations that are saved or normalized."""
    program = random_program(seed)
    policy = built(program)
    obs = observations(policy, 100)
    wanted = run_steps(program[0], program[2], obs)
    allowed = TOLERANCE + policy.rounding(obs)[None]
    forms = [policy.act, policy.pruned().act]
    forms += [act_of(policy.pruned(), x, tmp_path) for x in ("npz", "stablehlo")]
    if seed < 6:
        forms.append(act_of(policy, "onnx", tmp_path))
    for act in forms:
        assert (np.abs(act(obs) - wanted) <= allowed).all()
    assert (allowed < 1e-3).all()


@needs_compiler
@pytest.mark.parametrize("int8", [False, True], ids=["float", "int8"])
@pytest.mark.parametrize("seed", [*range(8), "simba"])
def test_c_of_any_program_is_in_bounds_for_every_input(seed, int8, tmp_path):
    policy = built(SIMBA if seed == "simba" else random_program(seed))
    act = compile_policy(policy, tmp_path, int8=int8)
    exact = dequantized(policy) if int8 else policy
    obs = observations(policy, 200)
    assert (np.abs(act(obs) - exact.act(obs)) <= TOLERANCE + policy.rounding(obs)[None]).all()
    rng = np.random.default_rng(2)
    extreme = rng.choice(LARGE, (300, policy.obs_dim))
    assert (np.abs(exact.act(extreme)) <= 1).all()
    found = act(extreme)
    assert (np.abs(found) <= 1).all()
    wild = rng.choice([*LARGE, np.nan, np.inf, -np.inf], (300, policy.obs_dim)).astype(np.float32)
    assert (np.abs(act(wild)) <= 1).all()
    if seed == "simba":  # where digits of numbers near 1e38 do not decide
        large = np.exp(rng.uniform(0, 87, (300, 1))) * rng.normal(size=(300, 7))
        large = large.astype(np.float32)
        assert (np.abs(act(large) - exact.act(large)).max(axis=1) <= 1e-4).mean() > 0.95


@needs_compiler
@pytest.mark.parametrize("int8", [False, True], ids=["float", "int8"])
def test_the_watched_form_computes_the_same(int8, tmp_path, monkeypatch):
    policy = built(SIMBA)
    obs = np.concatenate([observations(policy), 1e6 * observations(policy, 100)])
    (tmp_path / "plain").mkdir()
    plain = compile_policy(policy, tmp_path / "plain", int8=int8)(obs)
    monkeypatch.setattr(c_range, "safe_range", lambda *_, **__: "0.0f")
    np.testing.assert_array_equal(compile_policy(policy, tmp_path, int8=int8)(obs), plain)


@needs_compiler
def test_large_numbers_by_hand(tmp_path):
    """3e38 - -3e38 is no float, nor is the variance of numbers near 1e38."""
    ops = (
        Normalize.make([-3e38] * 4, [1, 1e-38, 1, 1]),
        LayerNorm.make([1, 1, -1, 3e38], [0, 0, 0, 3e38], 1e-6),
        identity(4),
    )
    act = compile_policy(SparsePolicy("test", ops), tmp_path)
    obs = np.array([[0, 3e38, 0, 0]], np.float32)
    # Normalized: 3e38, 6, 3e38, 3e38: mean 2.25e38, standard deviation 1.299e38.
    np.testing.assert_allclose(
        act(obs), np.tanh([[0.57735, -1.73205, -0.57735, np.inf]]), atol=1e-5
    )
    same = np.full((1, 4), np.float32(3.4e38))
    assert (np.abs(act(same)) <= 1).all()


def test_the_c_file_shares_buffers():
    """Of a residual network: the residual, its normalized copy, and the wide layer."""
    text = c.source(built(simba(7, 16, 5, 3))).text
    buffers = re.findall(r"float (h\d)\[(\d+)\];", text)
    assert buffers[: len(buffers) // 2] == [("h0", "7"), ("h1", "16"), ("h2", "16"), ("h3", "64")]
    assert re.findall(r"#include (.*)", text) == ["<stdint.h>"]


def test_sac_uses_the_first_half_of_the_outputs():
    params, masks, steps = simba(7, 16, 1, 6)
    policy = from_actor(params, masks, "sac", steps=steps, heads=2)
    obs = observations(policy, 50)
    assert policy.action_dim == 3
    wanted = run_steps(params, steps, obs)[:, :3]
    assert np.abs(policy.act(obs) - wanted).max() <= TOLERANCE


def test_pruning_keeps_units_that_are_read():
    """Units read by a save, a norm or a sum stay; the two layers inside lose units."""
    policy = built(simba(5, 8, 2, 2, density=0.1)).pruned()
    assert [op.name for op in policy.ops].count("linear") == 6
    assert (policy.sizes[1], policy.sizes[3], policy.sizes[5]) == (8, 8, 8)
    assert policy.sizes[2] < 32 and policy.sizes[4] < 32


ONES = np.ones(3, np.float32)
LINEAR = identity(3)


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ((), "ends with a linear operation"),
        ((LINEAR, Relu()), "ends with a linear operation"),
        ((AddSaved(), LINEAR), r"op 0 \(add_saved\) has nothing to add"),
        ((Save(), LINEAR, AddSaved(), AddSaved(), LINEAR), "op 3 .* has nothing to add"),
        ((Save(), Save(), AddSaved(), LINEAR), r"1 saved value\(s\) are never added"),
        ((Normalize(ONES, ONES), identity(4)), "layer 0 takes 4 inputs, but there are 3"),
        ((Normalize(ONES, -ONES), LINEAR), r"op 0 \(normalize\) has a negative scale"),
        ((Normalize(ONES, ONES * np.inf), LINEAR), "scales of op 0 .* not all finite"),
        ((Normalize(ONES * np.nan, ONES), LINEAR), "means of op 0 .* not all finite"),
        ((Normalize(ONES[None], ONES), LINEAR), r"means of op 0 .*: float32\(1, 3\)"),
        ((Normalize(ONES, ONES[:2]), LINEAR), r"scales of op 0 .*: float32\(2,\)"),
        ((LayerNorm.make(ONES, ONES * np.nan, 1e-6), LINEAR), "biases of op 0 .* not all finite"),
        ((LayerNorm.make(ONES, ONES[:1], 1e-6), LINEAR), "biases of op 0"),
        ((LayerNorm.make(ONES, ONES, 0), LINEAR), r"epsilon of op 0 \(layer_norm\) is 0"),
        ((LayerNorm.make(ONES, ONES, -1), LINEAR), "epsilon of op 0"),
        ((LayerNorm.make(ONES, ONES, np.nan), LINEAR), "epsilon of op 0"),
        ((LayerNorm.make(ONES, ONES, [1e-6]), LINEAR), "epsilon of op 0"),
        (
            (LINEAR, LayerNorm.make(ONES[:2], ONES[:2], 1e-6), LINEAR),
            r"op 1 \(layer_norm\) takes 2 inputs, but there are 3",
        ),
        ((*[Relu()] * 1000, LINEAR), "1,001 operations: at most 1,000"),
    ],
)
def test_programs_that_are_none(ops, message):
    with pytest.raises(ValueError, match=message):
        SparsePolicy("test", ops)


def test_steps_that_are_none():
    params, masks, _ = SIMBA
    with pytest.raises(ValueError, match="no operation 'conv': use one of linear, relu"):
        from_actor(params, masks, "td3", steps=[("conv", 3), ("linear", "output")])
    with pytest.raises(KeyError):
        from_actor(params, masks, "td3", steps=[("linear", "nowhere")])
