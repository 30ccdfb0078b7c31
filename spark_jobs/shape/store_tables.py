"""The tables that a store gets, each in the shape in which the store's rows were written.

A store's position records each topic's shape. A generation keeps its shapes even if the config changes, because rows of
two shapes in one table would be inconsistent. A bootstrap builds the next generation in the new shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from cdc.config import Config, TableName, TableShape
from cdc.config.shape import Shaped
from cdc.errors import RefusedError, UsageError
from cdc.stores.contract import Position, TableSchema
from spark_jobs.shape.analysis import CompiledShape, ShapeProblem, compile_shape, parse_problems
from spark_jobs.shape.config_errors import shape_error
from spark_jobs.shape.evaluation import shape_session, with_shapes
from spark_jobs.shape.shaped_rows import RowShape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Tables = Mapping[str, TableSchema]
_NOTHING_READ = Position()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTables:
    """The tables of one store, by topic.

    `source`: the tables as capture describes them. `schemas`: the tables as the store sees them. `texts`: their
    shapes as texts, "" for no shape. `spark`: the session for these shapes. `shapes`: the compiled shapes. `due`:
    messages about changes in the config that take effect only with a bootstrap.
    """

    source: dict[str, TableSchema]
    schemas: dict[str, TableSchema]
    texts: dict[str, str]
    spark: SparkSession
    shapes: dict[str, CompiledShape] = field(default_factory=dict)
    due: list[str] = field(default_factory=list)

    @property
    def rows(self) -> dict[str, RowShape]:
        """The part of each shape that tasks need, by topic."""
        return {topic: shape.row for topic, shape in self.shapes.items()}

    def evaluated(self, records: DataFrame) -> DataFrame:
        """Add the column `shaped` to the records if any table has expressions; otherwise return the records as is."""
        shapes = {topic: shape for topic, shape in self.shapes.items() if shape.row.evaluated}
        return with_shapes(records, shapes) if shapes else records

    def placed(self, position: Position) -> Position:
        """Return the position with each topic's shape in it."""
        topics = {
            topic: msgspec.structs.replace(place, shape=self.texts.get(topic, ""))
            for topic, place in position.topics.items()
        }
        return msgspec.structs.replace(position, topics=topics)


def chosen_tables(settings: Shaped, tables: Tables, position: Position = _NOTHING_READ) -> dict[str, TableSchema]:
    """Return the tables that the config lists for the store, and those that the store already holds.

    A table that the store holds must still get its changes. Otherwise its rows would become stale without notice.
    """
    return {
        topic: table
        for topic, table in tables.items()
        if settings.gets(table.schema, table.table) or topic in position.topics
    }


def build_store_tables(
    config: Config, name: str, spark: SparkSession, tables: Tables, position: Position = _NOTHING_READ
) -> StoreTables:
    """Return the tables of store `name`. `spark`: any session of the application.

    Tables in `position` keep the shape recorded there. The others get the config's shape.
    """
    settings = config.stores[name]
    source = chosen_tables(settings, tables, position)
    wanted = {topic: _text(settings, table) for topic, table in source.items()}
    texts = {topic: position.topics[topic].shape if topic in position.topics else wanted[topic] for topic in source}
    session = shape_session(spark) if any(texts.values()) else spark
    shapes: dict[str, CompiledShape] = {}
    for topic, text in texts.items():
        if text:
            shape, built = TableShape.from_text(text), topic in position.topics
            found = compile_shape(session, source[topic], shape, lenient=built)
            if not isinstance(found, CompiledShape):
                if built:
                    raise _outlived(name, source[topic], found)
                raise shape_error(config, name, {TableName(source[topic].schema, source[topic].table): found})
            shapes[topic] = found
    return StoreTables(
        source=source,
        schemas={topic: shapes[topic].schema if topic in shapes else table for topic, table in source.items()},
        texts=texts,
        spark=session,
        shapes=shapes,
        due=[*_due(name, settings, source, texts, wanted)],
    )


def _text(settings: Shaped, table: TableSchema) -> str:
    shape = settings.shape_of(table.schema, table.table)
    return shape.text() if shape is not None else ""


def _outlived(name: str, table: TableSchema, problems: Sequence[ShapeProblem]) -> RefusedError:
    return RefusedError(
        f"{table} no longer fits the shape that store {name} was built with: {problems[0]}.",
        remedy=f"Change the shape in the config, then rebuild the store: tailrace bootstrap {name}",
    )


def _due(name: str, settings: Shaped, source: Tables, texts: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    other = [str(table) for topic, table in source.items() if texts[topic] != wanted[topic]]
    gone = [str(table) for table in source.values() if not settings.gets(table.schema, table.table)]
    found = []
    if other:
        found.append(f"Store {name} holds these tables in another shape than the config's: {', '.join(other)}.")
    if gone:
        found.append(f"Store {name} holds tables that the config no longer lists: {', '.join(gone)}.")
    return found


def refuse_bad_shapes(config: Config, names: Sequence[str], spark: SparkSession, tables: Tables) -> None:
    """Raise one error with all errors in these stores' shapes; called before a job starts."""
    problems = [error for name in names for error in [_error_in(config, name, spark, tables)] if error is not None]
    if problems:
        raise UsageError("\n".join(error.message for error in problems))


def _error_in(config: Config, name: str, spark: SparkSession, tables: Tables) -> UsageError | None:
    settings = config.stores[name]
    if not settings.shape:
        return None
    found = {table: problems for table, problems in shape_problems_in(settings, spark, tables).items() if problems}
    return shape_error(config, name, found) if found else None


def shape_problems_in(settings: Shaped, spark: SparkSession, tables: Tables) -> dict[TableName, list[ShapeProblem]]:
    """Return the errors of a store's shapes by table.

    If capture has not published a table yet, only the errors that do not depend on its columns are found.
    """
    by_name = {TableName(table.schema, table.table): table for table in tables.values()}
    session = shape_session(spark)
    found: dict[TableName, list[ShapeProblem]] = {}
    for name, shape in settings.shape.items():
        table = by_name.get(name)
        compiled = parse_problems(session, shape) if table is None else compile_shape(session, table, shape)
        found[name] = compiled if isinstance(compiled, list) else []
    return found
