"""Retries parked rows of the warehouse: applies their records up to the sync's position again, as a separate batch.

It reads no record beyond the position. Otherwise the history would have a later version of the row before the sync
applies an earlier one, and the sync would leave the earlier version out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from cdc.config import Config
from cdc.stores.contract import Generation, Position, TableSchema
from sinks.iceberg.store import IcebergStore
from spark_jobs.session.spark_session import use_warehouse, warehouse_session
from spark_jobs.shape.local_session import local_session
from spark_jobs.shape.store_tables import build_store_tables
from spark_jobs.tasks.parked_rows import Parked, read_partition
from spark_jobs.tasks.parking import ParkedRow
from spark_jobs.warehouse.apply import WarehouseBatches

_RECORD = "topic string, partition int, offset long, key binary, value binary, stamp binary, timestamp timestamp"
_MARKER = b'{"__truncate":'

Record = tuple[str, int, int, bytes, bytes | None, bytes, datetime]


class _Refused:
    """Collects the rows that still do not fit, with the reasons."""

    def __init__(self) -> None:
        self.reasons: dict[tuple[str, bytes, str], str] = {}

    def park(self, rows: Iterable[ParkedRow]) -> None:
        """Keep the reasons, by topic, key and version."""
        self.reasons |= {(row.topic, row.key, row.version): row.reason for row in rows}


def retry_in_warehouse(
    config: Config,
    store: IcebergStore,
    generation: Generation,
    position: Position,
    tables: Mapping[str, TableSchema],
    rows: Sequence[Parked],
) -> dict[int, str]:
    """Retry the rows. Returns why rows stay parked, by `Parked.place`; rows without an entry are settled.

    `tables` are the store's tables, by topic.
    """
    reasons: dict[int, str] = {}
    records: dict[int, list[Record]] = {}
    for row in rows:
        if row.key_bytes:
            reasons[row.place] = "only part of its long key was kept"
        elif row.topic in tables:
            passed = position.topics[row.topic].next_offsets[row.partition]
            records[row.place] = list(_records_of(config, row, passed))
    refused = _Refused()
    found = list(dict.fromkeys(record for each in records.values() for record in each))
    if found:
        with local_session(config, f"tailrace-parked {store.name}") as spark:
            store_tables = build_store_tables(
                config, store.name, warehouse_session(spark, store.settings), dict(tables), position
            )
            use_warehouse(store_tables.spark, store.settings)
            batches = WarehouseBatches(store, generation, store_tables, refused)
            batches.apply(store_tables.spark.createDataFrame(found, _RECORD))
    for row in rows:
        last = max((stamp for _, _, _, key, _, stamp, _ in records.get(row.place, []) if key == _key(row)), default=b"")
        why = refused.reasons.get((row.topic, _key(row), last.decode()))
        if why is not None:
            reasons[row.place] = why
    return reasons


def _records_of(config: Config, row: Parked, passed: int) -> Iterator[Record]:
    """Yields the row's records and the TRUNCATEs of its table, from the parked offset to the offset `passed`."""
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
