"""Parse Kafka's record batches: which of them are committed, and their decompressed content. No I/O.

The format is Kafka's "record batch", version 2. `native_records` parses the records in a batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

# base offset, length, leader epoch, magic (version), CRC, attributes, last offset delta, first and last timestamp,
# producer id, producer epoch, base sequence, number of records
_HEAD: Final = struct.Struct(">qiibIhiqqqhii")
_BEFORE_LENGTH: Final = 12
_VERSION: Final = 2
_CODEC: Final = 0b111
_TRANSACTIONAL: Final = 0b1_0000
_CONTROL: Final = 0b10_0000
_CODECS: Final = {1: "gzip", 3: "lz4", 4: "zstd"}
_ABORT: Final = 0


class UnreadableError(Exception):
    """The bytes are not a valid record batch, or use a compression codec that this module does not support."""


class AbortedTransactions(NamedTuple):
    """An aborted transaction: the producer's id, and the first offset. It ends at the producer's abort marker."""

    producer: int
    first: int


class RecordBatch(NamedTuple):
    """One record batch.

    `base`: its first offset. `end`: its last offset + 1. `records`: the number of records, 0 for an aborted or control
    batch. `data`: the records as bytes, decompressed, for `native_records`.
    """

    base: int
    end: int
    records: int
    data: bytes


def committed(data: bytes, aborted: Sequence[AbortedTransactions]) -> Iterator[RecordBatch]:
    """Yield the batches of a broker's response to a `read_committed` fetch.

    Aborted and control batches are yielded without records, so that the caller can advance its offset. The broker may
    truncate the last batch of a response; this function ignores an incomplete one.
    """
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
    """Return the type of a control batch: 0 is abort, 1 is commit.

    The batch has one record. Its key is a version and the type, both of 2 bytes.
    """
    try:
        at = _behind_varint(body, 0) + 1
        for _ in range(3):  # timestamp delta, offset delta, key length
            at = _behind_varint(body, at)
        return int.from_bytes(body[at + 2 : at + 4], "big")
    except IndexError as error:
        raise UnreadableError("a truncated transaction marker") from error


def _behind_varint(data: bytes, at: int) -> int:
    while data[at] > 127:
        at += 1
    return at + 1
