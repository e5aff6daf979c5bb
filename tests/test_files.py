"""Files survive crashes and full disks; damage is detected."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from rlx2_jax import files
from rlx2_jax.files import Damaged, Log, Outbox

pytestmark = pytest.mark.fast


def test_json_is_sealed(tmp_path):
    path = tmp_path / "a.json"
    value = {"x": (1, 2.5), "y": np.float32(3), "nan": float("nan"), "text": "ζ"}
    files.write_json(path, value)
    found = files.read_json(path)
    assert found["x"] == [1, 2.5] and found["y"] == 3 and np.isnan(found["nan"])
    files.write_json(path, found)  # a file read and written again is good too
    assert files.read_json(path)["text"] == "ζ"


def test_every_flipped_bit_of_a_sealed_file_is_noticed_or_changes_nothing(tmp_path):
    path = tmp_path / "a.json"
    files.write_json(path, {"steps": 300, "hidden": [256, 256], "name": "a b"})
    value, data = files.read_json(path), path.read_bytes()
    for position in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        path.write_bytes(damaged)
        try:
            assert files.read_json(path) == value
        except Damaged as error:
            assert "a.json" in str(error)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", '{"a": 1}', "\xff", "[" * 100_000])
def test_what_is_no_sealed_object_is_refused_by_name(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(Damaged, match=r"a\.json"):
        files.read_json(path)
    with pytest.raises(Damaged, match="missing"):
        files.read_json(tmp_path / "missing.json")


def test_pipes_devices_and_endless_files_are_refused_at_once(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(files, "_MOST_JSON", 10)
    (tmp_path / "large").write_text('{"a": 12345678}')
    for name in ("pipe", "device", "folder", "large", "none"):
        with pytest.raises(Damaged, match=name):
            files.parse_json(tmp_path / name)
    for name in ("pipe", "device", "folder", "none"):
        assert files.file_digest(tmp_path / name) is None
        assert files.file_digest(tmp_path / name, 10) is None


def test_files_are_not_written_through_links_left_behind(tmp_path):
    (tmp_path / "other").write_text("precious")
    (tmp_path / "a.json.tmp").symlink_to(tmp_path / "other")
    files.write_json(tmp_path / "a.json", {"x": 1})
    assert files.read_json(tmp_path / "a.json") == {"x": 1}
    assert (tmp_path / "other").read_text() == "precious"


def test_an_empty_folder_in_place_of_a_file_gives_way(tmp_path):
    (tmp_path / "a").mkdir()
    files.write_bytes(tmp_path / "a", b"data")
    assert (tmp_path / "a").read_bytes() == b"data"
    (tmp_path / "b" / "c").mkdir(parents=True)
    with pytest.raises(OSError):
        files.write_bytes(tmp_path / "b", b"data")
    assert [x.name for x in tmp_path.iterdir() if x.suffix == ".tmp"] == []


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "a"
    files.write_bytes(path, b"old")

    def blocks():
        yield b"half of the new"
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        files.write_blocks(path, blocks())
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["a"]


class FullDisk:
    """`Path.open` that writes `room` bytes and then fails."""

    def __init__(self, monkeypatch, room: int):
        self.room, opened = room, Path.open
        disk = self

        def open_(path, mode="r", *args, **kwargs):
            file = opened(path, mode, *args, **kwargs)
            return Half(file) if "b" in mode and mode != "rb" else file

        class Half:
            def __init__(self, file):
                self._file = file

            def write(self, data):
                taken = self._file.write(bytes(data)[: disk.room])
                disk.room -= taken
                if taken < len(data):
                    self._file.flush()
                    raise OSError(errno.ENOSPC, "No space left on device")
                return taken

            def __enter__(self):
                return self

            def __exit__(self, *error):
                self._file.close()

            def __getattr__(self, name):
                return getattr(self._file, name)

        monkeypatch.setattr(Path, "open", open_)


def test_a_log_keeps_rows_that_a_full_disk_refuses(tmp_path, monkeypatch):
    said = []
    log = Log(tmp_path / "a.csv", said.append)
    log.append(b"one\n")
    assert log.flush()
    with monkeypatch.context() as patch:
        disk = FullDisk(patch, 2)
        for line in (b"two\n", b"three\n"):
            log.append(line)
            assert not log.flush()
        assert log.missing == 10 and len(said) == 1 and "No space" in said[0]
        disk.room = 100
        log.append(b"four\n")
        assert log.flush()
    assert log.path.read_bytes() == b"one\ntwo\nthree\nfour\n"
    assert "written again and complete" in said[1] and log.size == 19
    assert log.tail == b"one\ntwo\nthree\nfour\n"
    log.kept()
    assert log.tail == b""


def test_an_outbox_tries_again(tmp_path, monkeypatch):
    said = []
    outbox = Outbox(said.append)
    with monkeypatch.context() as patch:
        disk = FullDisk(patch, 0)
        assert outbox.write(tmp_path / "deep" / "a", b"abc") == files.digest(b"abc")
        assert not outbox.flush() and outbox.missing == [tmp_path / "deep" / "a"]
        assert len(said) == 1
        disk.room = 10
        assert outbox.flush()
    assert (tmp_path / "deep" / "a").read_bytes() == b"abc" and not outbox.missing


def test_digest_of_the_beginning_of_a_file(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"abcdef")
    assert files.file_digest(path) == files.digest(b"abcdef")
    assert files.file_digest(path, 3) == files.digest(b"abc")
    assert files.file_digest(path, 7) is None and files.file_digest(tmp_path / "b") is None


def test_a_seal_is_part_of_the_file(tmp_path):
    files.write_json(tmp_path / "a.json", {"b": 1})
    assert set(json.loads((tmp_path / "a.json").read_text())) == {"b", files.SEAL}


def test_errors_in_one_line():
    long = "RESOURCE_EXHAUSTED: Error writing {spec} [os_error_code='28']"
    assert files.first_line(ValueError(long)) == os.strerror(28)
    assert files.first_line(OSError(5, "broken")) == "broken"
    assert files.first_line(KeyError()) == "KeyError"
    assert files.first_line(ValueError("a\nb")) == "ValueError: a"
    assert len(files.first_line(ValueError("word " * 1000))) < 330
