"""Builds pgoutput messages byte by byte, as the manual's "Logical Replication Message Formats" describes them.

It is independent of `cdc.pgoutput.decoder` on purpose, so that a mistake there is not repeated here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

# What a column of a row may be given as: text, NULL, or one of the two below.
Cell = str | bytes | None


class _LeftOut:
    def __repr__(self) -> str:
        return "LEFT_OUT"


LEFT_OUT: Final = _LeftOut()
Cells = Sequence[Cell | _LeftOut]


def number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big", signed=value < 0)


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def begin(final_lsn: int = 0x5000, *, commit_time_us: int = 1_000_000, xid: int = 700) -> bytes:
    return b"B" + number(final_lsn, 8) + number(commit_time_us, 8) + number(xid, 4)


def commit(commit_lsn: int = 0x5000, *, end_lsn: int | None = None, commit_time_us: int = 1_000_000) -> bytes:
    end = commit_lsn + 48 if end_lsn is None else end_lsn
    return b"C\0" + number(commit_lsn, 8) + number(end, 8) + number(commit_time_us, 8)


def relation(
    oid: int,
    schema: str,
    table: str,
    columns: Iterable[tuple[str, int, int, bool]],
    *,
    identity: str = "d",
) -> bytes:
    """`columns`: name, type's oid, type modifier, part of the replica identity."""
    listed = list(columns)
    head = b"R" + number(oid, 4) + text(schema) + text(table) + identity.encode() + number(len(listed), 2)
    return head + b"".join(
        number(int(in_key), 1) + text(name) + number(type_oid, 4) + number(modifier, 4)
        for name, type_oid, modifier, in_key in listed
    )


def type_(oid: int, schema: str, name: str) -> bytes:
    return b"Y" + number(oid, 4) + text(schema) + text(name)


def cells(values: Cells) -> bytes:
    """TupleData."""
    return number(len(values), 2) + b"".join(_cell(value) for value in values)


def insert(oid: int, new: Cells) -> bytes:
    return b"I" + number(oid, 4) + b"N" + cells(new)


def update(oid: int, new: Cells, *, key: Cells | None = None, old: Cells | None = None) -> bytes:
    before = b""
    if key is not None:
        before = b"K" + cells(key)
    elif old is not None:
        before = b"O" + cells(old)
    return b"U" + number(oid, 4) + before + b"N" + cells(new)


def delete(oid: int, *, key: Cells | None = None, old: Cells | None = None) -> bytes:
    before = b"K" + cells(key) if key is not None else b"O" + cells(old or ())
    return b"D" + number(oid, 4) + before


def truncate(*oids: int, cascade: bool = False, restart_identity: bool = False) -> bytes:
    flags = int(cascade) | int(restart_identity) << 1
    return b"T" + number(len(oids), 4) + number(flags, 1) + b"".join(number(oid, 4) for oid in oids)


def logical_message(prefix: str, content: bytes, *, lsn: int = 0x4000, transactional: bool = True) -> bytes:
    head = b"M" + number(int(transactional), 1) + number(lsn, 8)
    return head + text(prefix) + number(len(content), 4) + content


def origin(commit_lsn: int, name: str) -> bytes:
    return b"O" + number(commit_lsn, 8) + text(name)


def _cell(value: Cell | _LeftOut) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, _LeftOut):
        return b"u"
    data = value.encode() if isinstance(value, str) else value
    return b"t" + number(len(data), 4) + data
