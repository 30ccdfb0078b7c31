"""What capture asks the catalog: tables and their keys, the slot, the publication. Queries only, no decisions."""

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
    oid: int
    schema: str
    name: str
    key: tuple[str, ...]  # primary key columns in key order; empty where there is no primary key
    deferrable_key: bool
    replica_identity: str  # d, n, f or i, as in pg_class
    identity_index: frozenset[str]  # columns of REPLICA IDENTITY USING INDEX; empty otherwise, or if it was dropped
    is_partitioned: bool
    is_partition: bool

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def identity_lacks_key(self) -> bool:
        """Whether its replica identity is an index without the whole primary key: a delete does not say which key.

        (Of a partitioned table each partition has its own; the stream shows it with the partition's first row.)
        """
        is_by_index = self.replica_identity == "i" and not self.is_partitioned
        return is_by_index and not self.identity_index.issuperset(self.key)

    def topic(self, prefix: str) -> str:
        return names.topic(prefix, self.schema, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSlot:
    plugin: str
    database: str
    active_pid: int | None
    wal_status: str | None  # "lost": the server has thrown away WAL that the slot needed
    restart_lsn: LSN | None
    confirmed_flush_lsn: LSN | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """`identity` and the tables' entries change when it is dropped, re-created or altered, even to the same content."""

    identity: str
    tables: dict[str, str]  # relation oid -> its entry's oid and xmin


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
    """Permanent tables that the config selects, by name."""
    schemas = sorted({selector.schema for selector in selectors})
    rows = connection.execute(_TABLES + "and n.nspname = any(%s) order by 2, 3", [schemas]).fetchall()
    found = [_table(row) for row in rows]
    return [table for table in found if _selected(table, selectors)]


def _selected(table: SourceTable, selectors: Sequence[TableSelector]) -> bool:
    """`schema.*` means tables, not their partitions; one that is named is looked at whatever it is."""
    return any(
        selector.matches(table.schema, table.name) and (selector.table is not None or not table.is_partition)
        for selector in selectors
    )


def root_of(connection: psycopg.Connection, oid: int) -> SourceTable | None:
    """The table itself, or the partitioned table that it is a part of; None when it is gone."""
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
    """`slot` does not see those."""
    query = "select from pg_replication_slots where slot_name = %s and slot_type = 'physical'"
    return connection.execute(query, [name]).fetchone() is not None


def wal_held(connection: psycopg.Connection, name: str) -> tuple[int, int | None]:
    """Bytes of WAL that the slot keeps, and how many more it may before the server gives it up (None: no limit)."""
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
    """The oldest that have written something, of all databases; how old is not shown to every role."""
    return [
        f"{who}" + (f" in {database}" if database else "") + (f", open for {age:.0f} s" if age is not None else "")
        for who, database, age in connection.execute(_OPEN_TRANSACTIONS).fetchall()
    ]


def drop_slot(connection: psycopg.Connection, name: str) -> None:
    connection.execute("select pg_drop_replication_slot(%s)", [name])


def publication(connection: psycopg.Connection, name: str) -> Publication | None:
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
    settings = "publish = 'insert, update, delete, truncate', publish_via_partition_root = false"
    if connection.info.server_version >= 180000:
        # Before 18 generated columns are never in the stream; from 18 on the stored ones are, if asked for.
        settings += ", publish_generated_columns = stored"
    connection.execute(
        sql.SQL("create publication {} for table {} with ({})").format(
            sql.Identifier(name), sql.SQL(", ").join(map(_published, chosen)), sql.SQL(settings)
        )
    )


def add_to_publication(connection: psycopg.Connection, name: str, table: SourceTable) -> None:
    connection.execute(sql.SQL("alter publication {} add table {}").format(sql.Identifier(name), _published(table)))


def _published(table: SourceTable) -> sql.Composed:
    """ONLY: what inherits from a table is another table. (A partitioned one takes its partitions along.)"""
    form = sql.SQL("{}") if table.is_partitioned else sql.SQL("only {}")
    return form.format(sql.Identifier(table.schema, table.name))


def lock_against_writers(connection: psycopg.Connection, table: SourceTable) -> None:
    connection.execute(sql.SQL("lock table {} in share mode").format(sql.Identifier(table.schema, table.name)))


def is_empty(connection: psycopg.Connection, table: SourceTable) -> bool:
    query = sql.SQL("select not exists (select from {})").format(_published(table))
    row = connection.execute(query).fetchone()
    return row is not None and bool(row[0])


def current_lsn(connection: psycopg.Connection) -> LSN:
    row = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None  # noqa: S101  # a select without FROM has one row
    return LSN.parse(row[0])


def why_not_captured(table: SourceTable) -> tuple[str, str] | None:
    """(what is wrong, the remedy) of a table that cannot be captured."""
    if table.is_partition:
        return "it is a partition", "Name the partitioned table instead: its partitions come with it."
    if not table.key:
        return "it has no primary key", f"Add one: alter table {table} add primary key (…)."
    if table.key[0] == "__truncate":
        return "its key would look like that of a TRUNCATE marker", "Rename the column __truncate."
    return _why_not_by_identity(table)


def _why_not_by_identity(table: SourceTable) -> tuple[str, str] | None:
    """A partitioned table's own identity does not matter: each partition has one."""
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
    row = connection.execute("select current_database()").fetchone()
    assert row is not None  # noqa: S101  # a select without FROM has one row
    return str(row[0])


def is_standby(connection: psycopg.Connection) -> bool:
    row = connection.execute("select pg_is_in_recovery()").fetchone()
    return row is not None and bool(row[0])


def existing_tables(connection: psycopg.Connection, oids: Iterable[str]) -> set[str]:
    rows = connection.execute("select oid::text from pg_class where oid::text = any(%s)", [list(oids)]).fetchall()
    return {row[0] for row in rows}
