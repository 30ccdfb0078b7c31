"""Applies shapes to a few rows in the driver: parked rows that are retried, and rows that are repaired."""

from __future__ import annotations

from collections.abc import Sequence

from spark_jobs.shape.evaluation import shaped_after
from spark_jobs.shape.shaped_rows import FailedRow, shaped_row
from spark_jobs.shape.store_tables import StoreTables


def shape_rows(store_tables: StoreTables, rows: Sequence[tuple[str, bytes]]) -> list[bytes | FailedRow | None]:
    """Return, for each `(topic, after)`, the row that the store must hold; None if `where` leaves it out."""
    polled_at = [(number, topic) for number, (topic, _) in enumerate(rows) if _is_evaluated(store_tables, topic)]
    found = {}
    if polled_at:
        shapes = {topic: store_tables.shapes[topic] for _, topic in polled_at}
        frame = store_tables.spark.createDataFrame(
            [(number, topic, rows[number][1].decode()) for number, topic in polled_at],
            "number int, topic string, after string",
        )
        found = {
            row["number"]: row["shaped"].asDict() if row["shaped"] is not None else None
            for row in shaped_after(frame, shapes).select("number", "shaped").collect()
        }
    return [
        shaped_row(store_tables.shapes[topic].row, after, found.get(number)) if topic in store_tables.shapes else after
        for number, (topic, after) in enumerate(rows)
    ]


def _is_evaluated(store_tables: StoreTables, topic: str) -> bool:
    return topic in store_tables.shapes and store_tables.shapes[topic].row.evaluated
