"""Exported policies: every format computes the JAX actor's actions."""

import dataclasses
import re
import sys

import jax
import numpy as np
import pytest
from policies import (
    CASES,
    LARGE,
    TOLERANCE,
    Case,
    actor,
    compile_policy,
    expected,
    needs_compiler,
    observations,
    policy_of,
)

from rlx2_jax.export import (
    Linear,
    SparsePolicy,
    c,
    c_range,
    compiled,
    from_actor,
    manifest,
    mlp,
    npz,
    numpy_runtime,
    onnx,
    stablehlo,
)
from rlx2_jax.export.quantize import dequantized, quantize

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@pytest.mark.fast
@each_case
def test_the_reference_and_its_pruned_form_are_the_actor(case):
    policy = policy_of(case)
    pruned = policy.pruned()
    obs = observations(policy)
    wanted = expected(case, obs)
    assert np.abs(policy.act(obs) - wanted).max() <= TOLERANCE
    assert np.abs(pruned.act(obs) - wanted).max() <= TOLERANCE
    assert pruned.links <= policy.links and pruned.obs_dim == policy.obs_dim
    for layer in pruned.layers[:-1]:
        assert (np.diff(layer.lengths) >= 0).all()  # hidden units in the order of their links
    again = pruned.pruned()
    assert again.sizes == pruned.sizes and again.links == pruned.links


@pytest.mark.fast
def test_pruning_by_hand():
    """Unit 0 is the constant relu(0.5), unit 1 works, unit 2 has no outputs, unit 3 is always
    off."""
    first = np.array([[0, 0], [1, 2], [3, 0], [0, 0]], np.float32)
    last = np.array([[4, 5, 0, 6]], np.float32)
    policy = SparsePolicy(
        "td3",
        mlp(
            [
                Linear.of(first, first != 0, np.array([0.5, 0.25, 0, -1])),
                Linear.of(last, last != 0, np.array([1.0])),
            ]
        ),
    ).pruned()
    assert policy.sizes == (2, 1, 1)
    np.testing.assert_array_equal(policy.layers[0].dense(), [[1, 2]])
    np.testing.assert_array_equal(policy.layers[0].bias, [0.25])
    np.testing.assert_array_equal(policy.layers[1].dense(), [[5]])
    np.testing.assert_array_equal(policy.layers[1].bias, [3.0])  # 1 + 4 * 0.5


@pytest.mark.fast
def test_what_lies_off_the_mask_is_ignored():
    """Tiny's masks cover biases too."""
    params, masks = actor(Case((3, 4, 2), 0.5))
    block = {"kernel": masks["Dense_0"]["kernel"], "bias": np.arange(4) < 2}
    junk = {k: np.where(block[k], v, 9) for k, v in params["Dense_0"].items()}
    policy = from_actor({**params, "Dense_0": junk}, {**masks, "Dense_0": block}, "td3")
    np.testing.assert_array_equal(policy.layers[0].dense().T, params["Dense_0"]["kernel"])
    np.testing.assert_array_equal(policy.layers[0].bias[2:], 0)


@pytest.mark.fast
def test_a_policy_of_nonsense_is_refused():
    params, masks = actor(Case((3, 4, 2), 0.5))
    for kind in ("", "a */ b", "é", "x" * 41):
        with pytest.raises(ValueError, match="kind is"):
            from_actor(params, masks, kind)
    with pytest.raises(ValueError, match="2 outputs per action has 3 outputs"):
        from_actor(*actor(Case((3, 4, 3), 0.5)), "sac", heads=2)
    bad = {**params, "Dense_1": {**params["Dense_1"], "bias": np.array([0, np.nan], np.float32)}}
    with pytest.raises(ValueError, match="biases of layer 1 are not all finite"):
        from_actor(bad, masks, "td3")
    with pytest.raises(ValueError, match="layer 1 takes 5 inputs, but there are 4"):
        good = policy_of(Case((3, 4, 2), 0.5))
        other = policy_of(Case((3, 5, 2), 0.5))
        SparsePolicy("td3", mlp((good.layers[0], other.layers[1])))
    with pytest.raises(ValueError, match="low bound is above"):
        from_actor(params, masks, "td3", low=[1, 1], high=[0, 2])
    with pytest.raises(ValueError, match=r"must be \[..., 3\]"):
        policy_of(Case((3, 4, 2), 0.5)).act(np.zeros(4))


@needs_compiler
@each_case
def test_c(case, tmp_path):
    policy = policy_of(case)
    obs = observations(policy)
    for i, form in enumerate((policy, policy.pruned())):
        (tmp_path / f"{i}").mkdir()
        act = compile_policy(form, tmp_path / f"{i}")  # one library of a name per folder
        assert np.abs(act(obs) - expected(case, obs)).max() <= TOLERANCE


@needs_compiler
@pytest.mark.parametrize(("inputs", "index"), [(256, 8), (257, 16), (65_536, 16), (65_537, 32)])
def test_indices_have_the_smallest_type_that_fits(inputs, index, tmp_path):
    weight = np.zeros((1, inputs), np.float32)
    weight[0, [0, inputs - 1]] = 0.5, 0.25
    policy = SparsePolicy("td3", (Linear.of(weight, weight != 0, np.zeros(1)),))
    assert f"uint{index}_t policy_cols0[2]" in c.source(policy).text
    obs = np.ones((1, inputs), np.float32)
    assert compile_policy(policy, tmp_path)(obs)[0, 0] == pytest.approx(np.tanh(0.75))
    npz.save(policy, tmp_path / "policy.npz")
    assert npz.load(tmp_path / "policy.npz").act(obs)[0, 0] == pytest.approx(np.tanh(0.75))


@needs_compiler
@pytest.mark.parametrize("case", ["hopper", "hopper-sac", "depth-1", "depth-4", "no-links"])
def test_int8_error_is_bounded_by_its_roundings(case, tmp_path):
    policy = policy_of(CASES[case]).pruned()
    obs = observations(policy)
    act = compile_policy(policy, tmp_path, int8=True)(obs)
    rounded = dequantized(policy)
    assert np.abs(act - rounded.act(obs)).max() <= TOLERANCE
    x, error = np.abs(obs.astype(float)), np.zeros_like(obs, dtype=float)
    y = obs.astype(float)
    for i, (exact, own) in enumerate(zip(policy.layers, rounded.layers)):
        gap = np.abs(exact.dense() - own.dense())
        per_row = np.abs(exact.dense()).max(axis=1, initial=0)[:, None] / 254
        assert (gap <= per_row * (1 + 1e-4)).all()
        error = error @ np.abs(own.dense()).T + x @ gap.T  # |Δy| <= |W'| |Δx| + |ΔW| |x|
        y = y @ exact.dense().T + exact.bias
        y = np.maximum(y, 0) if i + 1 < len(policy.layers) else y
        x = np.abs(y)
    assert (np.abs(act - np.tanh(y)) <= error + TOLERANCE).all()
    for layer, (values, scales) in zip(policy.layers, quantize(policy)):
        assert values.dtype == np.int8 and scales.shape == (layer.units,)


@pytest.mark.fast
@needs_compiler
def test_tanh_of_the_c_file_to_1e_6(tmp_path):
    weight = np.ones((1, 1), np.float32)
    identity = SparsePolicy("td3", (Linear.of(weight, weight != 0, np.zeros(1)),))
    x = np.concatenate([np.linspace(-12, 12, 20_001), np.geomspace(1e-30, 1e30, 2000)])
    x = np.concatenate([x, [np.inf, -np.inf]]).astype(np.float32)[:, None]
    assert np.abs(compile_policy(identity, tmp_path)(x) - np.tanh(x.astype(float))).max() <= 1e-6


@pytest.mark.fast
def test_the_c_file_needs_nothing_and_is_small():
    policy = policy_of(CASES["hopper"], low=[-1, -2, 0], high=[1, 2, 3])
    made, small = c.source(policy), c.source(policy, int8=True)
    assert re.findall(r"#include (.*)", made.text) == ["<stdint.h>"]
    assert not re.search(
        r"static (?!const|float|int |void )", made.text
    )  # functions and constants only
    assert "uint16_t" not in made.text
    assert small.data_bytes < made.data_bytes < policy.dense_bytes / 20
    assert f"Constant data: {made.data_bytes} bytes" in made.text
    assert max(map(len, made.text.splitlines())) <= 100
    with pytest.raises(ValueError, match="C identifier"):
        c.source(policy, "my-policy")


@needs_compiler
def test_actions_scaled_to_the_bounds_in_c(tmp_path):
    import ctypes

    policy = policy_of(CASES["hopper"], low=[-1, -2, 0], high=[1, 2, 3])
    compile_policy(policy, tmp_path)
    scale = ctypes.CDLL(str(tmp_path / "policy0.so")).policy_scale
    action, scaled = np.array([-1, 0.5, 1], np.float32), np.zeros(3, np.float32)
    pointer = lambda x: ctypes.c_void_p(x.ctypes.data)  # noqa: E731
    scale(pointer(action), pointer(scaled))
    np.testing.assert_array_equal(scaled, [-1, 1, 3])
    np.testing.assert_array_equal(policy.scale(action), scaled)
    with pytest.raises(ValueError, match="has no action bounds"):
        dataclasses.replace(policy, low=None, high=None).scale(action)


def test_the_compilers_complaints_are_shown(tmp_path):
    (tmp_path / "bad.c").write_text("int f(void) { int unused; }\n")
    with pytest.raises(RuntimeError, match="unused"):
        compiled.build([tmp_path / "bad.c"], tmp_path / "bad.so")


@each_case
def test_numpy(case, tmp_path):
    policy = policy_of(case).pruned()
    obs = observations(policy)
    npz.save(policy, tmp_path / "policy.npz")
    act = numpy_runtime.load(tmp_path / "policy.npz")
    assert np.abs(act(obs) - expected(case, obs)).max() <= TOLERANCE
    assert act(obs[0]).shape == (policy.action_dim,)


@each_case
def test_onnx(case, tmp_path):
    proto, path = pytest.importorskip("onnx"), tmp_path / "policy.onnx"
    pytest.importorskip("onnxruntime")
    policy = policy_of(case).pruned()
    obs = observations(policy)
    onnx.save(policy, path)
    loaded = proto.load(path)
    proto.checker.check_model(loaded, full_check=True)
    assert [x.version for x in loaded.opset_import] == [onnx.OPSET]
    assert np.abs(onnx.run(path, obs) - expected(case, obs)).max() <= TOLERANCE
    assert onnx.run(path, obs[:1]).shape == (1, policy.action_dim)


@pytest.mark.fast
def test_missing_packages_are_named(monkeypatch):
    for package in ("onnx", "onnxruntime"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(ImportError, match=rf"{package}: pip install 'rlx2_jax\[export\]'"):
                onnx.check_installed()


@pytest.mark.parametrize("case", ["hopper", "hopper-sac", "depth-1", "one-wide", "no-links"])
def test_stablehlo(case, tmp_path):
    policy, path = policy_of(CASES[case]).pruned(), tmp_path / "policy.stablehlo"
    obs = observations(policy)
    stablehlo.save(policy, path)
    manifest.write(tmp_path, {path.name: {}}, {})
    act = stablehlo.load(path)
    assert np.abs(act(obs) - expected(CASES[case], obs)).max() <= TOLERANCE
    plain = jax.export.deserialize(bytearray(path.read_bytes()))
    assert plain.call(obs[:3]).shape == (3, policy.action_dim)  # any batch
    assert plain.platforms == stablehlo.PLATFORMS


def large_observations(policy: SparsePolicy, count: int = 500) -> np.ndarray:
    """Finite, of every sign and size, so that sums overflow and cancel."""
    return np.random.default_rng(2).choice(LARGE, (count, policy.obs_dim))


@needs_compiler
@pytest.mark.parametrize("int8", [False, True], ids=["float", "int8"])
@each_case
def test_every_finite_observation_gives_an_action_in_bounds(case, int8, tmp_path):
    policy = policy_of(case)
    obs = large_observations(policy)
    found = compile_policy(policy, tmp_path, int8=int8)(obs)
    assert (np.abs(found) <= 1).all()  # and so is a number
    wanted = (dequantized(policy) if int8 else policy).act(obs)
    npz.save(policy, tmp_path / "policy.npz")
    own = numpy_runtime.load(tmp_path / "policy.npz")(obs)
    assert (np.abs(wanted) <= 1).all() and (np.abs(own) <= 1).all()
    np.testing.assert_allclose(own, policy.act(obs), atol=1e-6)
    # Where terms of 1e38 cancel, digits of float32 decide: nearly all observations agree.
    assert (np.abs(found - wanted).max(axis=1) <= TOLERANCE).mean() >= 0.98


@needs_compiler
@pytest.mark.parametrize("int8", [False, True], ids=["float", "int8"])
def test_one_large_observation_by_hand(int8, tmp_path):
    """2 x 3e38 is above the largest float, and so is 127 x 3e38, which int8 sums before scaling."""
    weights = (
        np.array([[2, 0, -2]], np.float32),
        np.array([[1e-19]], np.float32),
        np.array([[1e-19]], np.float32),
    )
    layers = [Linear.of(w, w != 0, np.zeros(1)) for w in weights]
    act = compile_policy(SparsePolicy("td3", mlp(layers)), tmp_path, int8=int8)
    obs = np.array([[3e38, 0, 2.9e38], [3e38, 0, 0], [-3e38, 0, 0], [1e38, 0, 0]], np.float32)
    # The first sum: 2e37, saturated at 3.4e38, relu(-6e38), 2e38.
    wanted = np.tanh([[0.2], [3.4028235], [0.0], [2.0]])
    np.testing.assert_allclose(act(obs), wanted, rtol=2e-6, atol=1e-6)


@needs_compiler
@pytest.mark.parametrize("int8", [False, True], ids=["float", "int8"])
def test_c_actions_are_in_bounds_for_any_observation(int8, tmp_path):
    policy = policy_of(CASES["depth-4"])
    act = compile_policy(policy, tmp_path, int8=int8)
    for value in (np.nan, np.inf, -np.inf):
        obs = observations(policy, 200)
        obs[:, 2] = value
        obs[::2, 4] = np.inf
        assert (np.abs(act(obs)) <= 1).all()


@needs_compiler
@pytest.mark.parametrize("int8", [False, True], ids=["float", "int8"])
def test_ordinary_observations_take_the_plain_sums(int8, tmp_path, monkeypatch):
    """Up to the size of observations from which on sums are watched, and with watched ones."""
    policy = policy_of(CASES["hopper"])
    obs = np.concatenate([observations(policy), 1e6 * observations(policy, 100)])
    (tmp_path / "plain").mkdir()
    plain = compile_policy(policy, tmp_path / "plain", int8=int8)(obs)
    monkeypatch.setattr(c_range, "safe_range", lambda *_, **__: "0.0f")
    watched = compile_policy(policy, tmp_path, int8=int8)(obs)
    np.testing.assert_array_equal(plain, watched)


@pytest.mark.fast
def test_scaling_to_the_widest_bounds():
    low, high = np.array([-3.4e38, 3e38], np.float32), np.array([3.4e38, 3.2e38], np.float32)
    policy = policy_of(CASES["dense"], low=low, high=high)
    np.testing.assert_allclose(
        policy.scale(np.array([1, -1], np.float32)), [3.4e38, 3e38], rtol=1e-6
    )
    assert not re.search(r"\binff?,", c.source(policy).text)
