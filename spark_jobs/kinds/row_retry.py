"""Retries parked rows of a row store: writes the present state of each row, from its topic.

There are few parked rows, so only shapes need Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from cdc.config import Config
from cdc.stores.contract import Change, Generation, Position, RowStore, TableSchema, Writer
from spark_jobs.shape.local_session import local_session
from spark_jobs.shape.shaped_rows import FailedRow
from spark_jobs.shape.small_batches import shape_rows
from spark_jobs.shape.store_tables import StoreTables, build_store_tables
from spark_jobs.tasks.latest_per_key import Reduction, changes_of
from spark_jobs.tasks.parked_rows import Parked, read_partition
from spark_jobs.writing.contract import Retried


def retry_rows(
    config: Config,
    name: str,
    store: RowStore,
    generation: Generation,
    position: Position,
    tables: Mapping[str, TableSchema],
    rows: Sequence[Parked],
) -> list[Retried]:
    """Write the present state of each row with one writer. `tables`: by topic, those of the store."""
    with _shaping(config, name, tables, position) as store_tables:
        writer = store.writer_factory(generation)()
        try:
            results = [_retry_one(config, writer, tables.get(row.topic), store_tables, row) for row in rows]
        finally:
            writer.close()
    written = store_tables.schemas if store_tables is not None else tables
    store.publish(generation, {written[topic] for topic in tables})
    return results


@contextmanager
def _shaping(
    config: Config, name: str, tables: Mapping[str, TableSchema], position: Position
) -> Iterator[StoreTables | None]:
    """Yields the shapes of the tables; None if the store holds the rows of these tables unchanged."""
    if not any(position.topics[topic].shape for topic in tables):
        yield None
        return
    with local_session(config, f"tailrace-parked {name}") as spark:
        yield build_store_tables(config, name, spark, dict(tables), position)


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
