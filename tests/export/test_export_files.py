"""Policy files: round trips; damaged files are refused."""

import dataclasses
import io
import tracemalloc
import zipfile
from typing import Any

import numpy as np
import pytest
from paths import GOLDEN
from policies import CASES, Case, policy_of, random_program, simba

from rlx2_jax.export import (
    PolicyFileError,
    SparsePolicy,
    from_actor,
    manifest,
    npz,
    numpy_runtime,
    stablehlo,
)

pytestmark = pytest.mark.fast
SMALL = Case((3, 5, 2), 0.5)


def same(a: SparsePolicy, b: SparsePolicy) -> bool:
    bounds = [(a.low, b.low), (a.high, b.high)]
    return (
        (a.kind, a.sizes) == (b.kind, b.sizes)
        and [type(op) for op in a.ops] == [type(op) for op in b.ops]
        and all(
            np.array_equal(getattr(x, field.name), getattr(y, field.name))
            for x, y in zip(a.ops, b.ops)
            for field in dataclasses.fields(x)  # pyright: ignore[reportArgumentType]
        )
        and all(
            np.array_equal(*(np.array(v, float) for v in pair), equal_nan=True) for pair in bounds
        )
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_round_trip(case, tmp_path):
    policy = policy_of(case)
    npz.save(policy, tmp_path / "policy.npz")
    assert same(npz.load(tmp_path / "policy.npz"), policy)


def test_a_file_of_version_1_is_read():
    """A file in the format before programs, with actions recorded at that time."""
    path = GOLDEN / "policy_v1.npz"
    policy, obs = npz.load(path), np.linspace(-2, 2, 12).reshape(3, 4)
    assert (policy.kind, policy.sizes, policy.links) == ("sac", (4, 8, 6, 2), 52)
    recorded = [[0.7757506, 0.3739988], [0.38679656, 0.231063], [0.52202356, -0.1189614]]
    for act in (policy.act, numpy_runtime.load(path)):
        np.testing.assert_allclose(act(obs), recorded, atol=1e-6)
    assert policy.low is not None and policy.low.tolist() == [-1, -2]


def test_programs_round_trip(tmp_path):
    for seed in range(10):
        params, masks, steps = random_program(seed)
        policy = from_actor(params, masks, "my-agent.2", steps=steps)
        npz.save(policy, tmp_path / "policy.npz")
        assert same(npz.load(tmp_path / "policy.npz"), policy)


def test_damaged_programs_are_refused(tmp_path):
    """Arrays changed at random, with the right checksum: refused by name, or a different policy."""
    rng, path = np.random.default_rng(0), tmp_path / "policy.npz"
    params, masks, steps = simba(3, 4, 2, 2)
    policy = from_actor(params, masks, "td3", steps=steps)
    whole, loaded = arrays_of(policy, path), 0
    for _ in range(300):
        name = rng.choice(["ops", "ops", "sizes", "norms", "lengths", "kind"])
        changed = whole[name].copy()
        for place in rng.integers(changed.size, size=rng.integers(1, 3)):
            if changed.dtype == np.float32:
                changed[place] = rng.choice([np.nan, np.inf, -1, 0, 3e38])
            else:
                changed[place] = rng.integers(0, 9)
        cut = int(rng.integers(changed.size + 1)) if rng.random() < 0.3 else changed.size
        write(path, {**whole, name: changed[:cut]})
        try:
            found = npz.load(path)
        except PolicyFileError:
            continue
        assert found.act(np.zeros(found.obs_dim)).shape == (found.action_dim,)
        loaded += 1
    assert loaded < 150


def test_bounds_and_sizes(tmp_path):
    policy = policy_of(CASES["hopper"], low=[-1, -2, -3], high=[1, 2, 3])
    npz.save(policy, tmp_path / "policy.npz")
    assert same(npz.load(tmp_path / "policy.npz"), policy)
    assert (tmp_path / "policy.npz").stat().st_size < policy.dense_bytes / 20


def test_the_runtime_needs_numpy_alone_and_is_short():
    text = npz.RUNTIME.read_text()
    imports = [x for x in text.splitlines() if x.startswith(("import", "from"))]
    assert imports == ["import hashlib", "import numpy as np"]
    code = text.split('"""')[2].splitlines()
    assert sum(bool(line.strip()) for line in code) <= 60


def test_every_truncation_and_flipped_bit_is_found(tmp_path):
    """Irrelevant bits (dates, for instance) may change; then the policy is the same."""
    policy, path = policy_of(SMALL, low=[-1, -1], high=[1, 2]), tmp_path / "policy.npz"
    npz.save(policy, path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    variants = [whole[:n] for n in range(0, len(whole), 7)]
    for place in range(0, len(whole), 3):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(rng.integers(8))
        variants.append(bytes(flipped))
    for _ in range(100):  # several bytes at once, cut out or put in
        a, b = sorted(rng.integers(len(whole), size=2))
        variants.append(whole[:a] + rng.bytes(int(rng.integers(20))) + whole[b:])
    loaded = 0
    for variant in variants:
        path.write_bytes(variant)
        try:
            found = npz.load(path)
        except PolicyFileError:
            continue
        assert same(found, policy)
        loaded += 1
    assert loaded < len(variants) / 4


def arrays_of(policy: SparsePolicy, path) -> dict[str, Any]:
    npz.save(policy, path)
    with np.load(path) as file:
        return {k: v for k, v in file.items() if k != "digest"}


def write(path, arrays) -> None:
    digest = np.frombuffer(npz._digest(arrays), np.uint8)
    np.savez(path, **arrays, digest=digest)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("cols", lambda x: x + 3, "columns of layer 0"),
        ("cols", lambda x: x[:-1], "cols and values must have one entry"),
        ("cols", lambda x: x[::-1].copy(), "ascending|within"),
        ("cols", lambda x: x.astype(np.int64) - 1, "cols must be unsigned"),
        ("cols", lambda x: x.astype(np.uint64) + 2**40, "cols must be unsigned and below"),
        ("values", lambda x: x * np.float32("inf"), "values of layer 0 are not all finite"),
        ("values", lambda x: x.astype(np.float64), "values of layer 0: float64"),
        ("bias", lambda x: x * np.float32("nan"), "biases of layer 0 are not all finite"),
        ("bias", lambda x: x[None], "lengths and bias must have one entry"),
        ("lengths", lambda x: x + 1, "cols and values must have one entry"),
        ("lengths", lambda x: x.astype(np.uint64) + 2**61, "must have one entry"),
        ("sizes", lambda x: x - x, "sizes must be positive"),
        ("sizes", lambda x: x * 2**20, "must have one entry"),
        ("sizes", lambda x: x[:1], "sizes must be positive"),
        (
            "sizes",
            lambda x: np.array([2**31 - 1, *x[1:]], np.int32),
            "layers up to 2147483647 x 5 have .* at most",
        ),
        ("kind", lambda x: x + 99, "kind is"),
        ("kind", lambda x: x[None], "kind must be uint8"),
        ("ops", lambda x: x + 9, "there is no operation 1[0-9]: they are 0 .. 5"),
        ("ops", lambda x: np.zeros(0, np.uint8), "ops must be uint8"),
        ("ops", lambda x: np.zeros(5000, np.uint8), "ops must be uint8"),
        ("ops", lambda x: x.astype(np.int64), "ops must be uint8"),
        ("ops", lambda x: np.array([0, 5, 0], np.uint8), r"op 1 \(add_saved\) has nothing to add"),
        ("ops", lambda x: np.array([0, 4, 0], np.uint8), "1 saved value.* never added"),
        ("ops", lambda x: np.array([4, 0, 5, 0], np.uint8), "adds 3 saved values to 5"),
        ("ops", lambda x: np.array([0, 0, 1], np.uint8), "ends with a linear"),
        ("ops", lambda x: np.array([0, 0, 0], np.uint8), "sizes must be of the observation"),
        ("ops", lambda x: np.array([0, 3, 0], np.uint8), "norms has 0 entries where 5 should"),
        ("norms", lambda x: np.zeros(3, np.float32), "norms has 3 entries too many"),
        ("norms", lambda x: np.zeros(0), "norms must be float32"),
        ("version", lambda x: x + 1, r"has format \[3\], this version reads 1 and 2"),
        ("version", lambda x: None, "unknown"),
        ("bounds", lambda x: x[:, :1], r"bounds must be \[2, 2\]"),
        ("bounds", lambda x: x[::-1].copy(), "low bound is above"),
        ("extra", lambda x: np.zeros(3), "unknown"),
        ("values", lambda x: None, "missing"),
    ],
)
def test_hostile_arrays_are_refused_by_name(name, change, message, tmp_path):
    """Malicious files with valid checksums."""
    path = tmp_path / "policy.npz"
    arrays = arrays_of(policy_of(SMALL, low=[-1, -1], high=[1, 2]), path)
    changed = change(arrays.get(name))
    arrays = {k: v for k, v in {**arrays, name: changed}.items() if v is not None}
    write(path, arrays)
    with pytest.raises(PolicyFileError, match=message):
        npz.load(path)


class Trap:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("code in a policy file was executed",))


def test_nothing_in_a_file_is_executed(tmp_path):
    path = tmp_path / "policy.npz"
    arrays = arrays_of(policy_of(SMALL), path)
    hostile = {**arrays, "values": np.array([Trap()], object)}
    np.savez(path, allow_pickle=True, **hostile, digest=np.zeros(32, np.uint8))
    with pytest.raises(PolicyFileError, match="not a whole policy file"):
        npz.load(path)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        numpy_runtime.load(path)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "policy.npz"
    with pytest.raises(PolicyFileError, match="cannot be read"):
        npz.load(path)
    with pytest.raises(PolicyFileError, match="cannot be read"):
        npz.load(tmp_path)
    path.write_bytes(b"not a zip file")
    with pytest.raises(PolicyFileError, match="not a whole policy file"):
        npz.load(path)
    arrays = arrays_of(policy_of(SMALL), path)
    np.savez_compressed(path, **arrays, digest=np.zeros(32, np.uint8))
    with pytest.raises(PolicyFileError, match="compressed"):
        npz.load(path)


def test_an_array_larger_than_its_bytes_takes_no_memory(tmp_path):
    path, stream = tmp_path / "policy.npz", io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (2**60,)}
    np.lib.format.write_array_header_1_0(stream, header)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("values.npy", stream.getvalue())
    with pytest.raises(PolicyFileError, match=r"not a whole policy file: 'values.npy' has an"):
        npz.load(path)


def test_the_runtime_refuses_damage(tmp_path):
    path = tmp_path / "policy.npz"
    arrays = arrays_of(policy_of(SMALL), path)
    np.savez(path, **arrays, digest=np.zeros(32, np.uint8))
    with pytest.raises(ValueError, match="is damaged"):
        numpy_runtime.load(path)


def test_the_runtime_takes_no_memory_for_sizes_that_are_not_there(tmp_path):
    path = tmp_path / "policy.npz"
    arrays = arrays_of(policy_of(SMALL), path)
    arrays["sizes"] = np.array([3, 2**31 - 1, 2], np.int32)
    write(path, arrays)
    tracemalloc.start()
    act = numpy_runtime.load(path)
    with pytest.raises((ValueError, IndexError)):
        act(np.zeros(3))
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_files_that_do_not_have_their_checksum_are_refused(tmp_path):
    policy, path = policy_of(CASES["depth-1"]), tmp_path / "policy.stablehlo"
    stablehlo.save(policy, path)
    with pytest.raises(PolicyFileError, match=r"manifest\.json cannot be read"):
        stablehlo.load(path)
    manifest.write(tmp_path, {path.name: {}}, {})
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[: len(whole) // 2], b"", whole[:99] + b"!" + whole[100:]):
        path.write_bytes(damaged)
        with pytest.raises(PolicyFileError, match="checksum"):
            stablehlo.load(path)
    path.unlink()
    with pytest.raises(PolicyFileError, match="cannot be read"):
        stablehlo.load(path)
    with pytest.raises(PolicyFileError, match="does not list"):
        stablehlo.load(tmp_path / "other")
    (tmp_path / manifest.NAME).write_text('{"files": {"policy.stablehlo": 3}}')
    with pytest.raises(PolicyFileError, match="damaged"):
        stablehlo.load(path)
