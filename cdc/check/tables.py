"""Checks of the selected tables: existence, primary key, replica identity, and privileges of capture's role."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psycopg

from cdc.check.findings import Finding, fail, ok, warn
from cdc.config.tables import TableSelector
from cdc.postgres.catalog import SourceTable

_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "c": "a composite type",
    "i": "an index",
    "I": "an index",
}
_FACTS = """
select c.oid::int8, format('%%I.%%I', n.nspname, c.relname), quote_ident(n.nspname),
       has_schema_privilege(n.oid, 'usage'), has_table_privilege(c.oid, 'select'), pg_has_role(c.relowner, 'usage'),
       pg_get_userbyid(c.relowner)::text, row_security_active(c.oid),
       array(select a.attname::text from pg_attribute a
             where a.attrelid = c.oid and a.attgenerated = 's' and not a.attisdropped order by a.attnum)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.oid = any(%s::int8[]::oid[])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """Facts about a table that `catalog.tables` does not return. Names are quoted for SQL."""

    quoted: str
    quoted_schema: str
    may_use_schema: bool
    may_select: bool
    owned: bool  # the role is the owner or inherits from it
    owner: str
    row_security_hides: bool
    generated: tuple[str, ...]  # stored generated columns


def read_tables(connection: psycopg.Connection, tables: Sequence[SourceTable]) -> dict[int, TableFacts]:
    """Return the facts about each table, by its oid."""
    rows = connection.execute(_FACTS, [[table.oid for table in tables]]).fetchall()
    return {
        row[0]: TableFacts(
            quoted=row[1],
            quoted_schema=row[2],
            may_use_schema=row[3],
            may_select=row[4],
            owned=row[5],
            owner=row[6],
            row_security_hides=row[7],
            generated=tuple(row[8]),
        )
        for row in rows
    }


def capturable(table: SourceTable, facts: TableFacts) -> bool:
    """Return whether every logged change of the table has the row's primary key, so that capture can publish it."""
    return next(_key_problems(table, facts), None) is None


def judge_tables(
    tables: Sequence[SourceTable], facts: dict[int, TableFacts], *, role: str, generated_published: bool
) -> Iterator[Finding]:
    """Yield the findings about the existing tables.

    `role`: quoted for SQL. `generated_published`: the publication includes stored generated columns.
    """
    for table in tables:
        known = facts.get(table.oid)
        if known is None:
            continue  # dropped after `catalog.tables` listed it
        problems = [*_key_problems(table, known), *_reading_problems(table, known, role)]
        yield from problems
        if not problems:
            key = ", ".join(table.key)
            identity = " and replica identity FULL" if table.replica_identity == "f" else ""
            yield ok(_place(table), f"has the key ({key}){identity}, and the role may read it")
        if known.generated:
            yield _generated(table, known.generated, published=generated_published)


def missing_tables(
    connection: psycopg.Connection, selectors: Sequence[TableSelector], found: Sequence[SourceTable]
) -> Iterator[Finding]:
    """Yield the tables in the config that capture cannot find, and the unlogged tables that `schema.*` leaves out."""
    names = {(table.schema, table.name) for table in found}
    for selector in selectors:
        if selector.table is None:
            yield from _passed_over(connection, selector, names)
        elif (selector.schema, selector.table) not in names:
            yield _why_missing(connection, selector)


def _key_problems(table: SourceTable, facts: TableFacts) -> Iterator[Finding]:
    place, leave = _place(table), "Or remove it from [source] tables. Until then, schema.* leaves the table out."
    if not table.key:
        yield fail(
            place,
            "It has no primary key, so nothing identifies its rows.",
            f"As its owner run: alter table {facts.quoted} add primary key (…); {leave}",
        )
    if table.replica_identity == "n":
        yield fail(
            place,
            "Its replica identity is NOTHING: updates and deletes do not identify the row.",
            f"As its owner run: alter table {facts.quoted} replica identity default; {leave}",
        )
    elif table.deferrable_key and table.replica_identity != "f":
        yield fail(
            place,
            "Its primary key is deferrable: Postgres does not use it as replica identity, so it logs no old keys.",
            f"As its owner run: alter table {facts.quoted} replica identity full;",
        )
    elif table.identity_lacks_key:
        yield fail(
            place,
            "Its replica identity is an index without the whole primary key: deletes do not contain the key.",
            f"As its owner run: alter table {facts.quoted} replica identity default;",
        )


def _reading_problems(table: SourceTable, facts: TableFacts, role: str) -> Iterator[Finding]:
    place = _place(table)
    grants = []
    if not facts.may_use_schema:
        grants.append(f"grant usage on schema {facts.quoted_schema} to {role};")
    if not facts.may_select:
        grants.append(f"grant select on {facts.quoted} to {role};")
    if grants:
        yield fail(place, "The role may not read it.", f"As its owner run: {' '.join(grants)}")
    if facts.row_security_hides:
        yield fail(
            place,
            "Row-level security would hide rows from the role.",
            f"As a superuser run: alter role {role} bypassrls; "
            f"(or, unless the policies are forced, make the role a member of the owner {facts.owner}).",
        )


def _generated(table: SourceTable, columns: Sequence[str], *, published: bool) -> Finding:
    how = "are published" if published else "are not in the stream, so the events do not contain them"
    return ok(_place(table), f"its stored generated columns ({', '.join(columns)}) {how}")


def _why_missing(connection: psycopg.Connection, selector: TableSelector) -> Finding:
    place = f"table {selector}"
    row = connection.execute(
        "select c.relkind::text, c.relpersistence::text, format('%%I.%%I', n.nspname, c.relname) from pg_class c "
        "join pg_namespace n on n.oid = c.relnamespace where n.nspname = %s and c.relname = %s",
        [selector.schema, selector.table],
    ).fetchone()
    if row is None:
        return fail(place, "It does not exist.", "Create it, or remove it from [source] tables.")
    kind, persistence, quoted = row
    if kind in ("r", "p") and persistence == "u":
        return fail(
            place,
            "It is unlogged: its changes are not in the WAL.",
            f"As its owner run: alter table {quoted} set logged; or remove it from [source] tables.",
        )
    what = "temporary" if persistence == "t" else _KINDS.get(kind, f"of another kind ({kind})")
    return fail(place, f"It is {what}, whose changes are not in the WAL.", "Remove it from [source] tables.")


def _passed_over(
    connection: psycopg.Connection, selector: TableSelector, names: set[tuple[str, str]]
) -> Iterator[Finding]:
    if not any(schema == selector.schema for schema, _ in names):
        yield fail(
            f"table {selector}",
            f"There is no table in schema {selector.schema}, or no such schema.",
            "Create one, or correct [source] tables.",
        )
    rows = connection.execute(
        "select format('%%I.%%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        "where n.nspname = %s and c.relkind = 'r' and c.relpersistence = 'u' order by 1",
        [selector.schema],
    ).fetchall()
    for (quoted,) in rows:
        yield warn(
            f"table {quoted}",
            "It is unlogged: its changes are not in the WAL, so capture leaves it out.",
            f"To capture it, run as its owner: alter table {quoted} set logged;",
        )


def _place(table: SourceTable) -> str:
    return f"table {table}"
