"""An incremental snapshot under test, chunk by chunk: read as a Spark task reads it, without Spark."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from cdc.config import Config, load_config
from cdc.logical_messages.signed import read_secret
from cdc.lsn import LSN
from cdc.postgres import catalog
from cdc.snapshot.incremental import watermarks
from cdc.snapshot.incremental.announced import announce
from cdc.snapshot.incremental.chunk import IncrementalChunkTask, read_incremental_chunk
from cdc.snapshot.log import SnapshotLog
from cdc.snapshot.records import BlockRange, ChunkState, SnapshotState
from cdc.snapshot.table_description import describe_tables
from cdc.tables.event_settings import event_settings_digests
from tests.harness.pipeline.pipeline import Pipeline
from tests.harness.processes.waiting import eventually


@dataclass
class ChunkwiseSnapshot:
    """One copy of one table, as a whole or chunk by chunk."""

    pipeline: Pipeline
    config: Config
    oid: str

    @classmethod
    def of(cls, pipeline: Pipeline, table: str) -> ChunkwiseSnapshot:
        ((oid,),) = pipeline.database.execute("SELECT %s::regclass::oid::text", [table])
        return cls(pipeline, load_config(pipeline.config), oid)

    def chunk(self, number: int, first: int = 0, end: int | None = None) -> ChunkState:
        piece = BlockRange(table=self.oid, relation=int(self.oid), first_block=first, end_block=end)
        return ChunkState(copy="test", number=number, pieces=[piece], size_bytes=8192)

    def task(self, chunk: ChunkState, attempt: int = 1) -> IncrementalChunkTask:
        with psycopg.connect(self.pipeline.database.dsn) as connection:
            tables = describe_tables(connection, self.config, [self.oid])
        announce(self.config.kafka, [chunk])
        return IncrementalChunkTask(config=self.config, chunk=chunk, attempt=attempt, tables=tables)

    def outcome(self, chunk: ChunkState, attempt: int = 1) -> ChunkState:
        """Capture's word on it, once it has passed the chunk."""
        found: list[ChunkState] = []

        def there() -> bool:
            with SnapshotLog(self.config.kafka) as log:
                record = log.refresh().chunks.get("test", {}).get(chunk.number)
            found[:] = [record] if record is not None and record.attempt == attempt else []
            return bool(found)

        eventually(there, 30, f"a record of chunk {chunk.number}")
        return found[0]

    def read(self, chunk: ChunkState, attempt: int = 1) -> ChunkState:
        read_incremental_chunk(self.task(chunk, attempt))
        return self.outcome(chunk, attempt)

    def whole(self) -> ChunkState:
        """The whole table in one chunk, with the mark that ends a copy."""
        with psycopg.connect(self.pipeline.database.dsn, autocommit=True) as connection:
            began = catalog.current_lsn(connection)
            found = self.read(self.chunk(1))
            announce(self.config.kafka, [self.plan(began)])
            watermarks.emit_watermark(connection, self.end(began), read_secret(self.config.kafka))
        return found

    def plan(self, began: LSN, snapshot_id: str = "test") -> SnapshotState:
        return SnapshotState(
            id=snapshot_id, kind="later", state="planned", tables=[self.oid], snapshot="", point=int(began)
        )

    def end(self, began: LSN, snapshot_id: str = "test") -> watermarks.EndWatermark:
        pipeline = watermarks.pipeline_of(self.config)
        with psycopg.connect(self.pipeline.database.dsn) as connection:
            (table,) = describe_tables(connection, self.config, [self.oid]).values()
        settings = event_settings_digests(self.config, {self.oid: table.name})
        plan = self.plan(began, snapshot_id)
        return watermarks.EndWatermark(pipeline=pipeline, copy=plan, whole={self.oid: int(began)}, settings=settings)
