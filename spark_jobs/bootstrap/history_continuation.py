"""Continues a warehouse's history when a new generation of the current tables replaces the serving one.

If a sync wrote the history until a few minutes ago, the next sync continues from there, and nothing is missing. If not,
compaction may have removed versions that the history lacks. Then the history is brought to the state of the new
generation, and the gap is recorded. A history that another pipeline wrote gets another name, and a new history begins,
because positions of two pipelines cannot be compared.
"""

from __future__ import annotations

from typing import Final

from cdc.clock import now_ms
from cdc.logs import get_logger
from cdc.lsn import Version
from cdc.positions.offset_index import Point
from cdc.stores.contract import Generation, Position, TableSchema
from sinks.iceberg import naming, statements
from sinks.iceberg.state import Gap
from sinks.iceberg.statements import Marker
from sinks.iceberg.store import IcebergStore
from spark_jobs.shape.store_tables import StoreTables
from spark_jobs.warehouse.apply import WarehouseBatches, run_in

log = get_logger("bootstrap")

# A record this recent is in a segment that Kafka still writes to, so it has not been compacted.
_RECENT_MS: Final = 10 * 60_000


def continue_history(
    store: IcebergStore,
    generation: Generation,
    applying: WarehouseBatches,
    store_tables: StoreTables,
    *,
    old_position: Position | None,
    point: Point,
    began_ms: int,
) -> None:
    """Continue the history, or bring it to the state of the new generation and record the gap.

    `old_position`: the serving generation's position when the build began, if this pipeline built it. `point`: the
    topics' state that the new generation was loaded from, read at `began_ms`.
    """
    _begin_history(store, generation, store_tables, old_position)
    if (
        old_position is not None
        and old_position.topics
        and 0 <= began_ms - old_position.caught_up_broker_ms < _RECENT_MS
    ):
        store.resume_history(generation)
        return
    markers = store.state().markers
    end = Marker(point.version.position, point.version.seq, point.commit_time_us)
    gaps = []
    for topic, table in store_tables.schemas.items():
        history = store.tables.load(naming.history_table(table))
        if history is not None and history.current_snapshot() is None:
            run_in(store_tables.spark, statements.fill_history(applying.target(table)[0]))
        else:
            _reconcile(applying, store_tables, table, end, markers.get(topic))
        since = old_position.version.position if old_position is not None and topic in old_position.topics else 0
        gaps.append(Gap(topic=topic, from_position=since, to_position=end.position, until_ms=now_ms()))
    store.note_gaps(gaps)
    log.info("history_taken_over", store=store.name, tables=len(gaps))


def _begin_history(
    store: IcebergStore, generation: Generation, store_tables: StoreTables, old_position: Position | None
) -> None:
    """Rename the histories of other pipelines, and make sure that each table has a history of this pipeline."""
    position = store.position(generation)
    pipeline_id = position.pipeline_id if position is not None else ""
    if not pipeline_id:
        return
    aside = store.set_histories_aside(pipeline_id, unnamed=pipeline_id if old_position is not None else "")
    for table in store_tables.schemas.values():
        store.tables.ensure_history(table, pipeline_id)
    if aside:
        log.info("histories_renamed", store=store.name, tables=[".".join(name) for name in aside])


def _reconcile(
    applying: WarehouseBatches, store_tables: StoreTables, table: TableSchema, end: Marker, stamp: str | None
) -> None:
    target, _ = applying.target(table)
    swept = Version.parse(stamp) if stamp is not None else None
    marker = Marker(swept.position, swept.seq, 0) if swept is not None else None
    for statement in (
        statements.close_superseded(target),
        statements.close_vanished(target, end),
        statements.insert_unknown(target, marker),
    ):
        run_in(store_tables.spark, statement)
