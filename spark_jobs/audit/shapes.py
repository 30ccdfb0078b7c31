"""The rows that a store must hold if it gets a table in a shape of its own (docs/guides/shaping.md)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from cdc.stores.contract import TableSchema
from spark_jobs.shape.evaluation import with_shapes
from spark_jobs.shape.shaped_rows import RowShape, Troubled, shaped_row
from spark_jobs.shape.small_batches import shape_few
from spark_jobs.shape.store_tables import FedTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Stands for a row for which an expression failed. It equals no row's content: the sync parked the row, and the store
#: keeps the row's previous state.
UNKNOWN = b"?"


def takes(fed: FedTables, table: TableSchema) -> bool:
    """Return whether the store gets this table."""
    return table.topic in fed.source


class ExpectedRows:
    """Returns the row that a store must hold for a row of the topic; None if the shape leaves the row out.

    It runs in the driver, for few rows. `learn` evaluates many rows in one Spark job and caches the results.
    """

    def __init__(self, fed: FedTables, topic: str) -> None:
        self._fed = fed
        self._topic = topic
        self._known: dict[bytes, bytes | None] = {}

    def learn(self, rows: Collection[bytes]) -> None:
        """Evaluate those rows that are not in the cache."""
        unknown = [row for row in set(rows) if row not in self._known]
        if unknown:
            found = shape_few(self._fed, [(self._topic, row) for row in unknown])
            for row, shaped in zip(unknown, found, strict=True):
                self._known[row] = UNKNOWN if isinstance(shaped, Troubled) else shaped

    def __call__(self, row: bytes) -> bytes | None:
        self.learn([row])
        return self._known[row]


def shaped_frame(frame: DataFrame, feds: Mapping[str, FedTables], topic: str) -> DataFrame:
    """Add a column with the evaluated shape for each store whose shape has expressions."""
    for number, (_, fed) in enumerate(sorted(feds.items())):
        shape = fed.shapes[topic]
        if shape.row.evaluated:
            frame = with_shapes(frame, {topic: shape}).withColumnRenamed("shaped", shaped_column(number))
    return frame


def shaped_column(number: int) -> str:
    """Return the name of the column that `shaped_frame` adds; `number`: the store's place among the sorted names."""
    return f"shaped{number}"


def expected_row(shape: RowShape, after: bytes, found: dict[str, Any] | None) -> bytes | None:
    """Return the row in the store's shape, None if the shape leaves it out, `UNKNOWN` if an expression failed."""
    row = shaped_row(shape, after, found)
    return UNKNOWN if isinstance(row, Troubled) else row
