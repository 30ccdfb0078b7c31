"""Parked rows of the warehouse tried again: what the sync has passed by of them is applied as a batch of its own.

Beyond the position nothing is read: an earlier version that the sync has yet to bring would find a later one in the
history, and be left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from cdc.config import Config
from cdc.stores.contract import Generation, Position, TableSchema
from sinks.iceberg.store import IcebergStore
from spark_jobs.session.spark_session import use_warehouse, warehouse_session
from spark_jobs.shape.short_session import borrowed_session
from spark_jobs.shape.store_tables import fed_tables
from spark_jobs.tasks.parked_rows import Parked, read_partition
from spark_jobs.tasks.parking import ParkedRow
from spark_jobs.warehouse.apply import WarehouseBatches

_RECORD = "topic string, partition int, offset long, key binary, value binary, stamp binary, timestamp timestamp"
_MARKER = b'{"__truncate":'

Record = tuple[str, int, int, bytes, bytes | None, bytes, datetime]


class _Refused:
    """Takes what does not fit this time either."""

    def __init__(self) -> None:
        self.reasons: dict[tuple[str, bytes, str], str] = {}

    def park(self, rows: Iterable[ParkedRow]) -> None:
        self.reasons |= {(row.topic, row.key, row.version): row.reason for row in rows}


def retry_in_warehouse(
    config: Config,
    store: IcebergStore,
    generation: Generation,
    position: Position,
    tables: Mapping[str, TableSchema],
    rows: Sequence[Parked],
) -> dict[int, str]:
    """Why they stay parked, by the rows' places; what is not named there is settled. `tables`: those of the store."""
    reasons: dict[int, str] = {}
    records: dict[int, list[Record]] = {}
    for row in rows:
        if row.key_bytes:
            reasons[row.place] = "its key is too long to be found"
        elif row.topic in tables:
            passed = position.topics[row.topic].next_offsets[row.partition]
            records[row.place] = list(_records_of(config, row, passed))
    refused = _Refused()
    found = list(dict.fromkeys(record for each in records.values() for record in each))
    if found:
        with borrowed_session(config, f"tailrace-parked {store.name}") as spark:
            fed = fed_tables(config, store.name, warehouse_session(spark, store.settings), dict(tables), position)
            use_warehouse(fed.spark, store.settings)
            batches = WarehouseBatches(store, generation, fed, refused)
            batches.apply(fed.spark.createDataFrame(found, _RECORD))
    for row in rows:
        last = max((stamp for _, _, _, key, _, stamp, _ in records.get(row.place, []) if key == _key(row)), default=b"")
        why = refused.reasons.get((row.topic, _key(row), last.decode()))
        if why is not None:
            reasons[row.place] = why
    return reasons


def _records_of(config: Config, row: Parked, passed: int) -> Iterator[Record]:
    """The row's own, and TRUNCATEs of its table, from where it stood up to where the sync is."""
    for message in read_partition(config, row.topic, row.partition, row.offset):
        offset, key = message.offset() or 0, message.key() or b""
        if offset >= passed:
            return
        if key == _key(row) or key.startswith(_MARKER):
            headers: dict[str, Any] = dict(message.headers() or [])
            written = datetime.fromtimestamp(message.timestamp()[1] / 1000, tz=timezone.utc)
            yield row.topic, row.partition, offset, key, message.value(), headers["v"], written


def _key(row: Parked) -> bytes:
    return row.key.encode()
