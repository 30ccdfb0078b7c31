"""Capture's hot loop: converts a run of row messages of one kind and one table to numbered records.

There are two implementations with the same output: `native_rows`, which is compiled at installation if there is a C
compiler, and a plain loop in Python for an installation without one (docs/benchmarks.md has the rates of both).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import orjson

from cdc.encoding.values import BOOLEAN, DATE, FLOATING, IDENTITY, MALFORMED_ROW, QUOTE, TEXT, TIMESTAMP, Encode
from cdc.errors import ProtocolError
from cdc.pgoutput.decoder import HEAD_BYTES, start_of

if TYPE_CHECKING:
    from cdc.kafka.record import Emit  # would be a cycle: record imports the envelope, which imports the table encoder

NativeRun: Any
NativeLines: Any
try:
    from cdc.encoding.native_rows import NativeLines, NativeRun  # type: ignore[import-not-found,no-redef]
except ImportError:  # not compiled: there was no C compiler at installation
    NativeRun = NativeLines = None

# Offset of a row's values in a message: after the head, the message kind, relation, tuple kind and number of columns.
ROW_AT = HEAD_BYTES + 8

# Codes for how a column is encoded. `native_json` has the same numbers.
_UNUSED, _BY_ENCODER, _TIMESTAMPTZ = 0, 9, 8
_NATIVE_CODES = {IDENTITY: 1, QUOTE: 2, TEXT: 3, BOOLEAN: 4, FLOATING: 5, DATE: 6, TIMESTAMP: 7}
_TEXT, _NULL, _UNCHANGED = b"tnu"
_unpack = struct.Struct("!BI").unpack_from  # kind, length
_NULL_JSON = b"null"
_join = b"".join


class RowRun(Protocol):
    """The interface of the two implementations."""

    def take(
        self,
        items: list[bytes],
        at: int,
        end: int,
        has_old_row: bool,
        parts: list[bytes],
        ending: bytes,
        version: bytes,
        topic: str,
        emit: Emit,
        skip_through: int,
        seq: int,
        order: int,
        table_order: int,
    ) -> tuple[int, int, int, int]:
        """Convert messages from items[at] on, as long as they are of one kind, and pass the records to `emit`.

        Returns the index after the last converted message, and that message's `seq`, `order` and `table_order`. `parts`
        are the constant parts of an event between a row's values (see `envelope`). `version` is the position followed
        by a point. Messages up to `skip_through` are counted but not emitted. All arguments are positional, since a
        transaction of one row needs a call of its own, and keyword arguments cost time.
        """
        ...


class Member(NamedTuple):
    """A member of a JSON object: the index of its column in the message, and the member's name."""

    column: int
    name: str


class PythonRun:
    """The implementation in Python: a plain loop over the columns, for the old and for the new row."""

    __slots__ = ("_encoders", "_key_indexes", "_key_template", "_new_head", "_row_indexes", "_row_template")

    def __init__(self, encoders: Sequence[Encode], row: Sequence[Member], key: Sequence[Member]) -> None:
        self._row_indexes = [index for index, _ in row]
        self._key_indexes = [index for index, _ in key]
        used = {*self._row_indexes, *self._key_indexes}
        self._encoders = [encode if index in used else IDENTITY for index, encode in enumerate(encoders)]
        self._row_template = object_template([name for _, name in row])
        self._key_template = object_template([name for _, name in key])
        self._new_head = b"N" + len(encoders).to_bytes(2, "big")

    def take(
        self,
        items: list[bytes],
        at: int,
        end: int,
        has_old_row: bool,
        parts: list[bytes],
        ending: bytes,
        version: bytes,
        topic: str,
        emit: Emit,
        skip_through: int,
        seq: int,
        order: int,
        table_order: int,
    ) -> tuple[int, int, int, int]:
        if at == end:
            return at, seq, order, table_order
        kind = items[at][HEAD_BYTES:ROW_AT]
        encode = self._encode_pair if has_old_row else self._encode_row
        head, middle, to_sequence, to_lsn, to_seq, to_order, to_table_order = parts
        while at < end:
            raw = items[at]
            if raw[HEAD_BYTES:ROW_AT] != kind:
                break
            try:
                key, before, after = encode(raw)
            except MALFORMED_ROW:
                break  # not a whole row, or malformed: the caller decodes it with `decoder`, which reports errors
            at += 1
            seq += 1
            order += 1
            table_order += 1
            if seq <= skip_through:
                continue
            lsn, number = b"%d" % start_of(raw)[0], b"%d" % seq
            value = _join(
                (
                    *(head, before, middle, after, to_sequence, lsn, to_lsn, lsn, to_seq, number),
                    *(to_order, number if order == seq else b"%d" % order),
                    *(to_table_order, number if table_order == seq else b"%d" % table_order, ending),
                )
            )
            emit(topic, key, value, [("v", b"%b%08x" % (version, seq))], -1)
        return at, seq, order, table_order

    def _encode_row(self, raw: bytes) -> tuple[bytes, bytes, bytes]:
        """Return key, old row and new row of an insert, or of an update without the old row."""
        new, at = self._encode_values(raw, ROW_AT, None)
        if at != len(raw):
            raise ProtocolError("the row and its message differ in length")
        return self._key(new), _NULL_JSON, self._row(new)

    def _encode_pair(self, raw: bytes) -> tuple[bytes, bytes, bytes]:
        """Return key, old row and new row of an update with the whole old row. The key must not have changed."""
        old, at = self._encode_values(raw, ROW_AT, None)
        if raw[at : at + 3] != self._new_head:
            raise ProtocolError("no new row follows")
        new, at = self._encode_values(raw, at + 3, old)
        key = self._key(new)
        if at != len(raw) or key != self._key(old):
            raise ProtocolError("the key has changed, or the row and its message differ in length")
        return key, self._row(old), self._row(new)

    def _encode_values(self, raw: bytes, at: int, old: list[bytes] | None) -> tuple[list[bytes], int]:
        """Return the JSON of each value from `at` on, and the position after them. `old`: for unchanged values."""
        encoded: list[bytes] = []
        append = encoded.append
        last_head = len(raw) - 5  # a NULL has no length field, so near the end there may be none to unpack
        for encode in self._encoders:
            kind, length = _unpack(raw, at) if at <= last_head else (raw[at], 0)
            if kind == _TEXT:
                start = at + 5
                at = start + length
                append(encode(raw[start:at]))
            elif kind == _NULL:
                append(_NULL_JSON)
                at += 1
            elif kind == _UNCHANGED and old is not None:
                append(old[len(encoded)])
                at += 1
            else:
                raise ProtocolError("a value is missing")
        return encoded, at

    def _key(self, values: list[bytes]) -> bytes:
        key = [values[index] for index in self._key_indexes]
        if _NULL_JSON in key:
            raise ProtocolError("a key is never NULL")
        return self._key_template % tuple(key)

    def _row(self, values: list[bytes]) -> bytes:
        return self._row_template % tuple([values[index] for index in self._row_indexes])


def native_run(encoders: Sequence[Encode], row: Sequence[Member], key: Sequence[Member]) -> RowRun:
    run: RowRun = NativeRun(*native_columns(encoders, row, key))
    return run


row_run: Callable[[Sequence[Encode], Sequence[Member], Sequence[Member]], RowRun]
row_run = PythonRun if NativeRun is None else native_run


def native_columns(
    encoders: Sequence[Encode], row: Sequence[Member], key: Sequence[Member]
) -> tuple[list[tuple[int, int]], list[Encode], list[tuple[int, bytes]], list[tuple[int, bytes]]]:
    """Return a table's columns as arguments for the compiled classes."""
    used = {column for column, _ in (*row, *key)}
    codes = [_native_code(encode) if column in used else (_UNUSED, 0) for column, encode in enumerate(encoders)]
    return codes, list(encoders), _fields(row), _fields(key)


def _native_code(encode: Encode) -> tuple[int, int]:
    """Return the code for how a column is encoded, and the number of fractional digits of its seconds."""
    digits = getattr(encode, "digits", None)
    return (_NATIVE_CODES.get(encode, _BY_ENCODER), 0) if digits is None else (_TIMESTAMPTZ, digits)


def _fields(members: Sequence[Member]) -> list[tuple[int, bytes]]:
    """Return each member's column with the JSON that precedes its value."""
    return [(index, (b"," if at else b"{") + _member(name)) for at, (index, name) in enumerate(members)]


def object_template(names: Sequence[str]) -> bytes:
    """Return a `%` template of a JSON object with these members."""
    return b"{" + b",".join(_member(name).replace(b"%", b"%%") + b"%b" for name in names) + b"}"


def _member(name: str) -> bytes:
    return orjson.dumps(name) + b":"
