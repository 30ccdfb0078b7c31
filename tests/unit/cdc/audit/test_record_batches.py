"""Kafka's record batches are parsed, and the compiled and the Python parser give the same numbers."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from cdc.audit.record_batches import AbortedTransactions, UnreadableError, committed
from cdc.audit.row_content import SEED, Content, python_digests
from spark_jobs.audit import topic_read_task
from spark_jobs.audit.side_tasks import Hashing
from spark_jobs.audit.topic_rows import Columns, RawRecord, TopicRows

_STAMP = b"00000000019d73f8.0000002a"
_TAIL = b',"source":{"version":"0.1.0","seq":42},"op":"u"}'
_PLAIN = b'{"before":null,"after":{"id":7,"v":"x, \\",\\"source\\""}' + _TAIL
_VALUES = [
    _PLAIN,
    None,
    b'{"before":null,"after":null' + _TAIL,
    b'{"before":{"id":7},"after":{"id":7,"v":null}' + _TAIL,
    b'{"before":{"id":7},"after":null' + _TAIL,
    b'{"before":null,"after":{"id":7}}',
    b"not ours",
    b"",
]
_KEYS = [
    b'{"id":7}',
    b'{"id":"7"}',
    b'{"a":1,"b":2}',
    b'{"id":-7}',
    b"7}",
    b"",
    b"\xff",
    b'{"__truncate":0}',
    b'{"":123}',
]
_MARKER: RawRecord = (3, b'{"__truncate":0}', b'{"before":null,"after":null,"source":{},"op":"t"}', _STAMP)
_STAMPS = [_STAMP, None, b"short", b"\xff" * 25]


def _varint(value: int) -> bytes:
    left = (value << 1) ^ (value >> 63)
    made = bytearray()
    while left > 127:
        made.append(left & 127 | 128)
        left >>= 7
    return bytes([*made, left])


def _field(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _record(number: int, record: RawRecord) -> bytes:
    _, key, value, stamp = record
    headers = _varint(0) if stamp is None else _varint(2) + _field(b"v") + _field(stamp) + _field(b"w") + _field(None)
    body = b"\0" + _varint(1234) + _varint(number) + _field(key) + _field(value) + headers
    return _varint(len(body)) + body


def _batch(body: bytes, *, base: int = 0, records: int = 1, attributes: int = 0, producer: int = -1) -> bytes:
    codec = {1: "gzip", 3: "lz4", 4: "zstd"}.get(attributes & 7)
    if codec:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as packed:
            packed.write(body)
        body = sink.getvalue().to_pybytes()
    head = struct.pack(">ibIhiqqqhii", 0, 2, 0, attributes, records - 1, 0, 0, producer, 0, 0, records)
    return struct.pack(">qi", base, len(head) + len(body)) + head + body


def _control(base: int, producer: int, *, aborts: bool) -> bytes:
    key = struct.pack(">hh", 0, 0 if aborts else 1)
    return _batch(_record(0, (0, key, b"\0" * 6, None)), base=base, attributes=0b11_0000, producer=producer)


def test_only_what_is_committed_is_seen() -> None:
    """Aborted transactions and markers are skipped with their offsets, and a partial batch is left for later."""
    data = b"".join(
        [
            _batch(b"a", base=0, attributes=0b1_0000, producer=1),
            _batch(b"b", base=1, attributes=0b1_0000, producer=2),
            _control(2, 1, aborts=True),
            _batch(b"c", base=3, attributes=0b1_0000, producer=1),
            _control(4, 2, aborts=False),
            _control(5, 1, aborts=False),
            _batch(b"d", base=6),
        ]
    )
    found = list(committed(data + _batch(b"e", base=7)[:-1], [AbortedTransactions(1, 0)]))
    assert [(each.base, each.end, each.data) for each in found if each.records] == [
        (1, 2, b"b"),
        (3, 4, b"c"),
        (6, 7, b"d"),
    ]
    assert [each.end for each in found] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("codec", [0, 1, 3, 4])
def test_compressed_batches(codec: int) -> None:
    """Uncompressed, gzip, lz4 and zstd batches are read."""
    body = b"the same " * 1000
    assert [each.data for each in committed(_batch(body, attributes=codec), [])] == [body]


def test_unknown_batches_are_reported() -> None:
    """Another compression, another version or garbage in a frame is reported, not guessed."""
    body = _batch(b"x")
    for data in (_batch(b"x", attributes=2), body[:16] + b"\1" + body[17:], _batch(b"x")[:22] + b"\3" + body[23:]):
        with pytest.raises(UnreadableError):
            list(committed(data, []))


def _rows(columns: Columns) -> set[tuple[int, ...]]:
    names = ("offsets", "ids", "contents", "positions", "seqs", "live")
    return set(zip(*(getattr(columns, name).tolist() for name in names), strict=True))


def _hashing(*, exact: bool, by_id: bool, one_column: bool) -> Hashing:
    return Hashing(Content(exact=exact), by_id, one_column, 1)


@given(
    st.lists(st.tuples(st.sampled_from(_KEYS), st.sampled_from(_VALUES), st.sampled_from(_STAMPS)), max_size=8),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_both_parsers_give_the_same(
    records: Sequence[tuple[bytes, bytes | None, bytes | None]], exact: bool, by_id: bool, one_column: bool
) -> None:
    """Both parsers agree for rows, deletes, tombstones, TRUNCATE markers and foreign records."""
    assert topic_read_task.NativeRecords is not None, "compiled by `pip install --editable .`"
    numbered: list[RawRecord] = [(number, *each) for number, each in enumerate([*records, _MARKER[1:], _MARKER[1:]])]
    hashing = _hashing(exact=exact, by_id=by_id, one_column=one_column)
    plain = TopicRows(hashing)
    plain.take(numbered)
    native = topic_read_task.NativeRecords(exact=exact, by_id=by_id, one_column=one_column, seed=SEED)
    rest = TopicRows(hashing)
    body = b"".join(_record(number, each) for number, each in enumerate(numbered))
    rest.take([(offset - 100, *more) for offset, *more in native.take(body, len(numbered), 100, 0, 1 << 60)])
    compiled = topic_read_task._columns(native)
    compiled = compiled._replace(offsets=compiled.offsets - 100)
    assert _rows(compiled) | _rows(rest.columns()) == _rows(plain.columns())
    assert rest.marker == plain.marker == _STAMP


def test_the_compiled_parser_takes_plain_events() -> None:
    """The compiled parser takes plain events within the requested offsets, and no others."""
    native = topic_read_task.NativeRecords(exact=True, by_id=True, one_column=True, seed=SEED)
    records: list[RawRecord] = [(number, b'{"id":%d}' % number, _PLAIN, _STAMP) for number in range(10)]
    body = b"".join(_record(number, each) for number, each in enumerate(records))
    assert native.take(body, 10, 50, 53, 57) == []
    columns = topic_read_task._columns(native)
    assert columns.offsets.tolist() == [53, 54, 55, 56]
    assert columns.ids.tolist() == [xxhash.xxh64_intdigest(b"%d" % number, SEED) for number in range(3, 7)]
    assert set(columns.contents.tolist()) == {xxhash.xxh64_intdigest(_PLAIN[23 : -len(_TAIL)], SEED)}
    assert (set(columns.positions.tolist()), set(columns.seqs.tolist())) == ({0x19D73F8}, {42})
    assert len(native) == 0


def test_every_truncation_is_noticed() -> None:
    """A batch that ends early or has trailing bytes is refused."""
    body = _record(0, (0, b'{"id":7}', _PLAIN, _STAMP)) + _record(1, (1, b'{"id":7}', None, _STAMP))
    native = topic_read_task.NativeRecords(exact=True, by_id=False, one_column=True, seed=SEED)
    for size in range(len(body)):
        with pytest.raises(ValueError, match=r"record|batch"):
            native.take(body[:size], 2, 0, 0, 10)
    with pytest.raises(ValueError, match="more than its records"):
        native.take(body, 1, 0, 0, 10)


@given(st.lists(st.binary(max_size=200)))
def test_the_hash_is_the_same_compiled(data: list[bytes]) -> None:
    """The compiled xxh64 equals Python's for any length."""
    from cdc.audit.native_records import digests  # noqa: PLC0415 - not where there is no compiler

    assert digests(data, SEED) == python_digests(data, SEED)
