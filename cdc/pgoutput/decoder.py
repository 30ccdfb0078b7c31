"""Decoder of pgoutput protocol version 1. No I/O.

The decoder checks every length: a message that is too short, too long or of an unknown type raises ProtocolError,
which names the place. Row messages are the hot path (one call per row), so `_read_tuple` is written for speed. A slice
past the end of `bytes` raises no error, so `_read_tuple` compares the position with the length once per message
instead of once per column.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from cdc.errors import ProtocolError
from cdc.lsn import LSN
from cdc.pgoutput.messages import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Relation,
    RelationColumn,
    ReplicaIdentity,
    Truncate,
    Type,
    Update,
    Value,
)

_BEGIN = struct.Struct("!QqI")
_COMMIT = struct.Struct("!BQQq")
_TRUNCATE = struct.Struct("!IB")
_MESSAGE = struct.Struct("!BQ")
_COLUMN = struct.Struct("!Ii")
_UINT64 = struct.Struct("!Q")
_UINT32 = struct.Struct("!I")
_ROW_HEAD = struct.Struct("!IBH")  # relation OID, kind of the first tuple, its number of columns
_TUPLE_HEAD = struct.Struct("!BH")
_VALUE_HEAD = struct.Struct("!BI").unpack_from  # kind, length

_TEXT, _NULL, _UNCHANGED = b"tnu"
_NEW, _KEY, _OLD = b"NKO"

# In the stream every message follows a head (XLogData): `w`, its LSN, the current end of the WAL, the server's clock.
HEAD_BYTES = 25
start_of = struct.Struct(
    "!xQ"
).unpack_from  # (LSN,); a bound method avoids a Python frame, since this runs once per row
sent_at_of = struct.Struct("!17xq").unpack_from  # (microseconds since 2000-01-01 UTC,) by the server's clock


def decode_message(data: bytes) -> Message:
    """Decode one complete pgoutput message."""
    if not data:
        raise ProtocolError("Postgres sent an empty pgoutput message")
    decoder = _DECODERS.get(data[0])
    if decoder is None:
        raise ProtocolError(f"unknown pgoutput message type {data[:1]!r} ({len(data)} bytes)")
    try:
        return decoder(data)
    except (struct.error, IndexError):
        raise ProtocolError(f"pgoutput message {data[:1]!r} is cut short at {len(data)} bytes") from None
    except (UnicodeDecodeError, ValueError) as error:
        raise ProtocolError(f"pgoutput message {data[:1]!r} is malformed: {type(error).__name__}") from None


def _read_tuple(data: bytes, count: int, at: int) -> tuple[list[Value], int]:
    """Read `count` column values from byte `at`. Returns them and the position after them."""
    values: list[Value] = []
    append = values.append
    unpack = _VALUE_HEAD
    last_head = (
        len(data) - 5
    )  # NULL and unchanged values have no length field, so near the end there may be none to read
    for _ in range(count):
        kind, length = unpack(data, at) if at <= last_head else (data[at], 0)
        if kind == _TEXT:
            start = at + 5
            at = start + length
            append(data[start:at])
        elif kind == _NULL:
            append(None)
            at += 1
        elif kind == _UNCHANGED:
            append(UNCHANGED)
            at += 1
        else:
            raise ProtocolError(
                f"pgoutput row has an unknown kind of column value {kind} at byte {at} (protocol 1 sends text only)"
            )
    if at > len(data):
        raise ProtocolError(f"pgoutput row is cut short: {at - len(data)} bytes are missing")
    return values, at


def _insert(data: bytes) -> Insert:
    relation_oid, kind, count = _ROW_HEAD.unpack_from(data, 1)
    if kind != _NEW:
        raise ProtocolError(f"pgoutput insert has no new row (found {kind})")
    new, at = _read_tuple(data, count, 8)
    if at != len(data):
        raise _trailing(data, at)
    return Insert(relation_oid, new)


def _update(data: bytes) -> Update:
    relation_oid, kind, count = _ROW_HEAD.unpack_from(data, 1)
    old = None
    at = 8
    if kind in (_KEY, _OLD):
        old, at = _read_tuple(data, count, at)
        new_kind, count = _TUPLE_HEAD.unpack_from(data, at)
        at += 3
    else:
        new_kind = kind
    if new_kind != _NEW:
        raise ProtocolError(f"pgoutput update has no new row (found {new_kind} at byte {at})")
    new, at = _read_tuple(data, count, at)
    if at != len(data):
        raise _trailing(data, at)
    return Update(relation_oid, old, kind == _OLD, new)


def _delete(data: bytes) -> Delete:
    relation_oid, kind, count = _ROW_HEAD.unpack_from(data, 1)
    if kind not in (_KEY, _OLD):
        raise ProtocolError(f"pgoutput delete has no old row (found {kind})")
    old, at = _read_tuple(data, count, 8)
    if at != len(data):
        raise _trailing(data, at)
    return Delete(relation_oid, old, kind == _OLD)


def _begin(data: bytes) -> Begin:
    final_lsn, commit_time_us, xid = _BEGIN.unpack_from(data, 1)
    _expect_end(data, 1 + _BEGIN.size)
    return Begin(LSN(final_lsn), commit_time_us, xid)


def _commit(data: bytes) -> Commit:
    _flags, commit_lsn, end_lsn, commit_time_us = _COMMIT.unpack_from(data, 1)
    _expect_end(data, 1 + _COMMIT.size)
    return Commit(LSN(commit_lsn), LSN(end_lsn), commit_time_us)


def _relation(data: bytes) -> Relation:
    (oid,) = _UINT32.unpack_from(data, 1)
    schema, at = _text(data, 5)
    table, at = _text(data, at)
    identity = ReplicaIdentity(chr(data[at]))
    count = int.from_bytes(data[at + 1 : at + 3], "big")
    at += 3
    columns = []
    for _ in range(count):
        in_key = bool(data[at] & 1)
        name, at = _text(data, at + 1)
        type_oid, type_modifier = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        columns.append(RelationColumn(name, type_oid, type_modifier, in_key))
    _expect_end(data, at)
    # An empty schema name is pg_catalog: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
    return Relation(oid, schema or "pg_catalog", table, identity, tuple(columns))


def _type(data: bytes) -> Type:
    (oid,) = _UINT32.unpack_from(data, 1)
    schema, at = _text(data, 5)
    name, at = _text(data, at)
    _expect_end(data, at)
    return Type(oid, schema or "pg_catalog", name)


def _truncate(data: bytes) -> Truncate:
    count, options = _TRUNCATE.unpack_from(data, 1)
    at = 1 + _TRUNCATE.size
    _expect_end(data, at + 4 * count)
    oids = struct.unpack_from(f"!{count}I", data, at)
    return Truncate(oids, bool(options & 1), bool(options & 2))


def _message(data: bytes) -> LogicalMessage:
    flags, lsn = _MESSAGE.unpack_from(data, 1)
    prefix, at = _text(data, 1 + _MESSAGE.size)
    (length,) = _UINT32.unpack_from(data, at)
    at += 4
    _expect_end(data, at + length)
    return LogicalMessage(bool(flags & 1), LSN(lsn), prefix, data[at:])


def _origin(data: bytes) -> Origin:
    (lsn,) = _UINT64.unpack_from(data, 1)
    name, at = _text(data, 9)
    _expect_end(data, at)
    return Origin(LSN(lsn), name)


def _text(data: bytes, at: int) -> tuple[str, int]:
    """Read a zero-terminated string. `bytes.index` raises ValueError if the zero byte is missing."""
    end = data.index(0, at)
    return data[at:end].decode(), end + 1


def _expect_end(data: bytes, at: int) -> None:
    if at != len(data):
        raise _trailing(data, at)


def _trailing(data: bytes, at: int) -> ProtocolError:
    """Return the error for a message that does not end at byte `at`."""
    if at > len(data):
        return ProtocolError(f"pgoutput message {data[:1]!r} is cut short: {at - len(data)} bytes are missing")
    return ProtocolError(f"pgoutput message {data[:1]!r} has {len(data) - at} bytes too many")


_DECODERS: dict[int, Callable[[bytes], Message]] = {
    ord("B"): _begin,
    ord("C"): _commit,
    ord("R"): _relation,
    ord("Y"): _type,
    ord("I"): _insert,
    ord("U"): _update,
    ord("D"): _delete,
    ord("T"): _truncate,
    ord("M"): _message,
    ord("O"): _origin,
}
