"""Reads the facts about a database that `init` needs. The session is read-only and has a short lock timeout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from cdc.check.managed_services import Service, find_service, memberships
from cdc.errors import RefusedError, TransientError
from cdc.postgres.connection import explain

OLDEST_MAJOR = 14
DEFAULT_ROLE = "tailrace"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTable:
    """A table of the source. The server has quoted `sql_name`, including reserved words."""

    schema: str
    name: str
    sql_name: str
    kind: str  # as pg_class.relkind: r, p (partitioned) or f (foreign)
    persistence: str  # p or u (unlogged)
    key: bool
    deferrable_key: bool
    replica_identity: str  # d, n, f or i
    identity_lacks_key: bool  # with i: the index lacks columns of the key
    row_security: bool
    extension: str | None
    partitions: int
    size_bytes: int
    rows_estimate: int | None
    readable: bool  # by the capture role

    @property
    def obstacle(self) -> tuple[str, str] | None:
        """Return why the table cannot be captured, and the remedy. None: it can be, perhaps after the SQL of `init`."""
        if self.kind == "f":
            return "it is a foreign table: its changes are in another server's WAL", "Capture it on that server."
        if self.persistence == "u":
            return "it is unlogged: its changes are not in the WAL", f"alter table {self.sql_name} set logged;"
        if self.extension is not None:
            return f"it belongs to extension {self.extension}", "Select it only if your application writes to it."
        if not self.key:
            return "it has no primary key", f"alter table {self.sql_name} add primary key (…);"
        if self.deferrable_key and self.kind == "p":
            return "it is partitioned and has a deferrable primary key", "Make the key NOT DEFERRABLE."
        return None

    @property
    def wanted_identity(self) -> str | None:
        """Return the replica identity to set; None if the present one is sufficient."""
        if self.deferrable_key:
            return None if self.replica_identity == "f" else "full"
        if self.kind == "p":
            return None  # the identities of its partitions count
        return "default" if self.replica_identity == "n" or self.identity_lacks_key else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRole:
    """The role that capture will connect as. It may not exist yet."""

    name: str
    sql_name: str
    exists: bool
    can_login: bool
    replicates: bool
    bypasses_row_security: bool
    connects: bool  # to this database
    schemas: frozenset[str]  # those that it has USAGE on


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The facts about a database that `init` needs."""

    database: str
    sql_database: str
    major: int
    service: Service  # the managed service that runs the server, or ORDINARY
    settings: dict[str, str]
    slots_used: int
    senders_used: int
    role: FoundRole
    publication_tables: frozenset[str] | None  # their sql_names; None if there is no publication
    sql_schemas: dict[str, str]  # schema -> name quoted by the server
    tables: tuple[FoundTable, ...]

    @property
    def capturable(self) -> list[FoundTable]:
        """Return the tables that can be captured."""
        return [table for table in self.tables if table.obstacle is None]


_TABLES = """
select n.nspname as schema, c.relname as name, quote_ident(n.nspname) || '.' || quote_ident(c.relname) as sql_name,
       c.relkind::text as kind, c.relpersistence::text as persistence,
       i.indexrelid is not null as key, coalesce(not i.indimmediate, false) as deferrable_key,
       c.relreplident::text as replica_identity,
       c.relreplident = 'i' and not coalesce(
           (select x.indkey::int2[] @> i.indkey::int2[] from pg_index x where x.indrelid = c.oid and x.indisreplident),
           false) as identity_lacks_key,
       c.relrowsecurity as row_security, e.extname as extension,
       coalesce(leaf.count, 0) as partitions, coalesce(leaf.bytes, pg_table_size(c.oid), 0)::int8 as size_bytes,
       nullif(coalesce(leaf.rows, c.reltuples), -1)::int8 as rows_estimate,
       coalesce((select has_table_privilege(r.oid, c.oid, 'select') from pg_roles r where r.rolname = %(role)s),
                has_table_privilege('public', c.oid, 'select')) as readable
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
left join pg_index i on i.indrelid = c.oid and i.indisprimary
left join pg_depend d on d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e'
left join pg_extension e on e.oid = d.refobjid
left join lateral (
    select count(*), sum(pg_table_size(t.relid)) as bytes,
           case when bool_and(l.reltuples >= 0) then sum(l.reltuples) else -1 end as rows
    from pg_partition_tree(c.oid) t join pg_class l on l.oid = t.relid
    where t.isleaf and t.relid <> c.oid
) leaf on c.relkind = 'p'
where c.relkind in ('r', 'p', 'f') and c.relpersistence <> 't' and not c.relispartition
  and n.nspname <> 'information_schema' and n.nspname not like 'pg\\_%%'
order by 1, 2
"""

_ROLE = """
select quote_ident(wanted.name) as sql_name, r.oid is not null as exists,
       coalesce(r.rolcanlogin, false) as can_login,
       coalesce(r.rolsuper or r.rolreplication or exists (
           select from pg_roles g where g.rolname = any(%(replication_roles)s) and pg_has_role(r.oid, g.oid, 'member')
       ), false) as replicates,
       coalesce(r.rolsuper or r.rolbypassrls, false) as bypasses_row_security,
       coalesce(has_database_privilege(r.oid, current_database(), 'connect'),
                has_database_privilege('public', current_database(), 'connect')) as connects,
       array(select n.nspname::text from pg_namespace n
             where coalesce(has_schema_privilege(r.oid, n.oid, 'usage'),
                            has_schema_privilege('public', n.oid, 'usage'))) as schemas
from (values (%(role)s)) wanted(name)
left join pg_roles r on r.rolname = wanted.name
"""

_SERVER = """
select current_database() as database, quote_ident(current_database()) as sql_database,
       current_setting('server_version_num')::int / 10000 as major,
       (select json_object_agg(name, current_setting(name)) from pg_settings
        where name = any(%(settings)s)) as settings,
       (select count(*) from pg_replication_slots) as slots_used,
       (select count(*) from pg_stat_replication) as senders_used
"""

_SETTINGS = ("wal_level", "max_replication_slots", "max_wal_senders", "max_slot_wal_keep_size")


def choose_role(connection: psycopg.Connection) -> str:
    """Return the DSN's user if it suits capture (it can replicate and is no superuser), else `tailrace`."""
    row = connection.execute(
        "select rolname::text from pg_roles where rolname = current_user and not rolsuper and rolreplication"
    ).fetchone()
    if row is None and memberships(connection, find_service(connection)):
        row = connection.execute("select current_user::text").fetchone()
    return DEFAULT_ROLE if row is None else str(row[0])


def survey(connection: psycopg.Connection, *, role: str, publication: str) -> Survey:
    """Read the facts about the connection's database. Refuse a standby server and a server that is too old."""
    connection.execute("set default_transaction_read_only = on; set lock_timeout = '5s'")
    _refuse_unsuitable(connection)
    try:
        return _poll(connection, role=role, publication=publication)
    except psycopg.errors.LockNotAvailable as error:
        raise TransientError(
            f"Another session has locked a table: {explain(error)}", remedy="Retry when the lock is released."
        ) from error


def _refuse_unsuitable(connection: psycopg.Connection) -> None:
    major = connection.info.server_version // 10000
    if major < OLDEST_MAJOR:
        raise RefusedError(
            f"This server is Postgres {major}; capture needs {OLDEST_MAJOR} or newer.", remedy="Upgrade the server."
        )
    row = connection.execute("select pg_is_in_recovery()").fetchone()
    if row is not None and row[0]:
        raise RefusedError(
            "This server is a standby; capture reads from the primary.", remedy="Use the DSN of the primary."
        )


def _poll(connection: psycopg.Connection, *, role: str, publication: str) -> Survey:
    service = find_service(connection)
    (server,) = _rows(connection, _SERVER, settings=list(_SETTINGS))
    (found_role,) = _rows(connection, _ROLE, role=role, replication_roles=list(service.replication_roles))
    tables = tuple(FoundTable(**row) for row in _rows(connection, _TABLES, role=role))
    schemas = _rows(connection, "select nspname::text, quote_ident(nspname) as quoted from pg_namespace")
    return Survey(
        **server,
        service=service,
        role=FoundRole(name=role, **{**found_role, "schemas": frozenset(found_role["schemas"])}),
        publication_tables=_published(connection, publication),
        sql_schemas={row["nspname"]: row["quoted"] for row in schemas},
        tables=tables,
    )


def _published(connection: psycopg.Connection, publication: str) -> frozenset[str] | None:
    if not _rows(connection, "select from pg_publication where pubname = %(name)s", name=publication):
        return None
    # Read pg_publication_rel, because pg_publication_tables lists leaf partitions instead of their root.
    entries = _rows(
        connection,
        "select quote_ident(n.nspname) || '.' || quote_ident(c.relname) as sql_name from pg_publication_rel r "
        "join pg_publication p on p.oid = r.prpubid join pg_class c on c.oid = r.prrelid "
        "join pg_namespace n on n.oid = c.relnamespace where p.pubname = %(name)s",
        name=publication,
    )
    return frozenset(row["sql_name"] for row in entries)


def _rows(connection: psycopg.Connection, query: str, **parameters: Any) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        return cursor.execute(query, parameters).fetchall()
