"""Checks of each store's `tables` and shapes: the tables exist, the expressions are valid, the store was built so."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import psycopg

from cdc.check.findings import Finding, fail, ok, warn
from cdc.config import Config, TableName
from cdc.errors import TailraceError
from cdc.names import parse_topic, topic
from cdc.postgres.catalog import SourceTable
from cdc.snapshot.table_description import describe_tables
from cdc.tables import schema_record
from sinks.contract import TableSchema
from sinks.registry import KINDS, open_store

_REMEDY = "Correct it in the config; docs/guides/shaping.md describes the allowed expressions."


def judge_shapes(
    config: Config, connection: psycopg.Connection[Any] | None, tables: Sequence[SourceTable]
) -> Iterator[Finding]:
    """Yield the findings about `tables` and shapes of all stores.

    `connection` None: the source does not answer, so the tables and their columns are unknown.
    """
    chosen = [name for name, store in config.stores.items() if store.tables or store.shape]
    known = _described(config, connection, tables) if chosen and connection is not None else None
    for name in chosen:
        if known is not None:
            yield from _judge_names(config, name, known)
    shaped = [name for name in chosen if config.stores[name].shape]
    if shaped:
        yield from _judge_expressions(config, shaped, known or {})
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


def _judge_expressions(
    config: Config, names: Sequence[str], known: Mapping[TableName, TableSchema]
) -> Iterator[Finding]:
    from spark_jobs.shape.config_places import place_of  # noqa: PLC0415 - as below
    from spark_jobs.shape.short_session import borrowed_session  # noqa: PLC0415 - Spark is slow to import
    from spark_jobs.shape.store_tables import shape_problems_in  # noqa: PLC0415 - as above

    tables = {table.topic: table for table in known.values()}
    with borrowed_session(config, "tailrace-check") as spark:
        for name in names:
            found = shape_problems_in(config.stores[name], spark, tables)
            for table, problems in found.items():
                for problem in problems:
                    place = place_of(config, name, table, problem)
                    yield fail(f"store {name}", f"{place}: {problem}.", _REMEDY)
            if not any(found.values()):
                yield ok(f"store {name}", f"The expressions in its shape are valid, for {len(found)} tables.")


def _judge_built(config: Config, name: str) -> Iterator[Finding]:
    """Compare the config with the store's serving generation, which keeps the shape with which it was built."""
    settings = config.stores[name]
    if settings.kind not in KINDS:
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
