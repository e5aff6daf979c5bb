"""Reads the rows of an offline Weights & Biases run.

A `.wandb` file is a header of seven bytes and a log in blocks of 32 KiB. Each fragment has a header
(checksum, length, kind); a record is one whole fragment, or a first, some middle and a last one.
Records are protocol buffers.
"""

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK = 32 * 1024
_HEADER = struct.Struct("<IHB")
_START = 7  # bytes before the first fragment
_WHOLE, _FIRST, _LAST = 1, 2, 4


def records(data: bytes) -> Iterator[bytes]:
    """Complete records, up to the first truncated or damaged one (after a kill)."""
    at, parts = _START, b""
    while at + _HEADER.size <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER.size:  # padding
            at += left
            continue
        checksum, length, kind = _HEADER.unpack_from(data, at)
        begin = at + _HEADER.size
        body = data[begin : begin + length]
        if len(body) < length or zlib.crc32(body, zlib.crc32(bytes([kind]))) != checksum:
            return
        parts = body if kind in (_WHOLE, _FIRST) else parts + body
        if kind in (_WHOLE, _LAST):
            yield parts
        at = begin + length


def history(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The step and the values of every row, without W&B's fields (`_step`, `_runtime`, ...)."""
    from wandb.proto import wandb_internal_pb2  # pyright: ignore[reportMissingImports]

    messages: Any = wandb_internal_pb2

    for data in records(path.read_bytes()):
        record = messages.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            items = {
                "/".join(x.nested_key) or x.key: json.loads(x.value_json)
                for x in record.history.item
            }
            yield int(items["_step"]), {k: v for k, v in items.items() if not k.startswith("_")}
