"""Checks of each store's `tables` and shapes: the tables exist, the expressions are valid, the store was built so."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import psycopg

from cdc.check.findings import Finding, fail, ok, warn
from cdc.config import Config, TableName
from cdc.errors import TailraceError
from cdc.names import parse_topic, topic
from cdc.postgres.catalog import SourceTable
from cdc.snapshot.table_description import describe_tables
from cdc.stores.contract import TableSchema
from cdc.stores.registry import is_store_kind, open_store
from cdc.tables import schema_record

_REMEDY = "Correct it in the config; docs/guides/shaping.md describes the allowed expressions."


class ShapeReport(NamedTuple):
    """What is wrong with the expressions of one store's shapes, each with its place in the config."""

    store: str
    #: How many tables have a shape in this store.
    tables: int
    problems: Sequence[str]


#: Analyzes the shapes of the named stores; the last argument has the known tables by topic. Spark does it, so the
#: command passes the function in.
AnalyzeShapes = Callable[[Config, Sequence[str], Mapping[str, TableSchema]], Iterable[ShapeReport]]


def judge_shapes(
    config: Config,
    connection: psycopg.Connection[Any] | None,
    tables: Sequence[SourceTable],
    analyze: AnalyzeShapes | None,
) -> Iterator[Finding]:
    """Yield the findings about `tables` and shapes of all stores.

    `connection` None: the source does not answer, so the tables and their columns are unknown.
    Without `analyze`, expressions are not checked.
    """
    chosen = [name for name, store in config.stores.items() if store.tables or store.shape]
    known = _described(config, connection, tables) if chosen and connection is not None else None
    for name in chosen:
        if known is not None:
            yield from _judge_names(config, name, known)
    shaped = [name for name in chosen if config.stores[name].shape]
    if shaped and analyze is not None:
        by_topic = {table.topic: table for table in (known or {}).values()}
        yield from _judge_reports(analyze(config, shaped, by_topic))
    for name in config.stores:
        yield from _judge_built(config, name)


def _described(
    config: Config, connection: psycopg.Connection[Any], tables: Sequence[SourceTable]
) -> dict[TableName, TableSchema]:
    """Return the tables' schemas as capture publishes them, without the columns that the config leaves out."""
    described = describe_tables(connection, config, [str(table.oid) for table in tables])
    records = [schema_record.describe(table.table(table.relation)) for table in described.values()]
    found = [TableSchema.from_record(json.dumps(record).encode()) for record in records]
    return {TableName(table.schema, table.table): table for table in found}


def _judge_names(config: Config, name: str, known: Mapping[TableName, TableSchema]) -> Iterator[Finding]:
    store, place = config.stores[name], f"store {name}"
    for selector in store.tables:
        if not any(selector.matches(*table) for table in known):
            yield warn(
                place,
                f"`tables` names {selector}, but capture publishes no such table.",
                "Correct the name in `tables`, or remove it.",
            )
    for table in store.shape:
        if table not in known:
            yield fail(
                place,
                f"There is a shape for {table}, but capture publishes no such table.",
                "Correct the table's name in the shape.",
            )


def _judge_reports(reports: Iterable[ShapeReport]) -> Iterator[Finding]:
    for report in reports:
        place = f"store {report.store}"
        for problem in report.problems:
            yield fail(place, problem, _REMEDY)
        if not report.problems:
            yield ok(place, f"The expressions in its shape are valid, for {report.tables} tables.")


def _judge_built(config: Config, name: str) -> Iterator[Finding]:
    """Compare the config with the store's serving generation, which keeps the shape with which it was built."""
    settings = config.stores[name]
    if not is_store_kind(settings.kind):
        return
    try:
        with closing(open_store(name, settings, config.kafka.prefix)) as store:
            serving = store.serving()
            position = store.position(serving) if serving is not None else None
    except TailraceError:  # `judge_stores` reports it
        return
    if position is None:
        return
    wanted = {topic(config.kafka.prefix, *table): shape.text() for table, shape in settings.shape.items()}
    other = [found for found, place in position.topics.items() if place.shape != wanted.get(found, "")]
    remedy = f"Build it again: tailrace bootstrap {name}"
    if other:
        yield warn(
            f"store {name}", f"It was built with another shape than the config has now: {', '.join(other)}.", remedy
        )
    parsed = {found: parse_topic(found) for found in position.topics}
    unlisted = [
        found for found, table in parsed.items() if table is not None and not settings.gets(table.schema, table.table)
    ]
    if unlisted:
        yield warn(f"store {name}", f"It has tables that its `tables` does not list: {', '.join(unlisted)}.", remedy)
