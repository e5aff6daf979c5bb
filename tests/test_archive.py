"""NumPy archives: round trips; damaged and inconsistent files are refused."""

import io
import os
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from rlx2_jax import archive, files
from rlx2_jax.training import weights

pytestmark = pytest.mark.fast

ARRAYS = {
    "a/b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "fortran": np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
    "mask": np.array([True, False]),
    "scalar": np.array(3.0),
    "empty": np.zeros((0, 4)),
}


def networks(size: int = 5) -> dict[str, weights.Weights]:
    rng = np.random.default_rng(0)
    kernel, mask = rng.normal(size=(size, size)).astype(np.float32), rng.random((size, size)) < 0.3
    layer = lambda x: {"Dense_0": {"kernel": x}, "Dense_1": {"kernel": x}}  # noqa: E731
    actor = weights.Weights(layer(kernel), layer(mask))
    return {"actor": actor, "critic": weights.Weights(*({"q1": tree} for tree in actor[:2]))}


def same(first: dict[str, weights.Weights], other: dict[str, weights.Weights]) -> bool:
    flat = [
        {(n, p): x for n, w in nets.items() for p, x in w._asdict().items()}
        for nets in (first, other)
    ]
    return str(flat[0]) == str(flat[1])  # 25 numbers are printed in full


@pytest.mark.parametrize("compressed", [False, True])
def test_what_is_written_comes_back(tmp_path, compressed):
    path = tmp_path / "new" / "file.npz"
    archive.write(path, ARRAYS, compressed=compressed)
    found = archive.read(path)
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype and found[name].flags.writeable
    with np.load(path) as file:
        assert set(file.files) == set(ARRAYS)
    assert [p.name for p in path.parent.iterdir()] == ["file.npz"]


def damaged(whole: bytes, cases: int):
    """`cases` seeded variants: one flipped bit, cut short, or a part replaced."""
    rng = np.random.default_rng(7)
    for case in range(cases):
        a, b = sorted(rng.integers(len(whole), size=2))
        if case % 4 < 2:
            flipped = bytearray(whole)
            flipped[a] ^= 1 << int(rng.integers(8))
            yield bytes(flipped)
        elif case % 4 == 2:
            yield whole[:a]
        else:
            yield whole[:a] + rng.bytes(int(rng.integers(20))) + whole[b:]


def test_damaged_weights_are_the_same_arrays_or_an_error_that_names_the_file(tmp_path):
    path, nets = tmp_path / "lane-0.npz", networks()
    weights.save(path, nets)
    whole, loaded, messages = path.read_bytes(), 0, set()
    for variant in [*damaged(whole, 400), b"", b"PK", whole + b"x"]:
        path.write_bytes(variant)
        try:
            found = weights.load(path)
        except ValueError as error:
            assert str(path) in str(error)
            messages.add(str(error))
            continue
        assert same(found, nets)
        loaded += 1
    assert 0 < loaded < 100 and len(messages) > 10


def test_every_bit_of_an_array_header_may_be_wrong(tmp_path):
    """With the checksum of the damaged bytes, so that they reach the parser."""
    stream = io.BytesIO()
    np.save(stream, np.arange(4.0))
    whole, path = stream.getvalue(), tmp_path / "file.npz"
    rng = np.random.default_rng(1)
    for case in range(300):
        data = bytearray(whole)
        for place in rng.integers(128, size=1 + case % 3):
            data[place] = int(rng.integers(256))
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("a.npy", bytes(data))
        try:
            found = archive.read(path)["a"]
        except ValueError as error:
            assert str(path) in str(error)
            continue
        assert found.nbytes == 32


def written(path: Path, members: dict[str, bytes], **options) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, **options) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


def npy(shape: tuple[int, ...], data: bytes = b"", descr: str = "<f4") -> bytes:
    stream = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue() + data


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.npy": npy((2**60,))}, "an array of shape"),
        ({"a.npy": npy((2**31 - 1, 2**31 - 1))}, "an array of shape"),
        ({"a.npy": npy((-1, -4), bytes(16))}, "an array of shape|plain numbers"),
        ({"a.npy": npy((4,), bytes(15))}, "an array of shape"),
        ({"a.npy": npy((2,), bytes(16), "|O")}, "plain numbers"),
        ({"a.npy": npy((2,), bytes(8), "<U1")}, "plain numbers"),
        ({"a.npy": npy((2,), bytes(16), "<c8")}, "plain numbers"),
        ({"a.txt": b"text"}, "not an array"),
        ({"a": npy((0,))}, "not an array"),
        ({"a.npy": b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 5000}, "not a NumPy archive"),
        ({"a.npy": npy((2**25,), bytes(2**27))}, "at most 1,048,576 are read"),
        ({f"{i}.npy": b"" for i in range(10_001)}, "claims 10,001 arrays"),
    ],
)
def test_files_that_lie_take_no_memory(members, message, tmp_path):
    path = written(tmp_path / "file.npz", members)
    del members
    tracemalloc.start()
    with pytest.raises(ValueError, match=message):
        archive.read(path, most_bytes=2**20)
    assert tracemalloc.get_traced_memory()[1] < 2**25
    tracemalloc.stop()


def test_a_member_that_claims_to_be_small_is_not_unpacked_further(tmp_path):
    """The directory says 144 bytes, the compressed data hold 64 MB."""
    path = written(tmp_path / "file.npz", {"a.npy": npy((4,), bytes(2**26))})
    with zipfile.ZipFile(path) as file:
        (info,) = file.infolist()
    size = (144).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(info.file_size.to_bytes(4, "little"), size))
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"file\.npz"):
        archive.read(path)
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        archive.read(tmp_path / "none.npz")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ValueError, match="not a regular file"):
            archive.read(path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "empty"),
        ({"actor": np.zeros(3, np.float32)}, "not enough values"),
        ({"actor/weights": np.zeros(3, np.float32)}, "index"),
        ({"actor/other/Dense_0": np.zeros(3, np.float32)}, "other"),
        ({"actor/weights/x": np.zeros(3)}, "float64"),
        ({"actor/weights/x": np.zeros(3, np.float32)}, "mask"),
        (
            {"actor/weights/x": np.zeros(3, np.float32), "actor/mask/x": np.zeros(4, bool)},
            "differ in shape",
        ),
        (
            {"a/mask/x": np.zeros(3, bool), "a/mask/x/y": np.zeros(3, bool)},
            "",
        ),
    ],
)
def test_other_archives_are_no_weights(arrays, message, tmp_path):
    archive.write(tmp_path / "file.npz", arrays)
    with pytest.raises(ValueError, match=rf"file\.npz is not a file of network weights.*{message}"):
        weights.load(tmp_path / "file.npz")


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file.npz"
    archive.write(path, {"a": np.zeros(3)})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        archive.write(path, {"a": np.ones(3)})
    np.testing.assert_array_equal(archive.read(path)["a"], np.zeros(3))
    assert [p.name for p in tmp_path.iterdir()] == ["file.npz"]
