"""The event file's bytes, read back by an independent reader of the format."""

import struct

import pytest

from rlx2_jax.files import Log
from rlx2_jax.training import events

pytestmark = pytest.mark.fast


def test_crc_of_the_standard_check_string():
    (masked,) = struct.unpack("<I", events._masked_crc(b"123456789"))
    rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
    assert (rotated >> 17 | rotated << 15) & 0xFFFFFFFF == 0xE3069283  # CRC-32C's check value


def records(data: bytes) -> list[bytes]:
    found = []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        body = data[12 : 12 + length]
        assert data[8:12] == events._masked_crc(data[:8])
        assert data[12 + length : 16 + length] == events._masked_crc(body)
        found.append(body)
        data = data[16 + length :]
    return found


def fields(message: bytes) -> dict[int, list]:
    """A protocol buffer message as field number -> values."""
    found: dict[int, list] = {}
    while message:
        key, message = message[0], message[1:]
        kind = key & 7
        if kind == 0 or kind == 2:
            value = shift = 0
            while True:
                byte, message = message[0], message[1:]
                value |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
            if kind == 2:
                value, message = message[:value], message[value:]
        else:
            size, form = (8, "<d") if kind == 1 else (4, "<f")
            (value,) = struct.unpack(form, message[:size])
            message = message[size:]
        found.setdefault(key >> 3, []).append(value)
    return found


def test_scalars_survive_a_round_trip_and_a_second_opening(tmp_path):
    path = tmp_path / "events"
    for step in (3, 300_000):
        log = Log(path, print, path.stat().st_size if path.exists() else 0)
        events.Events(log).scalars(step, {"a/return": 1.5, "b": -2.0})
        assert log.flush()
    found = [fields(r) for r in records(path.read_bytes())]
    assert found[0][3] == [b"brain.Event:2"]
    assert [f[2] for f in found[1:]] == [[3], [300_000]]
    values = [fields(v) for v in fields(found[2][5][0])[1]]
    assert [(v[1][0], v[2][0]) for v in values] == [(b"a/return", 1.5), (b"b", -2.0)]


def test_numbers_beyond_float32_become_infinite(tmp_path):
    log = Log(tmp_path / "events", print)
    events.Events(log).scalars(1, {"a": 1e300})
    log.flush()
    message = fields(records(log.path.read_bytes())[1])
    assert fields(fields(message[5][0])[1][0])[2] == [float("inf")]
