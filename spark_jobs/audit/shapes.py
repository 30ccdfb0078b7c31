"""The rows that a store must hold if it gets a table in a shape of its own (docs/guides/shaping.md)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from cdc.stores.contract import TableSchema
from spark_jobs.shape.evaluation import with_shapes
from spark_jobs.shape.shaped_rows import FailedRow, RowShape, shaped_row
from spark_jobs.shape.small_batches import shape_rows
from spark_jobs.shape.store_tables import StoreTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Stands for a row for which an expression failed. It equals no row's content: the sync parked the row, and the store
#: keeps the row's previous state.
UNKNOWN = b"?"


def takes(store_tables: StoreTables, table: TableSchema) -> bool:
    """Return whether the store gets this table."""
    return table.topic in store_tables.source


class ExpectedRows:
    """Returns the row that a store must hold for a row of the topic; None if the shape leaves the row out.

    It runs in the driver, for few rows. `learn` evaluates many rows in one Spark job and caches the results.
    """

    def __init__(self, store_tables: StoreTables, topic: str) -> None:
        self._store_tables = store_tables
        self._topic = topic
        self._known: dict[bytes, bytes | None] = {}

    def learn(self, rows: Collection[bytes]) -> None:
        """Evaluate those rows that are not in the cache."""
        unknown = [row for row in set(rows) if row not in self._known]
        if unknown:
            found = shape_rows(self._store_tables, [(self._topic, row) for row in unknown])
            for row, shaped in zip(unknown, found, strict=True):
                self._known[row] = UNKNOWN if isinstance(shaped, FailedRow) else shaped

    def __call__(self, row: bytes) -> bytes | None:
        self.learn([row])
        return self._known[row]


def shaped_frame(frame: DataFrame, shaped_stores: Mapping[str, StoreTables], topic: str) -> DataFrame:
    """Add a column with the evaluated shape for each store whose shape has expressions."""
    for number, (_, store_tables) in enumerate(sorted(shaped_stores.items())):
        shape = store_tables.shapes[topic]
        if shape.row.evaluated:
            frame = with_shapes(frame, {topic: shape}).withColumnRenamed("shaped", shaped_column(number))
    return frame


def shaped_column(number: int) -> str:
    """Return the name of the column that `shaped_frame` adds; `number`: the store's place among the sorted names."""
    return f"shaped{number}"


def expected_row(shape: RowShape, after: bytes, found: dict[str, Any] | None) -> bytes | None:
    """Return the row in the store's shape, None if the shape leaves it out, `UNKNOWN` if an expression failed."""
    row = shaped_row(shape, after, found)
    return UNKNOWN if isinstance(row, FailedRow) else row
