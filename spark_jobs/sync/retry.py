"""Retries parked rows: writes the present state of each row, from its topic, to the store. Settles what succeeds.

There are few parked rows, so only stores with shapes, and warehouses, need Spark. Versions guard the writes as
always, so a sync may run at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cdc.config import Config
from cdc.errors import RefusedError
from cdc.names import Control, control_topic
from cdc.snapshot.incremental.keys import snapshot_keys
from cdc.stores.contract import Change, Position, TableSchema, Writer
from cdc.stores.registry import open_store
from cdc.tables.state_reader import read_recorded_states
from sinks.iceberg.store import IcebergStore
from spark_jobs.shape.local_session import local_session
from spark_jobs.shape.shaped_rows import FailedRow
from spark_jobs.shape.small_batches import shape_rows
from spark_jobs.shape.store_tables import StoreTables, build_store_tables
from spark_jobs.sync.progress_follower import Ledger
from spark_jobs.tasks.latest_per_key import Reduction, changes_of
from spark_jobs.tasks.parked_rows import Parked, read_parked, read_partition
from spark_jobs.tasks.parking import ParkedRow, Parking
from spark_jobs.warehouse.retry import retry_in_warehouse

# These rows are too large for a record, and a snapshot of keys holds all of its rows in memory.
_LARGE_ROWS_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """The result of retrying one parked row. `reason` says why the row stays parked, or why it needed no write."""

    parked: Parked
    settled: bool
    reason: str = ""


def retry(config: Config, store_name: str, rows: Sequence[Parked]) -> list[Retried]:
    """Retry parked rows of one store. Rows that the store still rejects stay parked."""
    store = open_store(store_name, config.stores[store_name], config.kafka.prefix)
    try:
        with Ledger(config) as ledger:
            ledger.catch_up()
            known = ledger.tables()
        generation = store.serving()
        position = store.position(generation) if generation is not None else None
        if generation is None or position is None:
            raise RefusedError(f"Store {store_name} serves no generation yet.", remedy=f"tailrace sync {store_name}")
        wanted = {row.topic for row in rows}
        tables = {topic: table for topic, table in known.items() if topic in wanted and topic in position.topics}
        if isinstance(store, IcebergStore):
            refused = retry_in_warehouse(config, store, generation, position, tables, rows)
            return _settled(config, [_judged(row, refused.get(row.place)) for row in rows])
        with _shaping(config, store_name, tables, position) as store_tables:
            writer = store.writer_factory(generation)()
            try:
                results = [_retry_one(config, writer, tables.get(row.topic), store_tables, row) for row in rows]
            finally:
                writer.close()
        store.publish(
            generation, {store_tables.schemas[topic] if store_tables is not None else tables[topic] for topic in tables}
        )
    finally:
        store.close()
    return _settled(config, results)


def retry_capture(config: Config, rows: Sequence[Parked]) -> list[Retried]:
    """Retry rows that capture parked, by an incremental snapshot of their keys.

    Capture settles the rows that fit into a record now or no longer exist.
    """
    states = read_recorded_states(config)
    oids = {state.topic: oid for oid, state in states.tables.items()} if states is not None else {}
    for topic in dict.fromkeys(row.topic for row in rows if row.topic in oids):
        keys = sorted({row.key.encode() for row in rows if row.topic == topic and not row.key_bytes})
        for start in range(0, len(keys), _LARGE_ROWS_AT_ONCE):
            snapshot_keys(config, oids[topic], keys[start : start + _LARGE_ROWS_AT_ONCE])
    still = {row.name for row in read_parked(config)}
    return [_judged(row, _why_unpublished(row, oids) if row.name in still else None) for row in rows]


def _why_unpublished(row: Parked, oids: Mapping[str, str]) -> str:
    if row.topic not in oids:
        return "its table is not captured, and only its key was kept"
    if row.key_bytes:
        return "only part of its long key was kept; tailrace snapshot --table publishes the whole table"
    return "it exceeds max_message_bytes of the running capture"


def _settled(config: Config, results: list[Retried]) -> list[Retried]:
    parking = Parking(config.kafka.client_options(), control_topic(config.kafka.prefix, Control.PARKED))
    parking.settle(_as_row(result.parked) for result in results if result.settled)
    return results


def _judged(row: Parked, reason: str | None) -> Retried:
    return Retried(parked=row, settled=reason is None, reason=reason or "")


@contextmanager
def _shaping(
    config: Config, name: str, tables: dict[str, TableSchema], position: Position
) -> Iterator[StoreTables | None]:
    """Yields the shapes of the tables; None if the store holds the rows of these tables unchanged."""
    if not any(position.topics[topic].shape for topic in tables):
        yield None
        return
    with local_session(config, f"tailrace-parked {name}") as spark:
        yield build_store_tables(config, name, spark, tables, position)


def _retry_one(
    config: Config, writer: Writer, table: TableSchema | None, store_tables: StoreTables | None, row: Parked
) -> Retried:
    if table is None:
        return Retried(parked=row, settled=True, reason="the store no longer has the table")
    if row.key_bytes:
        return Retried(parked=row, settled=False, reason="only part of its long key was kept")
    change = _last_change(config, row)
    if change is None:
        return Retried(parked=row, settled=True, reason="the row was deleted")
    if store_tables is not None:
        table = store_tables.schemas[row.topic]
        if change.row is not None:
            shaped = shape_rows(store_tables, [(row.topic, change.row)])[0]
            if isinstance(shaped, FailedRow):
                return Retried(parked=row, settled=False, reason=shaped.reason)
            change = change._replace(row=shaped)
    rejected = writer.apply(table, [change])
    if rejected:
        return Retried(parked=row, settled=False, reason=rejected[0].reason)
    return Retried(parked=row, settled=True)


def _last_change(config: Config, row: Parked) -> Change | None:
    """Return the row's last change between the parked offset and the topic's end.

    None if the topic holds no record of the key any more, since the row was deleted long ago.
    """
    reduction = Reduction({})
    key = row.key.encode()
    for message in read_partition(config, row.topic, row.partition, row.offset):
        headers: dict[str, bytes] = dict(message.headers() or [])  # type: ignore[arg-type]  # ours are bytes
        is_marker = (message.key() or b"").startswith(b'{"__truncate":')
        if message.key() == key or is_marker:
            place = row.topic, row.partition, message.offset() or 0
            reduction.add([(*place, message.key() or b"", message.value(), headers["v"], None)])
    for _, held in reduction.take():
        if key in held:
            return changes_of({key: held[key]})[0]
    return None


def _as_row(row: Parked) -> ParkedRow:
    return ParkedRow(
        store=row.store,
        topic=row.topic,
        partition=row.partition,
        offset=row.offset,
        key=row.key.encode(),
        version=row.version,
        reason="",
    )
