"""What a store must hold of a table, where it does not take its rows as they are (docs/guides/shaping.md)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from sinks.contract import TableSchema
from spark_jobs.shape.evaluation import with_shapes
from spark_jobs.shape.shaped_rows import RowShape, Troubled, shaped_row
from spark_jobs.shape.small_batches import shape_few
from spark_jobs.shape.store_tables import FedTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Never the content of a row: an expression failed for it, so the store keeps what it had (and the row is parked).
UNKNOWN = b"?"


def takes(fed: FedTables, table: TableSchema) -> bool:
    return table.topic in fed.source


class ExpectedRows:
    """For the driver, which looks at few rows: `learn` has Spark evaluate many at once, and then each is known."""

    def __init__(self, fed: FedTables, topic: str) -> None:
        self._fed = fed
        self._topic = topic
        self._known: dict[bytes, bytes | None] = {}

    def learn(self, rows: Collection[bytes]) -> None:
        unknown = [row for row in set(rows) if row not in self._known]
        if unknown:
            found = shape_few(self._fed, [(self._topic, row) for row in unknown])
            for row, shaped in zip(unknown, found, strict=True):
                self._known[row] = UNKNOWN if isinstance(shaped, Troubled) else shaped

    def __call__(self, row: bytes) -> bytes | None:
        self.learn([row])
        return self._known[row]


def shaped_frame(frame: DataFrame, feds: Mapping[str, FedTables], topic: str) -> DataFrame:
    """The records with one more column for each store whose shape has expressions."""
    for number, (_, fed) in enumerate(sorted(feds.items())):
        shape = fed.shapes[topic]
        if shape.row.evaluated:
            frame = with_shapes(frame, {topic: shape}).withColumnRenamed("shaped", shaped_column(number))
    return frame


def shaped_column(number: int) -> str:
    return f"shaped{number}"


def expected_row(shape: RowShape, after: bytes, found: dict[str, Any] | None) -> bytes | None:
    row = shaped_row(shape, after, found)
    return UNKNOWN if isinstance(row, Troubled) else row
