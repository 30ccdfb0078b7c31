"""Catalog queries: tables and their keys, the replication slot, the publication, and open transactions.

The functions query the catalog and run the publication's DDL. Callers decide what follows from the results. The one
rule here is `why_not_captured`, which depends on nothing but a table's catalog entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from cdc import names
from cdc.config.tables import TableSelector
from cdc.lsn import LSN


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """A permanent table as the catalog describes it: name, primary key, replica identity, partitioning."""

    oid: int
    schema: str
    name: str
    key: tuple[str, ...]  # primary key columns in key order; empty if the table has no primary key
    deferrable_key: bool
    replica_identity: str  # d, n, f or i, as in pg_class
    identity_index: frozenset[str]  # columns of REPLICA IDENTITY USING INDEX; empty if unset or dropped
    is_partitioned: bool
    is_partition: bool

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def identity_lacks_key(self) -> bool:
        """True if the replica identity is an index that lacks a primary key column.

        A delete event of such a table would not contain the whole key. For a partitioned table this is always False:
        each partition has its own replica identity, and the stream sends it before the partition's first row.
        """
        is_by_index = self.replica_identity == "i" and not self.is_partitioned
        return is_by_index and not self.identity_index.issuperset(self.key)

    def topic(self, prefix: str) -> str:
        """Return the name of the table topic."""
        return names.topic(prefix, self.schema, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSlot:
    """One row of `pg_replication_slots`."""

    plugin: str
    database: str
    active_pid: int | None
    wal_status: str | None  # "lost": the server has removed WAL that the slot still needed
    restart_lsn: LSN | None
    confirmed_flush_lsn: LSN | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The publication and its table entries, with values that change on every alteration.

    `identity` and the entries' values contain OIDs and xmins. They change when a user drops, re-creates or alters the
    publication, even if its content is the same afterwards.
    """

    identity: str
    tables: dict[str, str]  # relation OID -> OID and xmin of its pg_publication_rel entry


_TABLES = """
select c.oid::int8, n.nspname, c.relname, c.relreplident::text, c.relkind = 'p', c.relispartition,
       coalesce(k.columns, '{}') as columns, coalesce(not k.immediate, false) as deferrable,
       array(select a.attname::text from pg_index i
             cross join lateral unnest(i.indkey::int2[]) with ordinality as u(attnum, place)
             join pg_attribute a on a.attrelid = i.indrelid and a.attnum = u.attnum
             where i.indrelid = c.oid and i.indisreplident and u.place <= i.indnkeyatts) as identity
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
left join lateral (
    select array_agg(a.attname::text order by u.place) as columns, i.indimmediate as immediate
    from pg_index i
    cross join lateral unnest(i.indkey::int2[]) with ordinality as u(attnum, place)
    join pg_attribute a on a.attrelid = i.indrelid and a.attnum = u.attnum
    where i.indrelid = c.oid and i.indisprimary and u.place <= i.indnkeyatts
    group by i.indimmediate
) k on true
where c.relkind in ('r', 'p') and c.relpersistence = 'p'
"""


def tables(connection: psycopg.Connection, selectors: Sequence[TableSelector]) -> list[SourceTable]:
    """Return the permanent tables that the config selects, sorted by schema and name."""
    schemas = sorted({selector.schema for selector in selectors})
    rows = connection.execute(_TABLES + "and n.nspname = any(%s) order by 2, 3", [schemas]).fetchall()
    found = [_table(row) for row in rows]
    return [table for table in found if _selected(table, selectors)]


def _selected(table: SourceTable, selectors: Sequence[TableSelector]) -> bool:
    """True if a selector matches the table.

    `schema.*` matches tables but not their partitions. A selector with a table name also matches a partition, so that
    `why_not_captured` can report it.
    """
    return any(
        selector.matches(table.schema, table.name) and (selector.table is not None or not table.is_partition)
        for selector in selectors
    )


def root_of(connection: psycopg.Connection, oid: int) -> SourceTable | None:
    """Return the table with this OID, or the root partitioned table if it is a partition; None if it does not exist."""
    row = connection.execute(
        _TABLES + "and c.oid = coalesce(pg_partition_root(%(oid)s::oid)::oid, %(oid)s)", {"oid": oid}
    ).fetchone()
    return None if row is None else _table(row)


def _table(row: tuple[int, str, str, str, bool, bool, list[str], bool, list[str]]) -> SourceTable:
    oid, schema, name, replica_identity, is_partitioned, is_partition, key, deferrable, identity = row
    return SourceTable(
        oid=oid,
        schema=schema,
        name=name,
        key=tuple(key),
        deferrable_key=deferrable,
        replica_identity=replica_identity,
        identity_index=frozenset(identity),
        is_partitioned=is_partitioned,
        is_partition=is_partition,
    )


def slot(connection: psycopg.Connection, name: str) -> ReplicationSlot | None:
    """Return the logical slot with this name, or None."""
    row = connection.execute(
        "select plugin, database, active_pid, wal_status, restart_lsn::text, confirmed_flush_lsn::text "
        "from pg_replication_slots where slot_name = %s and slot_type = 'logical'",
        [name],
    ).fetchone()
    if row is None:
        return None
    plugin, database, active_pid, wal_status, restart_lsn, confirmed = row
    return ReplicationSlot(
        plugin=plugin,
        database=database,
        active_pid=active_pid,
        wal_status=wal_status,
        restart_lsn=LSN.parse(restart_lsn) if restart_lsn else None,
        confirmed_flush_lsn=LSN.parse(confirmed) if confirmed else None,
    )


def is_physical_slot(connection: psycopg.Connection, name: str) -> bool:
    """True if a physical slot has this name. `slot` returns logical slots only."""
    query = "select from pg_replication_slots where slot_name = %s and slot_type = 'physical'"
    return connection.execute(query, [name]).fetchone() is not None


def wal_held(connection: psycopg.Connection, name: str) -> tuple[int, int | None]:
    """Return the bytes of WAL that the slot retains, and the bytes until the server invalidates it (None: no limit)."""
    row = connection.execute(
        "select coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::int8, safe_wal_size "
        "from pg_replication_slots where slot_name = %s",
        [name],
    ).fetchone()
    return (0, None) if row is None else (int(row[0]), None if row[1] is None else int(row[1]))


_OPEN_TRANSACTIONS = """
select coalesce('prepared transaction ' || p.gid, 'pid ' || l.pid), a.datname,
       extract(epoch from clock_timestamp() - coalesce(a.xact_start, p.prepared))::float8
from pg_locks l
left join pg_stat_activity a on a.pid = l.pid
left join pg_prepared_xacts p on p.transaction::text = l.transactionid::text
where l.locktype = 'transactionid' and l.granted and l.mode = 'ExclusiveLock'
  and l.pid is distinct from pg_backend_pid()
order by 3 desc nulls last limit 5
"""


def open_transactions(connection: psycopg.Connection) -> list[str]:
    """Describe the five oldest transactions, in all databases, that have a transaction id (they have written).

    Postgres does not show the age to every role, so the age may be missing from a description.
    """
    return [
        f"{who}" + (f" in {database}" if database else "") + (f", open for {age:.0f} s" if age is not None else "")
        for who, database, age in connection.execute(_OPEN_TRANSACTIONS).fetchall()
    ]


def drop_slot(connection: psycopg.Connection, name: str) -> None:
    """Drop the replication slot. Postgres raises an error if a session uses it."""
    connection.execute("select pg_drop_replication_slot(%s)", [name])


def publication(connection: psycopg.Connection, name: str) -> Publication | None:
    """Return the publication with this name and its table entries, or None."""
    row = connection.execute(
        "select oid::text || '/' || xmin::text from pg_publication where pubname = %s", [name]
    ).fetchone()
    if row is None:
        return None
    entries = connection.execute(
        "select r.prrelid::text, r.oid::text || '/' || r.xmin::text from pg_publication_rel r "
        "join pg_publication p on p.oid = r.prpubid where p.pubname = %s",
        [name],
    ).fetchall()
    return Publication(identity=row[0], tables=dict(entries))


def create_publication(connection: psycopg.Connection, name: str, chosen: Iterable[SourceTable]) -> None:
    """Create the publication for these tables, with all four operations and each partition under its own name."""
    settings = "publish = 'insert, update, delete, truncate', publish_via_partition_root = false"
    if connection.info.server_version >= 180000:
        # Postgres 18 added this option for stored generated columns. Older servers never send generated columns.
        settings += ", publish_generated_columns = stored"
    connection.execute(
        sql.SQL("create publication {} for table {} with ({})").format(
            sql.Identifier(name), sql.SQL(", ").join(map(_published, chosen)), sql.SQL(settings)
        )
    )


def add_to_publication(connection: psycopg.Connection, name: str, table: SourceTable) -> None:
    """Add the table to the publication."""
    connection.execute(sql.SQL("alter publication {} add table {}").format(sql.Identifier(name), _published(table)))


def _published(table: SourceTable) -> sql.Composed:
    """Return the table as SQL, with ONLY unless it is partitioned.

    ONLY excludes child tables that inherit from the table, since each of them is a table of its own. A partitioned
    table includes its partitions.
    """
    form = sql.SQL("{}") if table.is_partitioned else sql.SQL("only {}")
    return form.format(sql.Identifier(table.schema, table.name))


def lock_against_writers(connection: psycopg.Connection, table: SourceTable) -> None:
    """Lock the table in SHARE mode until the transaction ends: other sessions can read it but not write to it."""
    connection.execute(sql.SQL("lock table {} in share mode").format(sql.Identifier(table.schema, table.name)))


def is_empty(connection: psycopg.Connection, table: SourceTable) -> bool:
    """True if this session sees no row in the table."""
    query = sql.SQL("select not exists (select from {})").format(_published(table))
    row = connection.execute(query).fetchone()
    return row is not None and bool(row[0])


def current_lsn(connection: psycopg.Connection) -> LSN:
    """Return the server's current WAL insert LSN."""
    row = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None  # noqa: S101  # a select without FROM has one row
    return LSN.parse(row[0])


def why_not_captured(table: SourceTable) -> tuple[str, str] | None:
    """Return (problem, remedy) if capture cannot replicate the table; None if it can."""
    if table.is_partition:
        return "it is a partition", "Name the partitioned table instead: this includes its partitions."
    if not table.key:
        return "it has no primary key", f"Add one: alter table {table} add primary key (…)."
    if table.key[0] == "__truncate":
        return "its record keys would be the same as those of TRUNCATE markers", "Rename the column __truncate."
    return _why_not_by_identity(table)


def _why_not_by_identity(table: SourceTable) -> tuple[str, str] | None:
    """Return (problem, remedy) if the replica identity is not usable.

    A partitioned table's own replica identity is ignored, because each partition has one.
    """
    if table.is_partitioned:
        problem = "its primary key is deferrable and it is partitioned", "Make the key NOT DEFERRABLE."
        return problem if table.deferrable_key else None
    if table.replica_identity == "n":
        return "its replica identity is NOTHING", f"Run: alter table {table} replica identity default."
    if table.deferrable_key and table.replica_identity != "f":
        return "its primary key is deferrable", f"Run: alter table {table} replica identity full."
    if table.identity_lacks_key:
        what = "its replica identity is an index without the whole primary key"
        return what, f"Run: alter table {table} replica identity default."
    return None


def database_name(connection: psycopg.Connection) -> str:
    """Return the name of the connected database."""
    row = connection.execute("select current_database()").fetchone()
    assert row is not None  # noqa: S101  # a select without FROM has one row
    return str(row[0])


def is_standby(connection: psycopg.Connection) -> bool:
    """True if the server is in recovery, that is, a standby server."""
    row = connection.execute("select pg_is_in_recovery()").fetchone()
    return row is not None and bool(row[0])


def existing_tables(connection: psycopg.Connection, oids: Iterable[str]) -> set[str]:
    """Return those of the relation OIDs that still exist."""
    rows = connection.execute("select oid::text from pg_class where oid::text = any(%s)", [list(oids)]).fetchall()
    return {row[0] for row in rows}
