"""Runs Spark SQL queries over the present or a past state of the warehouse. Read-only.

A past state is a set of views over the history tables. The views have the names of the current tables, in Spark's own
session catalog, so the same query runs over both.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from cdc.errors import UsageError
from cdc.lsn import LSN
from sinks.iceberg import naming, statements
from sinks.iceberg.naming import CATALOG
from sinks.iceberg.schemas import CURRENT_OWN, HISTORY_OWN
from sinks.iceberg.store import IcebergStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_READING: Final = re.compile(
    r"\s*(?:--[^\n]*\n\s*|/\*.*?\*/\s*)*(select|with|values|show|describe|desc|explain|from|table)\b",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOf:
    """A past state: `position` or `at_us` is set.

    `position` means everything that committed before this LSN (plus the base). `at_us` is a time by the source's
    clock.
    """

    text: str
    position: int | None = None
    at_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """A query's result. `warnings` say why a past state may not be exact."""

    frame: DataFrame
    warnings: list[str] = field(default_factory=list)


def parse_as_of(text: str, base: int = 0) -> AsOf:
    """Parse an LSN such as `16/B374D848`, or an ISO 8601 time. A time without a zone is UTC."""
    try:
        return AsOf(text=text, position=int(LSN.parse(text)) + base)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise UsageError(
            f"Neither an LSN nor a time: {text}.", remedy="Use a form such as 16/B374D848 or 2026-01-31T12:00:00Z."
        ) from error
    at = at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)
    since = at - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return AsOf(text=text, at_us=(since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)


def query_warehouse(spark: SparkSession, store: IcebergStore, sql: str, as_of: AsOf | None = None) -> QueryResult:
    """Run the query over the present state, or over the state `as_of`.

    `spark` is a session that only this query uses, with the warehouse's catalog.
    """
    if _READING.match(sql) is None:
        raise UsageError("A query must only read: start it with SELECT or WITH.", remedy="Write to the source instead.")
    state = store.state()
    if state.serving is None:
        raise UsageError("The warehouse serves no generation yet.", remedy=f"tailrace sync {store.name}")
    if as_of is None:
        spark.sql(f"USE {CATALOG}")
        return QueryResult(frame=spark.sql(sql))
    reached = state.generations[state.serving].position
    if as_of.position is not None and as_of.position > max(reached.version.position, reached.lsn):
        raise UsageError(
            f"The warehouse has everything up to {LSN(reached.lsn)}, but not up to {as_of.text} yet.",
            remedy=f"Wait for it: tailrace wait {store.name} --lsn {as_of.text}",
        )
    show_past(spark, store, as_of)
    spark.sql("USE spark_catalog")
    return QueryResult(frame=spark.sql(sql), warnings=_warnings(store, as_of))


def show_past(spark: SparkSession, store: IcebergStore, as_of: AsOf) -> None:
    """Create a view of the past state for each table that has a history, under the name of the table."""
    for name, *_ in store.catalog.list_namespaces():
        if not naming.is_history(name):
            continue
        database = view_name(name.removesuffix("__history"))
        folder = tempfile.gettempdir()
        spark.sql(f"CREATE DATABASE IF NOT EXISTS spark_catalog.{database} LOCATION '{folder}/tailrace-{database}'")
        for _, table in store.catalog.list_tables(name):
            spark.sql(
                f"CREATE OR REPLACE VIEW spark_catalog.{database}.{view_name(table)} AS "
                + past_rows(store, (name, table), as_of)
            )


def past_rows(store: IcebergStore, history: naming.Identifier, as_of: AsOf) -> str:
    """Return a SELECT of the table's past rows, with the columns of the current table, or else of the history."""
    current = (history[0].removesuffix("__history"), history[1])
    described = store.tables.load(current) or store.tables.load(history)
    fields = [each.name for each in described.schema().fields] if described is not None else []
    columns = [each for each in fields if each not in CURRENT_OWN and each not in HISTORY_OWN]
    if as_of.position is not None:
        return statements.as_of_position(history, columns, as_of.position)
    return statements.as_of_time(history, columns, as_of.at_us or 0)


def view_name(name: str) -> str:
    """Return the quoted name of the view.

    Warehouse names have a dash for characters that are not letters. Spark's own catalog accepts no dash, so it
    becomes an underscore.
    """
    return statements.quoted_name(name.replace("-", "_"))


def _warnings(store: IcebergStore, as_of: AsOf) -> list[str]:
    return [
        f"{gap.topic}: the history lacks versions between {LSN(gap.from_position)} and {LSN(gap.to_position)}."
        for gap in store.state().gaps
        if (as_of.position is not None and as_of.position < gap.to_position)
        or (as_of.at_us is not None and as_of.at_us < gap.until_ms * 1000)
    ]
