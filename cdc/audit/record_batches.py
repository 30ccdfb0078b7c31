"""Kafka's record batches as they lie in a topic: which are committed, and what is in them. Bytes in, no I/O.

The format is Kafka's "record batch", version 2. Records themselves are read by `native_records`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

# base offset, length, leader epoch, version, checksum, attributes, last offset's delta, two times, producer id, its
# epoch, its number, records
_HEAD: Final = struct.Struct(">qiibIhiqqqhii")
_BEFORE_LENGTH: Final = 12
_VERSION: Final = 2
_CODEC: Final = 0b111
_TRANSACTIONAL: Final = 0b1_0000
_CONTROL: Final = 0b10_0000
_CODECS: Final = {1: "gzip", 3: "lz4", 4: "zstd"}
_ABORT: Final = 0


class UnreadableError(Exception):
    """It is not what it should be, or is packed in a way that is not known here."""


class AbortedTransactions(NamedTuple):
    """A transaction of this producer, from this offset up to its marker."""

    producer: int
    first: int


class RecordBatch(NamedTuple):
    """`end`: behind its last offset. `records`: 0 where nobody may see them. `data`: as `native_records` reads it."""

    base: int
    end: int
    records: int
    data: bytes


def committed(data: bytes, aborted: Sequence[AbortedTransactions]) -> Iterator[RecordBatch]:
    """The whole batches of a broker's answer to a `read_committed` fetch; the last one may be cut off."""
    waiting = sorted(aborted, key=lambda each: each.first)
    dropped: set[int] = set()
    at = 0
    while at + _HEAD.size <= len(data):
        base, length, _, version, _, attributes, last, _, _, producer, _, _, records = _HEAD.unpack_from(data, at)
        end = at + _BEFORE_LENGTH + length
        if version != _VERSION or end <= at:
            raise UnreadableError(f"record batches of version {version}")
        if end > len(data):
            return
        body = data[at + _HEAD.size : end]
        while waiting and waiting[0].first <= base + last:
            dropped.add(waiting.pop(0).producer)
        seen = True
        if attributes & _CONTROL:
            seen = False
            if _control_type(body) == _ABORT:
                dropped.discard(producer)
        elif attributes & _TRANSACTIONAL and producer in dropped:
            seen = False
        if seen:
            yield RecordBatch(base, base + last + 1, records, _unpacked(body, attributes & _CODEC))
        else:
            yield RecordBatch(base, base + last + 1, 0, b"")
        at = end


def _unpacked(body: bytes, codec: int) -> bytes:
    if not codec:
        return body
    if codec not in _CODECS:
        raise UnreadableError(f"compression {codec}")
    try:
        unpacked: bytes = pa.CompressedInputStream(pa.BufferReader(body), _CODECS[codec]).read()
    except (pa.ArrowException, OSError) as error:
        raise UnreadableError(f"compression {codec}") from error
    return unpacked


def _control_type(body: bytes) -> int:
    """Of the one record in it: its key is two numbers of two bytes, of which the second says it."""
    try:
        at = _behind_varint(body, 0) + 1
        for _ in range(3):  # time, offset, length of the key
            at = _behind_varint(body, at)
        return int.from_bytes(body[at + 2 : at + 4], "big")
    except IndexError as error:
        raise UnreadableError("a marker that ends early") from error


def _behind_varint(data: bytes, at: int) -> int:
    while data[at] > 127:
        at += 1
    return at + 1
