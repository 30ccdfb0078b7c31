"""Applies shapes to a few rows in the driver: parked rows that are retried, and rows that are repaired."""

from __future__ import annotations

from collections.abc import Sequence

from spark_jobs.shape.evaluation import shaped_after
from spark_jobs.shape.shaped_rows import Troubled, shaped_row
from spark_jobs.shape.store_tables import FedTables


def shape_few(fed: FedTables, rows: Sequence[tuple[str, bytes]]) -> list[bytes | Troubled | None]:
    """Return, for each `(topic, after)`, the row that the store must hold; None if `where` leaves it out."""
    looked_at = [(number, topic) for number, (topic, _) in enumerate(rows) if _is_evaluated(fed, topic)]
    found = {}
    if looked_at:
        shapes = {topic: fed.shapes[topic] for _, topic in looked_at}
        frame = fed.spark.createDataFrame(
            [(number, topic, rows[number][1].decode()) for number, topic in looked_at],
            "number int, topic string, after string",
        )
        found = {
            row["number"]: row["shaped"].asDict() if row["shaped"] is not None else None
            for row in shaped_after(frame, shapes).select("number", "shaped").collect()
        }
    return [
        shaped_row(fed.shapes[topic].row, after, found.get(number)) if topic in fed.shapes else after
        for number, (topic, after) in enumerate(rows)
    ]


def _is_evaluated(fed: FedTables, topic: str) -> bool:
    return topic in fed.shapes and fed.shapes[topic].row.evaluated
