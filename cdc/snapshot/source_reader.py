"""Reads the rows of a chunk from Postgres: imports the snapshot, locks and checks the relations, runs COPY.

An exported snapshot shows the rows of the past, but the present storage and columns of a table. After a rewrite
(VACUUM FULL, ALTER TYPE, TRUNCATE) a read in the snapshot misses rows without an error. Therefore the reader locks
each relation against rewrites and compares it with its description. A relation that differs is left to an incremental
snapshot.
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
from cdc.snapshot.records import BlockRange
from cdc.snapshot.table_description import DescribedTable, Leaf

_LOCK_TRY_MS = 5_000
_LOCK_SECONDS = 300
# Limits of one block of rows that is read and then encoded, in rows and in bytes.
_LINES_AT_ONCE = 500
_BYTES_AT_ONCE = 1 << 20
# Types whose binary form equals their text form: json, name, text, bpchar, varchar.
_SENT_AS_TEXT = frozenset({114, 19, 25, 1042, 1043})
_BINARY_HEAD_BYTES = 19  # signature, flags and an empty header extension; libpq returns it with the first row
_BINARY_END = b"\xff\xff"
_IMPORT_REFUSED = (
    psycopg.errors.InvalidParameterValue,
    psycopg.errors.UndefinedObject,
    psycopg.errors.ObjectNotInPrerequisiteState,
)

REWRITTEN = "the table was rewritten during the snapshot"
CHANGED = "the table's columns were changed during the snapshot"
GONE = "the table or a partition of it was dropped during the snapshot"


class SnapshotLostError(Exception):
    """The session that exported the snapshot has ended, so no new transaction can import the snapshot."""


@contextmanager
def at_snapshot(conninfo: str, snapshot: str | None) -> Iterator[psycopg.Connection[Any]]:
    """Yields a connection in a read-only transaction that uses the named snapshot.

    Once imported, the snapshot stays valid until this transaction ends. Without a name, the transaction takes its own
    snapshot at its first query.
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
        connection.close()  # also ends a running query; the transaction is read-only


def _settings(server_version: int) -> list[str]:
    """Return session settings: no time limits, no parallel workers, and TID range scans instead of other scans."""
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
    """A locked relation with the storage and columns of its description. `name`: its present name."""

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
    """Lock a relation and return it, or return the reason why the snapshot does not show all of its rows.

    A caller that holds locks on other relations passes `holds_others`, and then the function does not wait long.
    Another session may wait for an exclusive lock on one of those relations, and all later sessions queue behind it.
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
            continue  # renamed or dropped after the name was read
        except psycopg.errors.LockNotAvailable:
            if time.monotonic() > give_up_at:
                raise TransientError(f"{name} is locked by other sessions.") from None
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
    """Return the present name and relfilenode. Both functions ignore the transaction's snapshot."""
    row = connection.execute(_PRESENT, {"oid": leaf.relation.oid}).fetchone()
    return (None, None) if row is None else (row[0], row[1])


def _has_same_columns(
    connection: psycopg.Connection[Any], table: DescribedTable, leaf: Leaf, name: str, columns: Sequence[str]
) -> bool:
    """Whether the present columns equal those in the snapshot's catalog.

    Compares column numbers too, since two columns may have swapped their names.
    """
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
    except psycopg.errors.InsufficientPrivilege as error:  # row_security is off: an error instead of missing rows
        raise RefusedError(
            f"The role may not read all rows of {name}: {explain(error)}",
            remedy="Give the role BYPASSRLS, or grant it select on the table if that privilege is missing.",
        ) from None
    assert result is not None  # noqa: S101  # a select has one
    return expected == [(result.ftablecol(at), result.ftype(at), result.fmod(at)) for at in range(len(columns))]


def _sent_as(type: TypeInfo, modifier: int) -> tuple[int, int]:  # noqa: A002 - Postgres's own word
    """Return the type and modifier of a result column. For a domain, Postgres reports its base type."""
    while type.kind == "domain" and type.base is not None:
        type, modifier = type.base, type.base_typmod  # noqa: A001
    return type.oid, modifier


def _list(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))


def lines(
    connection: psycopg.Connection[Any],
    readable: Readable,
    piece: BlockRange,
    columns: Sequence[str],
    where: str | None = None,
) -> Iterator[list[bytes]]:
    """Yields the rows as lines of COPY's text format, in blocks of some hundred.

    Reads from libpq directly, with one Python call per row.
    """
    yield from copy_out(connection, _copy_query(readable, piece, _list(columns), where))


def tuples(
    connection: psycopg.Connection[Any],
    readable: Readable,
    piece: BlockRange,
    columns: Sequence[str],
    types: Sequence[int],
) -> Iterator[list[bytes]]:
    """Yields the rows in COPY's binary format, with each value as text, so that the server does not escape values.

    For rows with long texts, the server does a third less work. For short rows of many types, it does more.
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
    """Return the SQL for a column's value as text.

    `concat` writes a value as COPY does, which a cast to text may not. But it returns an empty string for NULL, so NULL
    needs the `case`. `is not null` would be wrong there: it is false for a composite value that contains a NULL.
    """
    if type_oid in _SENT_AS_TEXT:
        return column
    return sql.SQL("case when {0} is distinct from null then concat({0}) end").format(column)


def _copy_query(
    readable: Readable, piece: BlockRange, listed: sql.Composable, where: str | None = None
) -> sql.Composed:
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
    """Yields the lines of a `COPY … TO STDOUT` in blocks."""
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
