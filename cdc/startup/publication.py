"""Selects the tables that the config names, and creates or checks the publication that contains them."""

from __future__ import annotations

import psycopg

from cdc.check.findings import Level
from cdc.check.publication import judge_content, read_publication
from cdc.check.tables import read_tables
from cdc.config import Config
from cdc.config.source import SourceConfig
from cdc.errors import RefusedError
from cdc.logs import get_logger
from cdc.postgres import catalog
from cdc.postgres.catalog import Publication, SourceTable
from cdc.postgres.connection import explain
from cdc.tables.catalog_state import read_catalog_states
from cdc.tables.mask_rules import refuse_unfit

log = get_logger("startup")


def choose_tables(source: SourceConfig, connection: psycopg.Connection) -> list[SourceTable]:
    """Return the tables that the config selects.

    A table that cannot be captured raises RefusedError if the config names it, and logs a warning if `schema.*` selects
    it.
    """
    named = {(selector.schema, selector.table) for selector in source.tables if selector.table is not None}
    found = catalog.tables(connection, source.tables)
    for schema_name, name in sorted(named - {(table.schema, table.name) for table in found}):
        raise RefusedError(
            f"Table {schema_name}.{name} of [source] tables does not exist (or is temporary or unlogged).",
            remedy="Create the table, or remove it from [source] tables.",
        )
    chosen = []
    for table in found:
        problem = catalog.why_not_captured(table)
        if problem is None:
            chosen.append(table)
        elif (table.schema, table.name) in named:
            raise RefusedError(f"Table {table} cannot be captured: {problem[0]}.", remedy=problem[1])
        else:
            log.warning("table_left_out", table=str(table), reason=problem[0], remedy=problem[1])
    if not chosen:
        raise RefusedError("No table to capture.", remedy="Correct [source] tables. Every table needs a primary key.")
    return chosen


def ensure_publication(
    config: Config, connection: psycopg.Connection, chosen: list[SourceTable], *, add: bool = False
) -> Publication:
    """Return the publication, with all of these tables in it. Create it if it does not exist.

    `add`: add the tables that an existing publication lacks. Otherwise raise RefusedError for them.
    """
    name = config.source.publication
    refuse_unfit(
        config,
        read_catalog_states(connection, [str(table.oid) for table in chosen], prefix=config.kafka.prefix).values(),
    )
    publication = catalog.publication(connection, name)
    if publication is not None:
        _refuse_unfit_publication(config.source, connection, chosen)
    if publication is None:
        _create(connection, name, chosen)
        log.info("publication_created", publication=name, tables=len(chosen))
    elif lacking := lacking_tables(publication, chosen):
        if not add:
            raise _uncovered(name, lacking)
        _add(connection, name, lacking)
    publication = catalog.publication(connection, name)
    assert publication is not None  # noqa: S101  # it existed before, or was just created
    return publication


def _refuse_unfit_publication(source: SourceConfig, connection: psycopg.Connection, chosen: list[SourceTable]) -> None:
    """Raise RefusedError if an existing publication does not send all changes: the topics would silently lack some."""
    facts = read_publication(connection, source.publication)
    row = connection.execute("select quote_ident(%s)", [source.publication]).fetchone()
    if facts is None or row is None:
        return
    known = list(read_tables(connection, chosen).values())
    allowed = source.allow_publication_filters
    for finding in judge_content(source.publication, row[0], facts, known, allow_filters=allowed):
        if finding.level is Level.FAIL:
            raise RefusedError(f"Publication {source.publication}: {finding.what}", remedy=finding.remedy)


def lacking_tables(publication: Publication | None, chosen: list[SourceTable]) -> list[SourceTable]:
    """Return the chosen tables that the publication does not contain."""
    known = {} if publication is None else publication.tables
    return [table for table in chosen if str(table.oid) not in known]


def _create(connection: psycopg.Connection, name: str, chosen: list[SourceTable]) -> None:
    try:
        catalog.create_publication(connection, name, chosen)
    except psycopg.errors.InsufficientPrivilege as error:
        raise RefusedError(
            f"The role may not create publication {name}: {explain(error)}.",
            remedy=f"As the tables' owner run: create publication {name} for table {_list(chosen)};",
        ) from error


def _add(connection: psycopg.Connection, name: str, lacking: list[SourceTable]) -> None:
    try:
        for table in lacking:
            catalog.add_to_publication(connection, name, table)
    except psycopg.errors.InsufficientPrivilege as error:
        raise RefusedError(
            f"The role may not alter publication {name}: {explain(error)}.",
            remedy=f"As its owner run: alter publication {name} add table {_list(lacking)};",
        ) from error
    log.info("publication_altered", publication=name, added=[str(table) for table in lacking])


def _uncovered(name: str, lacking: list[SourceTable]) -> RefusedError:
    return RefusedError(
        f"Publication {name} exists, but lacks {_list(lacking)}.",
        remedy=f"Run: alter publication {name} add table {_list(lacking)}; or drop it, and capture creates it again.",
    )


def _list(tables: list[SourceTable]) -> str:
    return ", ".join(str(table) for table in tables)
