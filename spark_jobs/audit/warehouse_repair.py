"""Repairs rows of a warehouse that differ from the topic. The store's sync may run meanwhile; its position stays as is.

First, the topic's last record of each row is applied by the sync's own code. That repairs rows that are missing or
too old, and puts the version into the history. Some rows are still wrong after that: other values under the right
version, a version that is too large, a key that occurs twice, or a row that neither source nor topic has. These rows
are replaced according to the history (`sinks/iceberg/row_repair.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import orjson

from cdc.audit.audit_records import TOPIC
from cdc.audit.difference_rules import RowCase
from cdc.audit.recheck import Audited, RowVerdict
from cdc.audit.repair import Wrong
from cdc.audit.row_blocks import split_place
from cdc.audit.topic_records import fetch_messages
from cdc.config import Config, IcebergConfig
from cdc.errors import TransientError
from cdc.logs import get_logger
from cdc.lsn import Version
from cdc.stores.contract import Generation, Position
from sinks.iceberg import row_repair
from sinks.iceberg.store import IcebergStore
from sinks.iceberg.tables import types_of
from spark_jobs.session.spark_session import use_warehouse, warehouse_session
from spark_jobs.shape.store_tables import StoreTables, build_store_tables
from spark_jobs.shape.typed_rows import events_of
from spark_jobs.tasks.parking import ParkedRow
from spark_jobs.warehouse.apply import WarehouseBatches, run_in
from spark_jobs.warehouse.batch import FIT, typed, versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = get_logger("audit")

_RECORD: Final = "topic string, partition int, offset long, key binary, value binary, stamp binary, timestamp timestamp"
_VIEW: Final = "tailrace_repaired"

Record = tuple[str, int, int, bytes, "bytes | None", bytes, datetime]


class _Parked:
    """Parks nothing: the sync has read these records before and has parked the rows that do not fit."""

    def park(self, rows: Iterable[ParkedRow]) -> None:
        """Ignore the rows."""


def repair_warehouse(
    config: Config, spark: SparkSession, audited: Audited, name: str, wrong: Wrong, marker: Version
) -> int:
    """Write or remove the rows that are right in the topic and that the sync has read; return their number."""
    chosen = [each for each in wrong.values() if name in each[1].kinds and TOPIC not in each[1].kinds]
    if not chosen:
        return 0
    settings = cast("IcebergConfig", config.stores[name])
    with closing(IcebergStore(name, settings, config.kafka.prefix)) as store:
        serving = store.serving()
        position = store.position(serving) if serving is not None else None
        if serving is None or position is None:
            raise TransientError(f"Store {name} has no serving generation any more.")
        topic = audited.schema.topic
        store_tables = build_store_tables(
            config, name, warehouse_session(spark, store.settings), {topic: audited.schema}, position
        )
        use_warehouse(store_tables.spark, store.settings)
        last = _last_records(config, topic, [case for case, _ in chosen], marker, position)
        removed = [_removal(audited, name, case, verdict) for case, verdict in chosen if _is_gone(case, marker)]
        there = {case.id for case, verdict in chosen if verdict.held.get(name) is not None}
        replaced = [record for each, record in last.items() if each in there] + [each for each in removed if each]
        _write(store, serving, store_tables, list(last.values()), replaced, topic)
    log.info(
        "audit_warehouse_repaired", store=name, table=str(audited.schema), written=len(last), replaced=len(replaced)
    )
    return len(last) + len(removed)


def _write(
    store: IcebergStore,
    generation: Generation,
    store_tables: StoreTables,
    last: Sequence[Record],
    replaced: Sequence[Record],
    topic: str,
) -> None:
    batches = WarehouseBatches(store, generation, store_tables, _Parked())
    if last:
        batches.apply(store_tables.spark.createDataFrame(list(last), _RECORD))
    if not replaced:
        return
    target, columns = batches.target(store_tables.schemas[topic])
    current = store.tables.load(target.current)
    if current is None:
        raise TransientError(f"The warehouse's table {'.'.join(target.current)} does not exist any more.")
    events = versions(events_of(store_tables.spark.createDataFrame(list(replaced), _RECORD)))
    rows = typed(events, columns, types_of(current, columns), store_tables.shapes.get(topic)).where(FIT)
    store.wait_while_held()
    rows.createOrReplaceTempView(_VIEW)
    run_in(store_tables.spark, row_repair.replace_current(target, _VIEW))


def _is_gone(case: RowCase, marker: Version) -> bool:
    states = case.states(marker)
    return not states or states[-1].row is None


def _last_records(
    config: Config, topic: str, cases: Sequence[RowCase], marker: Version, position: Position
) -> dict[str, Record]:
    """Return, by id, the topic's last record of each row that is not deleted.

    Records that the sync has not read yet are left out: the sync will apply them.
    """
    read_to = position.topics[topic].next_offsets
    places: dict[int, str] = {}
    for case in cases:
        if _is_gone(case, marker):
            continue
        place = next(record.place for record in reversed(case.records) if not record.is_marker)
        partition, offset = split_place(place)
        if offset < read_to[partition]:
            places[place] = case.id
    found: dict[str, Record] = {}
    for place, message in fetch_messages(config.kafka, topic, places).items():
        headers: dict[str, Any] = dict(message.headers() or [])
        written = datetime.fromtimestamp(message.timestamp()[1] / 1000, tz=timezone.utc)
        partition, offset = split_place(place)
        found[places[place]] = (
            topic,
            partition,
            offset,
            message.key() or b"",
            message.value(),
            headers.get("v") or b"",
            written,
        )
    return found


def _removal(audited: Audited, name: str, case: RowCase, verdict: RowVerdict) -> Record | None:
    """Return a tombstone with version 0 that removes a row; None if the store has no such row, or its key is unknown.

    If the topic never had the row, the key is taken from the store's row.
    """
    held = verdict.held.get(name)
    if held is None:
        return None
    key = case.key
    if key is None:
        key = next(_keys_in(audited, name, held.row), None)
    if key is None:
        return None
    return (audited.schema.topic, 0, 0, key, None, str(Version(0, 0)).encode(), datetime.now(tz=timezone.utc))


def _keys_in(audited: Audited, name: str, row: bytes | None) -> Iterator[bytes]:
    """Yield the keys in the store's JSON: one row, or a list of rows with the same key."""
    try:
        found = orjson.loads(row or b"")
    except orjson.JSONDecodeError:
        return
    for each in found if isinstance(found, list) else [found]:
        yield msgspec.json.encode({column: each.get(column) for column in audited.schema_in(name).key})
