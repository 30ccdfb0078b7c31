"""Capture's hot loop: converts a run of row messages of one kind and one table to numbered records.

There are two implementations with the same output: this one, and `native_rows`, which is compiled at installation if
there is a C compiler. The compiled one takes a third of the time (docs/benchmarks.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cdc.encoding.row_compiler import Read, RowCompiler, member, object_template
from cdc.encoding.values import BOOLEAN, DATE, FLOATING, IDENTITY, QUOTE, TEXT, TIMESTAMP, Encode
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
_WAYS = {IDENTITY: 1, QUOTE: 2, TEXT: 3, BOOLEAN: 4, FLOATING: 5, DATE: 6, TIMESTAMP: 7}
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


class PythonRun:
    """The implementation in Python."""

    __slots__ = ("_read_pair", "_read_row")

    def __init__(self, read_row: Read, read_pair: Read) -> None:
        self._read_row = read_row
        self._read_pair = read_pair

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
        read = self._read_pair if has_old_row else self._read_row
        head, middle, to_sequence, to_lsn, to_seq, to_order, to_table_order = parts
        while at < end:
            raw = items[at]
            if raw[HEAD_BYTES:ROW_AT] != kind or (row := read(raw, ROW_AT)) is None:
                break
            at += 1
            seq += 1
            order += 1
            table_order += 1
            if seq <= skip_through:
                continue
            key, before, after = row
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


class Member(NamedTuple):
    """A member of a JSON object: the index of its column in the message, and the member's name."""

    column: int
    name: str


def python_run(encoders: Sequence[Encode], row: Sequence[Member], key: Sequence[Member]) -> RowRun:
    compiler = RowCompiler(
        encoders,
        [index for index, _ in row],
        object_template([name for _, name in row]),
        [index for index, _ in key],
        object_template([name for _, name in key]),
    )
    return PythonRun(compiler.read_row(), compiler.read_pair())


def native_run(encoders: Sequence[Encode], row: Sequence[Member], key: Sequence[Member]) -> RowRun:
    run: RowRun = NativeRun(*native_columns(encoders, row, key))
    return run


row_run = python_run if NativeRun is None else native_run


def native_columns(
    encoders: Sequence[Encode], row: Sequence[Member], key: Sequence[Member]
) -> tuple[list[tuple[int, int]], list[Encode], list[tuple[int, bytes]], list[tuple[int, bytes]]]:
    """Return a table's columns as arguments for the compiled classes."""
    used = {column for column, _ in (*row, *key)}
    ways = [_way(encode) if column in used else (_UNUSED, 0) for column, encode in enumerate(encoders)]
    return ways, list(encoders), _fields(row), _fields(key)


def _way(encode: Encode) -> tuple[int, int]:
    """Return the code for how a column is encoded, and the number of fractional digits of its seconds."""
    digits = getattr(encode, "digits", None)
    return (_WAYS.get(encode, _BY_ENCODER), 0) if digits is None else (_TIMESTAMPTZ, digits)


def _fields(members: Sequence[Member]) -> list[tuple[int, bytes]]:
    """Return each member's column with the JSON that precedes its value."""
    return [(index, (b"," if at else b"{") + member(name)) for at, (index, name) in enumerate(members)]
