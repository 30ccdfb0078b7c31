"""Checks of the publication: existence, tables, published operations, row filters, column lists, and alterations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from cdc.check.findings import Finding, fail, ok, refusal, warn
from cdc.check.role import RoleFacts
from cdc.check.tables import TableFacts
from cdc.errors import RefusedError
from cdc.positions import continuity
from cdc.positions.progress import Progress
from cdc.postgres.catalog import Publication, SourceTable

_KINDS_OF_CHANGE = ("insert", "update", "delete", "truncate")
_ENTRIES = """
select r.prrelid::text, format('%%I.%%I', n.nspname, c.relname),
       pg_get_expr(r.prqual, r.prrelid), r.prattrs is not null
from pg_publication_rel r
join pg_class c on c.oid = r.prrelid
join pg_namespace n on n.oid = c.relnamespace
where r.prpubid = %s::int8::oid
order by 2
"""
_ENTRIES_OF_14 = """
select r.prrelid::text, format('%%I.%%I', n.nspname, c.relname), null, false
from pg_publication_rel r
join pg_class c on c.oid = r.prrelid
join pg_namespace n on n.oid = c.relnamespace
where r.prpubid = %s::int8::oid
order by 2
"""
_ANEW = "Capture refuses a publication that is altered after capture's first start: run `tailrace recover` then."


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationFacts:
    """The publication in the catalog.

    `row_filters`: the tables with a row filter, and its condition. `column_lists`: the tables with a column list. Both
    exist from Postgres 15 on.
    """

    all_tables: bool
    schemas: tuple[str, ...]
    unpublished: tuple[str, ...]  # operations that it does not publish
    via_root: bool
    generated_columns: bool
    row_filters: Mapping[str, str]
    column_lists: frozenset[str]
    tables: Mapping[str, str]  # oid -> quoted name


def read_publication(connection: psycopg.Connection, name: str) -> PublicationFacts | None:
    """Read the publication from the catalog. None: it does not exist."""
    row = connection.execute("select to_jsonb(p) from pg_publication p where p.pubname = %s", [name]).fetchone()
    if row is None:
        return None
    catalog_row: dict[str, Any] = row[0]  # the columns differ between major versions
    oid, modern = int(catalog_row["oid"]), connection.info.server_version >= 150_000
    entries = connection.execute(_ENTRIES if modern else _ENTRIES_OF_14, [oid]).fetchall()
    schemas = (
        connection.execute(
            "select pnnspid::regnamespace::text from pg_publication_namespace where pnpubid = %s::int8::oid", [oid]
        ).fetchall()
        if modern
        else []
    )
    return PublicationFacts(
        all_tables=catalog_row["puballtables"],
        schemas=tuple(each[0] for each in schemas),
        unpublished=tuple(kind for kind in _KINDS_OF_CHANGE if not catalog_row[f"pub{kind}"]),
        via_root=catalog_row["pubviaroot"],
        generated_columns=catalog_row.get("pubgencols") == "s",
        row_filters={entry[1]: entry[2] for entry in entries if entry[2] is not None},
        column_lists=frozenset(entry[1] for entry in entries if entry[3]),
        tables={entry[0]: entry[1] for entry in entries},
    )


def creation_sql(quoted_name: str, tables: Sequence[TableFacts]) -> str:
    """Return the statement with which capture creates the publication, for an operator to run."""
    names = ", ".join(f"only {facts.quoted}" for facts in tables)
    return (
        f"create publication {quoted_name} for table {names} "
        "with (publish = 'insert, update, delete, truncate', publish_via_partition_root = false);"
    )


def judge_missing(
    name: str, quoted_name: str, chosen: Sequence[TableFacts], role: RoleFacts, progress: Progress | None
) -> Iterator[Finding]:
    """Yield the finding about a publication that does not exist.

    After the first start this is a failure. Before it, the check is whether capture's role may create the publication.
    """
    place = f"publication {name}"
    if progress is not None and progress.state != "creating":
        yield _identity(place, name, progress, None, set())
        return
    foreign = [facts.quoted for facts in chosen if not facts.owned]
    obstacles = []
    if not role.may_create_in_database:
        obstacles.append("may not create in this database")
    if foreign:
        obstacles.append(f"does not own {', '.join(foreign)}")
    if not chosen:
        yield warn(
            place,
            "It does not exist, and there is no table to put into it yet.",
            "See the findings about the tables.",
        )
    elif obstacles:
        yield fail(
            place,
            f"It does not exist, and role {role.name} cannot create it: the role {' and '.join(obstacles)}.",
            f"As the tables' owner, with CREATE on the database, run: {creation_sql(quoted_name, chosen)}",
        )
    else:
        yield ok(place, "capture creates it on its first start")


def judge_publication(
    name: str,
    quoted_name: str,
    facts: PublicationFacts,
    chosen: Mapping[SourceTable, TableFacts],
    *,
    allow_filters: bool = False,
) -> Iterator[Finding]:
    """Yield the findings about an existing publication. `allow_filters`: row filters and column lists only warn."""
    place = f"publication {name}"
    problems = list(judge_content(name, quoted_name, facts, list(chosen.values()), allow_filters=allow_filters))
    if not facts.all_tables and not facts.schemas:
        problems += _coverage(place, quoted_name, facts, chosen)
    yield from problems
    if not problems:
        yield ok(place, "has every selected table and publishes all changes of whole rows")


def judge_content(
    name: str, quoted_name: str, facts: PublicationFacts, chosen: Sequence[TableFacts], *, allow_filters: bool
) -> Iterator[Finding]:
    """Yield the changes of its tables that the publication leaves out, or publishes in a form capture cannot follow."""
    place = f"publication {name}"
    yield from _shape(place, quoted_name, facts, chosen)
    yield from _rows(place, quoted_name, facts, warn if allow_filters else fail)


def judge_identity(
    name: str, publication: Publication | None, progress: Progress, existing_tables: set[str]
) -> Iterator[Finding]:
    """Check that the publication is the one in the progress record, and unaltered."""
    yield _identity(f"publication {name}", name, progress, publication, existing_tables)


def _identity(
    place: str, name: str, progress: Progress, publication: Publication | None, existing_tables: set[str]
) -> Finding:
    try:
        continuity.check_publication(progress, publication, name=name, existing_tables=existing_tables)
    except RefusedError as error:
        return refusal(place, error, _ANEW)
    return ok(place, "it was not altered since capture last read it")


def _shape(place: str, quoted: str, facts: PublicationFacts, chosen: Sequence[TableFacts]) -> Iterator[Finding]:
    again = f"drop publication {quoted}; {creation_sql(quoted, chosen)}"
    if facts.all_tables:
        yield fail(
            place,
            "It is FOR ALL TABLES: it gains and loses tables without a record that capture could check.",
            f"Before capture's first start run: {again}",
        )
    elif facts.schemas:
        yield fail(
            place,
            f"It is FOR TABLES IN SCHEMA {', '.join(facts.schemas)}: it gains and loses tables without a record that "
            "capture could check.",
            f"Before capture's first start run: {again}",
        )
    if facts.unpublished:
        yield fail(
            place,
            f"It does not publish {', '.join(facts.unpublished)}.",
            f"Run: alter publication {quoted} set (publish = 'insert, update, delete, truncate'); {_ANEW}",
        )
    if facts.via_root:
        yield fail(
            place,
            "publish_via_partition_root is true: capture would not see TRUNCATE or DETACH of a partition.",
            f"Run: alter publication {quoted} set (publish_via_partition_root = false); {_ANEW}",
        )


def _rows(
    place: str, quoted: str, facts: PublicationFacts, judge: Callable[[str, str, str], Finding]
) -> Iterator[Finding]:
    """Yield the row filters and column lists. Capture refuses them unless [source] allow_publication_filters is set."""
    for table, condition in facts.row_filters.items():
        yield judge(
            place,
            f"Table {table} has a row filter, WHERE {condition}: rows that stop matching it would stay in the stores.",
            f"Run: alter publication {quoted} drop table {table}; "
            f"alter publication {quoted} add table only {table}; {_ANEW}",
        )
    for table in sorted(facts.column_lists):
        yield judge(
            place,
            f"Table {table} has a column list: the events would not hold whole rows.",
            f"Run: alter publication {quoted} drop table {table}; "
            f"alter publication {quoted} add table only {table}; {_ANEW}",
        )


def _coverage(
    place: str, quoted: str, facts: PublicationFacts, chosen: Mapping[SourceTable, TableFacts]
) -> list[Finding]:
    found = []
    lacking = [known.quoted for table, known in chosen.items() if str(table.oid) not in facts.tables]
    if lacking:
        names = ", ".join(f"only {each}" for each in lacking)
        found.append(
            fail(
                place,
                f"It lacks {', '.join(lacking)}.",
                f"As its owner run: alter publication {quoted} add table {names}; {_ANEW}",
            )
        )
    selected = {str(table.oid) for table in chosen}
    extra = [name for oid, name in facts.tables.items() if oid not in selected]
    if extra:
        found.append(
            warn(
                place,
                f"It also has {', '.join(extra)}, which [source] tables does not select: capture publishes these too.",
                "Add them to [source] tables; or, before capture's first start, run: "
                f"alter publication {quoted} drop table {', '.join(extra)};",
            )
        )
    return found
