"""TensorBoard event files, scalars only, without a TensorFlow dependency.

A file is a sequence of records `length, crc(length), data, crc(data)`; data is an `Event`
protocol buffer with wall_time (1, double), step (2, varint), file_version (3, string) or summary
(5, message) of values with tag (1, string) and simple_value (2, float).
"""

import struct
import time

import numpy as np

from rlx2_jax.files import Log


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def _masked_crc(data: bytes) -> bytes:
    """CRC-32C, masked as the format requires."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _message(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _float(value: float) -> bytes:
    with np.errstate(over="ignore"):  # values beyond float32 become infinite
        return np.float32(value).tobytes()


def record(data: bytes) -> bytes:
    """One record of an event file."""
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


class Events:
    """Appends scalars to one event file; each append is one whole record."""

    def __init__(self, log: Log):
        self._log = log
        if not log.size:
            self._write(_message(3, b"brain.Event:2"))

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Appends one event with all `values` at `step`."""
        summary = b"".join(
            _message(1, _message(1, tag.encode()) + b"\x15" + _float(value))
            for tag, value in values.items()
        )
        self._write(b"\x10" + _varint(step) + _message(5, summary))

    def _write(self, body: bytes) -> None:
        self._log.append(record(b"\x09" + struct.pack("<d", time.time()) + body))
