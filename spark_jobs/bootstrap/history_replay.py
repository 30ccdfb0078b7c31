"""`tailrace bootstrap STORE --from history --as-of …`: fills another store with a past state of the warehouse.

The replay builds a new generation of that store and switches to it. Such a store shows a past state and gets no further
changes: a sync refuses it. An ordinary bootstrap brings it back to the present.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson
import pyarrow as pa

from cdc.config import Config, IcebergConfig
from cdc.errors import RefusedError, TailraceError, UsageError
from cdc.logs import get_logger
from cdc.lsn import Version
from cdc.stores.contract import Change, Position, TableSchema, TopicPosition, WriterFactory
from cdc.stores.registry import is_table_kind, open_row_store
from cdc.stores.row_ids import row_id_of
from sinks.iceberg import naming, statements
from sinks.iceberg.contents import json_row
from sinks.iceberg.schemas import WarehouseColumn
from sinks.iceberg.store import IcebergStore
from sinks.iceberg.tables import types_of
from spark_jobs.sync.progress_follower import ProgressFollower
from spark_jobs.sync.store_sync import checked_store
from spark_jobs.tasks.task_errors import packed_error, unpacked_error
from spark_jobs.warehouse.query import AsOf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = get_logger("bootstrap")

_SLICE: Final = 2_000
_ANSWER: Final = "rows long, rejected long, failure binary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The result of a replay. `rejected`: number of rows that the store did not accept."""

    generation: int
    rows: int
    rejected: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writing:
    """Writes the rows of one table to the store; picklable, for `mapInArrow`."""

    table: TableSchema
    columns: list[WarehouseColumn]
    kinds: dict[str, str]
    factory: WriterFactory

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = rejected = 0
        failure: bytes | None = None
        writer = self.factory()
        try:
            for batch in batches:
                for first in range(0, batch.num_rows, _SLICE):
                    changes = [self._change(row) for row in batch.slice(first, _SLICE).to_pylist()]
                    rejected += len(writer.apply(self.table, changes))
                    rows += len(changes)
        except TailraceError as error:
            failure = packed_error(error)
        finally:
            writer.close()
        yield pa.RecordBatch.from_pydict(
            {
                "rows": pa.array([rows], pa.int64()),
                "rejected": pa.array([rejected], pa.int64()),
                "failure": pa.array([failure], pa.binary()),
            }
        )

    def _change(self, row: dict[str, Any]) -> Change:
        values = json_row(self.table, self.columns, self.kinds, row)
        key = orjson.dumps({name: values[name] for name in self.table.key})
        version = Version(row[naming.POSITION], row[naming.SEQ])
        return Change(row_id_of(key), key, version, orjson.dumps(values))


def run_replay(
    config: Config, name: str, warehouse: str, as_of: AsOf, spark: SparkSession, show: Callable[[str], None]
) -> Replayed:
    """Build a generation of store `name` from the history of store `warehouse`, and switch to it.

    `spark`: a session with the warehouse's catalog.
    """
    began = time.monotonic()
    settings = config.stores[warehouse]
    if not isinstance(settings, IcebergConfig) or is_table_kind(config.stores[name].kind):
        raise UsageError("A history can be replayed only from a warehouse, and only into a store of another kind.")
    with ProgressFollower(config) as follower:
        follower.catch_up()
        tables = follower.tables()
    with (
        closing(IcebergStore(warehouse, settings, config.kafka.prefix)) as source,
        closing(open_row_store(name, config.stores[name], config.kafka.prefix)) as store,
    ):
        checked_store(name, store)
        old = store.serving()
        if store.rebuilds_in_place and old is not None:
            raise RefusedError(
                f"Store {name} is rebuilt in place, and its rows have newer versions than those of the past state.",
                remedy="Replay into a separate store: another [stores.NAME] with a `prefix` of its own.",
            )
        generation = store.create_generation(tables.values())
        store.take(generation, f"history:{as_of.text}")
        factory = store.writer_factory(generation)
        rows = rejected = 0
        for table in tables.values():
            history = source.tables.load(naming.history_table(table))
            if history is None:
                continue
            columns = source.tables.columns(table)
            writing = _Writing(table=table, columns=columns, kinds=types_of(history, columns), factory=factory)
            past = spark.sql(_past(table, columns, as_of))
            for answer in past.mapInArrow(writing, _ANSWER).collect():  # type: ignore[arg-type]
                if answer["failure"] is not None:
                    raise RefusedError(f"{table} could not be replayed: {unpacked_error(answer['failure'])}")
                rows, rejected = rows + answer["rows"], rejected + answer["rejected"]
            show(f"{table}: replayed")
        _save(config, store, generation, tables, as_of)
        store.switch(generation)
        if old is not None:
            store.drop(old)
    log.info("history_replayed", store=name, generation=generation.number, as_of=as_of.text, rows=rows)
    return Replayed(
        generation=generation.number, rows=rows, rejected=rejected, seconds=round(time.monotonic() - began, 3)
    )


def _past(table: TableSchema, columns: list[WarehouseColumn], as_of: AsOf) -> str:
    named = [*(column.name for column in columns), naming.POSITION, naming.SEQ]
    history = naming.history_table(table)
    if as_of.position is not None:
        return statements.as_of_position(history, named, as_of.position)
    return statements.as_of_time(history, named, as_of.at_us or 0)


def _save(config: Config, store: Any, generation: Any, tables: dict[str, TableSchema], as_of: AsOf) -> None:
    """Save a position with topic ids that do not exist, so that no sync continues from it and skips changes."""
    nowhere = tuple([0] * config.kafka.partitions)
    position = msgspec.structs.replace(
        store.position(generation) or Position(),
        topics={topic: TopicPosition(f"history as of {as_of.text}", nowhere) for topic in tables},
        lsn=as_of.position or 0,
    )
    store.save_position(generation, position)
