"""What `remove` asks of the source and changes there: publication entries, its owner, transactions still open."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from cdc.config import TableSelector
from cdc.errors import RefusedError, TransientError
from cdc.logs import get_logger
from cdc.lsn import LSN
from cdc.postgres.connection import explain

log = get_logger("remove")

_LOOK_SECONDS = 0.2
_ANNOUNCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Ownership:
    owner: str
    ours: bool


def publication_ownership(connection: psycopg.Connection, name: str) -> Ownership | None:
    row = connection.execute(
        "select pg_get_userbyid(pubowner)::text, pg_has_role(pubowner, 'usage') from pg_publication where pubname = %s",
        [name],
    ).fetchone()
    return None if row is None else Ownership(*row)


def relations_of(connection: psycopg.Connection, table: TableSelector) -> dict[str, str]:
    """The table's oid and those of its partitions, each with its name in SQL; none where there is no such table."""
    rows = connection.execute(
        "select t.relid::oid::text, quote_ident(n.nspname) || '.' || quote_ident(c.relname) "
        "from pg_class root join pg_namespace rn on rn.oid = root.relnamespace "
        # pg_partition_tree has no row for a table that is not partitioned.
        "cross join lateral (select root.oid::regclass union select relid from pg_partition_tree(root.oid)) t(relid) "
        "join pg_class c on c.oid = t.relid join pg_namespace n on n.oid = c.relnamespace "
        "where root.relkind in ('r', 'p') and rn.nspname = %s and root.relname = %s",
        [table.schema, table.table],
    ).fetchall()
    return dict(rows)


def drop_from_publication_sql(publication: str, sql_names: Sequence[str]) -> str:
    return f"alter publication {sql.Identifier(publication).as_string(None)} drop table {', '.join(sql_names)};"


def drop_publication_sql(publication: str) -> str:
    return f"drop publication {sql.Identifier(publication).as_string(None)};"


def run_sql(connection: psycopg.Connection, statement: str) -> None:
    """DDL of ours: it gives up soon where someone holds a lock, as everybody else would queue behind it."""
    try:
        connection.execute("set lock_timeout = '10s'")
        connection.execute(statement.encode())
    except psycopg.errors.LockNotAvailable:
        raise TransientError(f"A lock was not to be had within 10 seconds, for: {statement}") from None
    except psycopg.errors.InsufficientPrivilege as error:
        raise RefusedError(f"The role may not: {explain(error)}.", remedy=f"Let the owner run: {statement}") from error


def end_of_open_transactions(connection: psycopg.Connection) -> LSN:
    """Wait until every transaction that writes now has ended; give an LSN behind all of them.

    What they wrote to a table before it left the publication is sent when they commit, however much later that is.
    """
    ((until,),) = connection.execute("select pg_snapshot_xmax(pg_current_snapshot())::text").fetchall()
    announce_at = time.monotonic() + _ANNOUNCE_SECONDS
    while True:
        ((ended,),) = connection.execute(
            "select pg_snapshot_xmin(pg_current_snapshot()) >= %s::xid8", [until]
        ).fetchall()
        if ended:
            ((lsn,),) = connection.execute("select pg_current_wal_insert_lsn()::text").fetchall()
            return LSN.parse(lsn)
        if time.monotonic() > announce_at:
            log.info("waiting_for_open_transactions", reason="they may have written to the table")
            announce_at = float("inf")
        time.sleep(_LOOK_SECONDS)
