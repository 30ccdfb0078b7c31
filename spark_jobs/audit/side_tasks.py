"""The reading tasks of the audit: each reads a part of one side and yields its rows as packed groups.

This module compares nothing. Each result is `(group, (side, bytes))`. Errors are results as well (`task_errors`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from cdc.audit.row_blocks import OFFSET_BITS, block, by_group
from cdc.audit.row_content import Content, numbers, row_digests
from cdc.audit.topic_records import id_of
from cdc.config import Config
from cdc.errors import TailraceError, TransientError
from cdc.postgres.connection import explain
from cdc.snapshot.chunk_attempt import RateLimiter
from cdc.snapshot.copy_rows import LineEncoder
from cdc.snapshot.records import BlockRange
from cdc.snapshot.source_reader import Readable, SnapshotLostError, at_snapshot, lines, lock
from cdc.snapshot.table_description import DescribedTable
from cdc.stores.contract import StoredRow
from spark_jobs.audit.shapes import expected_row, shaped_column
from spark_jobs.shape.shaped_rows import RowShape
from spark_jobs.tasks.task_errors import packed_error

SOURCE: Final = "source"
TOPIC: Final = "topic"
MARKER: Final = "marker"
FAILURE: Final = "failure"
#: The schema of the frame that `PackTopic` makes.
PACKED: Final = "grp int, side string, data binary"

Record = tuple[int, tuple[str, bytes]]

ROWS_AT_ONCE: Final = 200_000
_SLICE_ROWS: Final = 20_000
_STAMP_BYTES: Final = 25
_NONE: Final = b"0" * 16 + b"." + b"0" * 8
_ID_DIGITS: Final = 100


@dataclass(frozen=True, slots=True)
class Hashing:
    """How ids and contents of rows are hashed.

    `by_id`: rows are matched by the id that stores use for them; otherwise by the record's key, which is faster.
    `one_column`: the key has one column. `groups`: number of groups that rows are divided into.
    """

    content: Content
    by_id: bool
    one_column: bool
    groups: int

    def ids(self, keys: Sequence[bytes]) -> bytes:
        """Return the hashes of the rows' ids, eight bytes each, as `numbers` reads them."""
        return row_digests(map(self._id, keys) if self.by_id else keys)

    def contents(self, rows: Sequence[bytes]) -> bytes:
        """Return the hashes of the rows' contents, eight bytes each, as `numbers` reads them."""
        return row_digests(rows if self.content.exact else map(self.content.canonical, rows))

    def _id(self, key: bytes) -> bytes:
        """Return the id of a key. Most keys are whole numbers, whose digits are the id."""
        digits = key.rpartition(b'":')[2][:-1] if self.one_column else b""
        return digits if digits.isdigit() and len(digits) <= _ID_DIGITS else id_of(key).encode()


def failed_side(records: Iterator[Record]) -> Iterator[Record]:
    """Yield the records; if reading them fails, yield the error as the last record."""
    try:
        yield from records
    except (SnapshotLostError, TailraceError) as error:
        yield _failure(error)
    except psycopg.Error as error:
        yield _failure(TransientError(f"Postgres: {explain(error)}"))


def _failure(error: Exception) -> Record:
    return 0, (FAILURE, packed_error(error))


# -- the source -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReadTask:
    """A task that reads some block ranges of one table at one snapshot.

    It holds secrets, so it must be passed to tasks only.
    """

    config: Config
    snapshot: str
    table: DescribedTable
    pieces: tuple[BlockRange, ...]
    hashing: Hashing
    rows_per_second: float = 0.0

    def __call__(self) -> Iterator[Record]:
        return failed_side(self._records())

    def _records(self) -> Iterator[Record]:
        pace = RateLimiter(self.rows_per_second)
        with at_snapshot(self.config.source.conninfo(), self.snapshot) as connection:
            for piece in self.pieces:
                leaf = next(leaf for leaf in self.table.leaves if leaf.relation.oid == piece.relation)
                encoder = LineEncoder(self.table.table(leaf.relation), b"", b"")
                readable = lock(connection, self.table, leaf, encoder.columns)
                if not isinstance(readable, Readable):
                    raise SnapshotLostError(f"{self.table.shape}: {readable}")
                yield from self._piece(lines(connection, readable, piece, encoder.columns), encoder, pace)

    def _piece(self, blocks: Iterable[list[bytes]], encoder: LineEncoder, pace: RateLimiter) -> Iterator[Record]:
        """Hash the rows a few hundred at a time, so that their encoded form need not be kept."""
        ids, contents = bytearray(), bytearray()
        keys: list[bytes] = []
        for some in blocks:
            encoded = encoder.encode(some)
            own = [key for key, _ in encoded]
            keys += own
            ids += self.hashing.ids(own)
            contents += self.hashing.contents([row for _, row in encoded])
            pace.passed(len(some))
            if len(keys) >= ROWS_AT_ONCE:
                yield from self._packed(ids, contents, keys)
                ids, contents, keys = bytearray(), bytearray(), []
        yield from self._packed(ids, contents, keys)

    def _packed(self, ids: bytearray, contents: bytearray, keys: list[bytes]) -> Iterator[Record]:
        rows = block(ids=numbers(ids), contents=numbers(contents), keys=keys)
        for group, data in by_group(rows, self.hashing.groups):
            yield group, (SOURCE, data)


# -- the topic ------------------------------------------------------------------------------------------------------


class _Envelope(msgspec.Struct, gc=False):
    op: str
    after: msgspec.Raw


_decode_envelope = msgspec.json.Decoder(_Envelope).decode


def after_of(value: bytes | None) -> bytes | None:
    """Return the row of an event, None for a delete. A value that is no event of Tailrace's is itself the row."""
    if value is None:
        return None
    try:
        after = bytes(_decode_envelope(value).after)
    except msgspec.DecodeError:
        return value
    return None if after == b"null" else after


@dataclass(frozen=True, slots=True, kw_only=True)
class PackTopic:
    """Packs the records of a topic for the topic's side and for each store with a shape; for `mapInArrow`.

    It is used if stores have shapes, because Spark evaluates these. Columns: partition, offset, key, value, stamp,
    is_marker. `shapes`: by store, of the stores that get rows in a shape of their own. Sorted by name, they are in the
    order of the columns that `shaped_frame` adds.
    """

    hashing: Hashing
    shapes: Mapping[str, RowShape]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: list[pa.RecordBatch] = []
        count, marker = 0, b""
        for batch in batches:
            marker = max([marker, *_markers(batch)])
            waiting.append(batch)
            count += batch.num_rows
            if count >= ROWS_AT_ONCE:
                yield from self._packed(pa.Table.from_batches(waiting))
                waiting, count = [], 0
        if waiting:
            yield from self._packed(pa.Table.from_batches(waiting))
        if marker:
            yield _frame([(group, MARKER, marker) for group in range(self.hashing.groups)])

    def _packed(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        rows = rows.filter(pc.invert(rows.column("is_marker"))).combine_chunks()
        if not rows.num_rows:
            return
        positions, seqs = stamps(rows.column("stamp").to_pylist())
        places = (rows.column("partition").to_numpy().astype(np.int64) << OFFSET_BITS) | rows.column(
            "offset"
        ).to_numpy()
        keys = rows.column("key").combine_chunks()
        shared = {
            "ids": numbers(self.hashing.ids(keys.to_pylist())),
            "positions": positions,
            "seqs": seqs,
            "places": places,
        }
        for side, contents, live in self._sides(rows):
            packed = by_group(block(contents=contents, live=live, **shared), self.hashing.groups)
            yield _frame([(group, side, data) for group, data in packed])

    def _sides(self, rows: pa.Table) -> Iterator[tuple[str, Any, Any]]:
        after = [after_of(value) for value in rows.column("value").to_pylist()]
        yield TOPIC, *self._digested(after)
        for number, (store, shape) in enumerate(sorted(self.shapes.items())):
            found = rows.column(shaped_column(number)).to_pylist() if shape.evaluated else [None] * len(after)
            shaped = [
                None if row is None else expected_row(shape, row, each) for row, each in zip(after, found, strict=True)
            ]
            yield f"{TOPIC}:{store}", *self._digested(shaped)

    def _digested(self, rows: Sequence[bytes | None]) -> tuple[Any, Any]:
        contents = self.hashing.contents([row or b"" for row in rows])
        return numbers(contents), np.array([row is not None for row in rows], bool)


def stamps(texts: Sequence[bytes | None]) -> tuple[Any, Any]:
    """Return positions and sequence numbers, parsed from the versions' fixed-width texts.

    A header that is no version gives 0: another program wrote that record. Each distinct text is parsed once, because
    the rows of a snapshot chunk or a transaction often share one.
    """
    encoded = pa.array(texts, pa.binary()).dictionary_encode(null_encoding="encode")
    known = [
        text if text is not None and len(text) == _STAMP_BYTES else _NONE for text in encoded.dictionary.to_pylist()
    ]
    digits = _NIBBLES[np.frombuffer(b"".join(known), np.uint8).reshape(-1, _STAMP_BYTES)]
    position = np.zeros(len(known), np.uint64)
    for at in range(16):
        position = (position << np.uint64(4)) | digits[:, at]
    seq = np.zeros(len(known), np.uint64)
    for at in range(17, _STAMP_BYTES):
        seq = (seq << np.uint64(4)) | digits[:, at]
    which = encoded.indices.to_numpy()
    return position[which], seq.astype(np.uint32)[which]


_NIBBLES: Final = np.zeros(256, np.uint64)
for _digit in b"0123456789abcdef":
    _NIBBLES[_digit] = int(chr(_digit), 16)


def _markers(batch: pa.RecordBatch) -> list[bytes]:
    """Return the versions of the TRUNCATE markers in a batch; most batches have none."""
    found = batch.filter(batch.column("is_marker")) if pc.any(batch.column("is_marker")).as_py() else None
    return [] if found is None else [stamp for stamp in found.column("stamp").to_pylist() if stamp is not None]


def _frame(rows: Sequence[tuple[int, str, bytes]]) -> pa.RecordBatch:
    groups, sides, data = zip(*rows, strict=True) if rows else ((), (), ())
    columns = [pa.array(groups, pa.int32()), pa.array(sides, pa.string()), pa.array(data, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=["grp", "side", "data"])


# -- a store --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReadTask:
    """A task that reads a slice of a store's rows of one table. `read` holds the store's secrets."""

    store: str
    read: Callable[[], Iterator[list[StoredRow]]]
    hashing: Hashing

    def __call__(self) -> Iterator[Record]:
        return failed_side(self._records())

    def _records(self) -> Iterator[Record]:
        waiting: list[StoredRow] = []
        for some in self.read():
            waiting += some
            if len(waiting) >= _SLICE_ROWS:
                yield from self._packed(waiting)
                waiting = []
        yield from self._packed(waiting)

    def _packed(self, rows: Sequence[StoredRow]) -> Iterator[Record]:
        ids = [row.id.encode() for row in rows]
        versions = [row.version for row in rows]
        packed = block(
            ids=numbers(row_digests(ids)),
            contents=numbers(self.hashing.contents([row.row or b"" for row in rows])),
            keys=ids,
            positions=np.array([version.position for version in versions], np.uint64),
            seqs=np.array([version.seq & 0xFFFFFFFF for version in versions], np.uint32),
            live=np.array([row.row is not None for row in rows], bool),
        )
        for group, data in by_group(packed, self.hashing.groups):
            yield group, (self.store, data)
