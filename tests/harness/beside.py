"""A later copy under test, chunk by chunk: read as a Spark task reads it, without Spark."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from cdc import catalog
from cdc.config import Config, load_config
from cdc.copies import marks
from cdc.copies.announced import announce
from cdc.copies.beside import BesideTask, read_beside
from cdc.copies.described import describe_tables
from cdc.copies.log import CopyLog
from cdc.copies.records import ChunkState, CopyState, Piece
from cdc.lsn import LSN
from cdc.own_messages import read_secret
from cdc.table_settings import digests
from tests.harness.pipeline import Pipeline
from tests.harness.waiting import eventually


@dataclass
class Later:
    """One copy of one table, as a whole or chunk by chunk."""

    pipeline: Pipeline
    config: Config
    oid: str

    @classmethod
    def of(cls, pipeline: Pipeline, table: str) -> Later:
        ((oid,),) = pipeline.database.execute("SELECT %s::regclass::oid::text", [table])
        return cls(pipeline, load_config(pipeline.config), oid)

    def chunk(self, number: int, first: int = 0, end: int | None = None) -> ChunkState:
        piece = Piece(table=self.oid, relation=int(self.oid), first_block=first, end_block=end)
        return ChunkState(copy="test", number=number, pieces=[piece], size_bytes=8192)

    def task(self, chunk: ChunkState, attempt: int = 1) -> BesideTask:
        with psycopg.connect(self.pipeline.database.dsn) as connection:
            tables = describe_tables(connection, self.config, [self.oid])
        announce(self.config.kafka, [chunk])
        return BesideTask(config=self.config, chunk=chunk, attempt=attempt, tables=tables)

    def outcome(self, chunk: ChunkState, attempt: int = 1) -> ChunkState:
        """Capture's word on it, once it has passed the chunk."""
        found: list[ChunkState] = []

        def there() -> bool:
            with CopyLog(self.config.kafka) as log:
                record = log.refresh().chunks.get("test", {}).get(chunk.number)
            found[:] = [record] if record is not None and record.attempt == attempt else []
            return bool(found)

        eventually(there, 30, f"a record of chunk {chunk.number}")
        return found[0]

    def read(self, chunk: ChunkState, attempt: int = 1) -> ChunkState:
        read_beside(self.task(chunk, attempt))
        return self.outcome(chunk, attempt)

    def whole(self) -> ChunkState:
        """The whole table in one chunk, with the mark that ends a copy."""
        with psycopg.connect(self.pipeline.database.dsn, autocommit=True) as connection:
            began = catalog.current_lsn(connection)
            found = self.read(self.chunk(1))
            announce(self.config.kafka, [self.plan(began)])
            marks.emit(connection, self.end(began), read_secret(self.config.kafka))
        return found

    def plan(self, began: LSN, copy_id: str = "test") -> CopyState:
        return CopyState(id=copy_id, kind="later", state="planned", tables=[self.oid], snapshot="", point=int(began))

    def end(self, began: LSN, copy_id: str = "test") -> marks.End:
        pipeline = marks.pipeline_of(self.config)
        with psycopg.connect(self.pipeline.database.dsn) as connection:
            (table,) = describe_tables(connection, self.config, [self.oid]).values()
        settings = digests(self.config, {self.oid: table.name})
        plan = self.plan(began, copy_id)
        return marks.End(pipeline=pipeline, copy=plan, whole={self.oid: int(began)}, settings=settings)
