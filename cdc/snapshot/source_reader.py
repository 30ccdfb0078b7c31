"""The source's side of a chunk: the snapshot, the locks, whether a table still is what the snapshot shows, the lines.

An exported snapshot shows rows as they were, but a table's storage and columns as they are: after a rewrite (VACUUM
FULL, ALTER TYPE, TRUNCATE) it sees too little without any error. So each relation is locked against that, and compared
with what it was; one that differs is left to a later copy.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import pq, sql

from cdc.encoding.values import TypeInfo
from cdc.errors import RefusedError, TransientError
from cdc.postgres.connection import connect, explain
from cdc.snapshot.records import Piece
from cdc.snapshot.table_description import DescribedTable, Leaf

_LOCK_TRY_MS = 5_000
_LOCK_SECONDS = 300
# What is read in one go and then encoded: so many rows, or so many bytes where rows are long.
_LINES_AT_ONCE = 500
_BYTES_AT_ONCE = 1 << 20
# Types of which the binary form is the text: json, name, text, bpchar, varchar.
_SENT_AS_TEXT = frozenset({114, 19, 25, 1042, 1043})
_BINARY_HEAD_BYTES = 19  # signature, flags, and an extension that nobody has; it comes with the first row
_BINARY_END = b"\xff\xff"
_IMPORT_REFUSED = (
    psycopg.errors.InvalidParameterValue,
    psycopg.errors.UndefinedObject,
    psycopg.errors.ObjectNotInPrerequisiteState,
)

REWRITTEN = "it was rewritten during the copy"
CHANGED = "its columns were changed during the copy"
GONE = "it was dropped during the copy"


class SnapshotLostError(Exception):
    """The session that exported the snapshot has ended: nobody can read at it any more."""


@contextmanager
def at_snapshot(conninfo: str, snapshot: str | None) -> Iterator[psycopg.Connection[Any]]:
    """A connection within a transaction that sees what the snapshot shows; ours keeps it alive once it is imported.

    Without a name: a snapshot of its own, of when it first reads.
    """
    connection = connect(conninfo, application_name="tailrace copy")
    try:
        for name in _settings(connection.info.server_version):
            connection.execute(f"set {name}")
        connection.execute("begin isolation level repeatable read read only")
        try:
            if snapshot is not None:
                connection.execute(sql.SQL("set transaction snapshot {}").format(sql.Literal(snapshot)))
        except _IMPORT_REFUSED as error:
            raise SnapshotLostError(explain(error)) from None
        yield connection
    finally:
        connection.close()  # with whatever is under way on it; nothing was written


def _settings(server_version: int) -> list[str]:
    """No limit on how long a chunk takes, one process per connection, and the ranges read as ranges."""
    zero = ["statement_timeout", "idle_in_transaction_session_timeout"]
    if server_version >= 170000:
        zero.append("transaction_timeout")
    off = ["jit", "enable_seqscan", "enable_indexscan", "enable_bitmapscan"]
    return [
        *(f"{name} = 0" for name in zero),
        *(f"{name} = off" for name in off),
        "max_parallel_workers_per_gather = 0",
        f"lock_timeout = {_LOCK_TRY_MS}",
    ]


@dataclass(frozen=True, slots=True)
class Readable:
    """A locked relation that is as the snapshot shows it, under its present name."""

    name: str
    leaf: Leaf


_PRESENT = """
select (pg_identify_object('pg_class'::regclass, %(oid)s, 0)).identity, pg_relation_filenode(%(oid)s)::int8
"""


def lock(
    connection: psycopg.Connection[Any],
    table: DescribedTable,
    leaf: Leaf,
    columns: Sequence[str],
    *,
    holds_others: bool = False,
) -> Readable | str:
    """A reason (see above) where the snapshot does not show the whole of it.

    Whoever `holds_others` had better let go of them than wait for this one: somebody may wait for them, and everybody
    else behind him.
    """
    give_up_at = time.monotonic() + (0 if holds_others else _LOCK_SECONDS)
    while True:
        name, _ = _present(connection, leaf)
        if name is None:
            return GONE
        try:
            with connection.transaction():  # a savepoint
                connection.execute(sql.SQL("lock table only {} in access share mode").format(sql.SQL(name)))
            break
        except psycopg.errors.UndefinedTable:
            continue  # renamed or dropped since we asked
        except psycopg.errors.LockNotAvailable:
            if time.monotonic() > give_up_at:
                raise TransientError(f"{name} is locked by others.") from None
        except psycopg.errors.InsufficientPrivilege as error:
            raise RefusedError(
                f"The role may not read {name}: {explain(error)}.", remedy=f"Run: grant select on {name} to the role;"
            ) from None
    locked_name, storage = _present(connection, leaf)
    if locked_name != name:
        return lock(connection, table, leaf, columns, holds_others=holds_others)
    if storage != leaf.storage:
        return REWRITTEN
    return Readable(name, leaf) if _has_same_columns(connection, table, leaf, name, columns) else CHANGED


def _present(connection: psycopg.Connection[Any], leaf: Leaf) -> tuple[str | None, int | None]:
    """Present name and storage: both functions look past the transaction's snapshot."""
    row = connection.execute(_PRESENT, {"oid": leaf.relation.oid}).fetchone()
    return (None, None) if row is None else (row[0], row[1])


def _has_same_columns(
    connection: psycopg.Connection[Any], table: DescribedTable, leaf: Leaf, name: str, columns: Sequence[str]
) -> bool:
    """By number, not only by name: two columns may have swapped their names. The snapshot's catalog against ours."""
    rows = connection.execute(
        "select attname, attnum from pg_attribute where attrelid = %s and attname = any(%s)",
        [leaf.relation.oid, list(columns)],
    ).fetchall()
    numbers = dict(rows)
    described = {column.name: column for column in leaf.relation.columns}
    expected = [
        (numbers.get(column), *_sent_as(table.types[described[column].type_oid], described[column].type_modifier))
        for column in columns
    ]
    query = sql.SQL("select {} from only {} limit 0").format(_list(columns), sql.SQL(name))
    try:
        with connection.transaction():
            result = connection.execute(query).pgresult
    except (psycopg.errors.UndefinedColumn, psycopg.errors.WrongObjectType):
        return False
    except psycopg.errors.InsufficientPrivilege as error:  # row_security is off: better no row than some of them
        raise RefusedError(
            f"Not all of {name} can be read: {explain(error)}",
            remedy="Give the role BYPASSRLS, or grant it select on the table where that is missing.",
        ) from None
    assert result is not None  # noqa: S101  # a select has one
    return expected == [(result.ftablecol(at), result.ftype(at), result.fmod(at)) for at in range(len(columns))]


def _sent_as(type: TypeInfo, modifier: int) -> tuple[int, int]:  # noqa: A002 - Postgres's own word
    """Postgres describes a domain's column by the type below it."""
    while type.kind == "domain" and type.base is not None:
        type, modifier = type.base, type.base_typmod  # noqa: A001
    return type.oid, modifier


def _list(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))


def lines(
    connection: psycopg.Connection[Any],
    readable: Readable,
    piece: Piece,
    columns: Sequence[str],
    where: str | None = None,
) -> Iterator[list[bytes]]:
    """The rows as COPY's text, some hundred at a time. Straight from libpq: one Python call a row."""
    yield from copy_out(connection, _copy_query(readable, piece, _list(columns), where))


def tuples(
    connection: psycopg.Connection[Any], readable: Readable, piece: Piece, columns: Sequence[str], types: Sequence[int]
) -> Iterator[list[bytes]]:
    """The rows in COPY's binary format, each value as its text: no value is looked through for what must be escaped.

    For rows of long texts the server has a third less to do; for short ones of many types it has more.
    """
    listed = sql.SQL(", ").join(_as_text(sql.Identifier(name), oid) for name, oid in zip(columns, types, strict=True))
    query = _copy_query(readable, piece, listed) + sql.SQL(" (format binary)")
    head = _BINARY_HEAD_BYTES
    for block in copy_out(connection, query):
        block[0] = block[0][head:]
        head = 0
        if block[-1] == _BINARY_END:
            block.pop()
        if block:
            yield block


def _as_text(column: sql.Composable, type_oid: int) -> sql.Composable:
    """`concat` writes a value as COPY does (a cast to text may not), but has nothing to say of NULL.

    `is not null` would be another question: it is false of a composite value with a NULL in it.
    """
    if type_oid in _SENT_AS_TEXT:
        return column
    return sql.SQL("case when {0} is distinct from null then concat({0}) end").format(column)


def _copy_query(readable: Readable, piece: Piece, listed: sql.Composable, where: str | None = None) -> sql.Composed:
    conditions = [f"ctid >= '({piece.first_block},0)'"]
    if piece.end_block is not None:
        conditions.append(f"ctid < '({piece.end_block},0)'")
    if readable.leaf.row_filter is not None:
        conditions.append(f"({readable.leaf.row_filter})")
    if where is not None:
        conditions.append(f"({where})")
    return sql.SQL("copy (select {} from only {} where {}) to stdout").format(
        listed, sql.SQL(readable.name), sql.SQL(" and ".join(conditions))
    )


def copy_out(connection: psycopg.Connection[Any], query: sql.Composed) -> Iterator[list[bytes]]:
    """The lines of a `COPY … TO STDOUT`."""
    pgconn = connection.pgconn
    _expect(pgconn.exec_(query.as_bytes(connection)), pq.ExecStatus.COPY_OUT)
    get = pgconn.get_copy_data
    size = 1
    while size > 0:
        block: list[bytes] = []
        taken = 0
        while taken < _BYTES_AT_ONCE and len(block) < _LINES_AT_ONCE:
            size, line = get(0)
            if size <= 0:
                break
            block.append(bytes(line))
            taken += size
        if block:
            yield block
    while (result := pgconn.get_result()) is not None:
        _expect(result, pq.ExecStatus.COMMAND_OK)


def _expect(result: pq.abc.PGresult, status: pq.ExecStatus) -> None:
    if result.status != status:
        raise psycopg.errors.error_from_result(result, encoding="utf-8")
