"""Retries parked rows: writes the present state of each row, from its topic, to the store. Settles what succeeds.

The kind's `StoreWriting` writes them. Versions guard the writes as always, so a sync may run at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdc.config import Config
from cdc.errors import RefusedError
from cdc.names import Control, control_topic
from cdc.snapshot.incremental.keys import snapshot_keys
from cdc.stores.registry import open_store
from cdc.tables.state_reader import read_recorded_states
from spark_jobs.sync.progress_follower import ProgressFollower
from spark_jobs.tasks.parked_rows import Parked, read_parked
from spark_jobs.tasks.parking import ParkedRow, Parking
from spark_jobs.writing.choice import writing_of
from spark_jobs.writing.contract import Retried

# These rows are too large for a record, and a snapshot of keys holds all of its rows in memory.
_LARGE_ROWS_AT_ONCE = 8


def retry(config: Config, store_name: str, rows: Sequence[Parked]) -> list[Retried]:
    """Retry parked rows of one store. Rows that the store still rejects stay parked."""
    settings = config.stores[store_name]
    writing = writing_of(settings.kind)
    store = open_store(store_name, settings, config.kafka.prefix)
    try:
        with ProgressFollower(config) as follower:
            follower.catch_up()
            known = follower.tables()
        generation = store.serving()
        position = store.position(generation) if generation is not None else None
        if generation is None or position is None:
            raise RefusedError(f"Store {store_name} serves no generation yet.", remedy=f"tailrace sync {store_name}")
        wanted = {row.topic for row in rows}
        tables = {topic: table for topic, table in known.items() if topic in wanted and topic in position.topics}
        results = writing.retry(config, store_name, store, generation, position, tables, rows)
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
    return [Retried.judged(row, _why_unpublished(row, oids) if row.name in still else None) for row in rows]


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
