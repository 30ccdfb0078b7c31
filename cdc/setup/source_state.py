"""The source as `remove` reads and changes it: the publication's tables and owner, and open transactions."""

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

_POLL_SECONDS = 0.2
_ANNOUNCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Ownership:
    """The owner of the publication. `ours`: whether this session's role can act as the owner."""

    owner: str
    ours: bool


def publication_ownership(connection: psycopg.Connection, name: str) -> Ownership | None:
    """Return who owns the publication; None if it does not exist."""
    row = connection.execute(
        "select pg_get_userbyid(pubowner)::text, pg_has_role(pubowner, 'usage') from pg_publication where pubname = %s",
        [name],
    ).fetchone()
    return None if row is None else Ownership(*row)


def relations_of(connection: psycopg.Connection, table: TableSelector) -> dict[str, str]:
    """Return oid and quoted name of the table and of its partitions; empty if the table does not exist."""
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
    """Return the statement that removes tables from the publication."""
    return f"alter publication {sql.Identifier(publication).as_string(None)} drop table {', '.join(sql_names)};"


def drop_publication_sql(publication: str) -> str:
    """Return the statement that drops the publication."""
    return f"drop publication {sql.Identifier(publication).as_string(None)};"


def run_sql(connection: psycopg.Connection, statement: str) -> None:
    """Run a DDL statement with a short lock timeout, because other sessions queue behind a waiting DDL statement."""
    try:
        connection.execute("set lock_timeout = '10s'")
        connection.execute(statement.encode())
    except psycopg.errors.LockNotAvailable:
        raise TransientError(f"Postgres did not grant a lock within 10 seconds for: {statement}") from None
    except psycopg.errors.InsufficientPrivilege as error:
        raise RefusedError(
            f"The role lacks a privilege: {explain(error)}.", remedy=f"As the owner, run: {statement}"
        ) from error


def end_of_open_transactions(connection: psycopg.Connection) -> LSN:
    """Wait until every transaction that is open now has ended; return an LSN after all of their commits.

    Such a transaction may have written to a table before the table left the publication. Postgres sends these changes
    when the transaction commits, however much later that is.
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
        time.sleep(_POLL_SECONDS)
