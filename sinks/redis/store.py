"""Redis as a store. Implements `cdc.stores.contract.RowStore`. docs/reference/stores.md describes the keys.

A row always has the same key, so a new generation overwrites the old one in place. The scripts compare versions, so no
row goes back to an older state. Each row that a writer of the new generation writes or confirms gets the generation's
number. A row without that number at the end of the build is a ghost: the source no longer has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from cdc.config.stores import RedisConfig as Settings
from cdc.lsn import Version
from cdc.stores.contract import Fit, Generation, Position, RowStore, StoreCheck, StoredRow, TableSchema, WriterFactory
from sinks.redis import checks, scripts
from sinks.redis.client import Script, open_redis, translated
from sinks.redis.naming import every_row_pattern, markers_key, row_pattern, row_prefix
from sinks.redis.state import RedisState
from sinks.redis.writer import RedisWriterFactory, scan, sweep


class RedisStore(RowStore):
    """One configured Redis store."""

    kind: ClassVar[str] = "redis"
    rebuilds_in_place: ClassVar[bool] = True

    def __init__(self, name: str, settings: Settings, prefix: str) -> None:
        self._name = name
        self._settings = settings
        self._prefix = settings.prefix or prefix
        self._client = open_redis(settings)
        self._state = RedisState(self._client, self._prefix, name)

    def check(self) -> list[StoreCheck]:
        return list(checks.check_redis(self._client, self._settings, self._prefix, self._name))

    def serving(self) -> Generation | None:
        return self._state.serving()

    def list_generations(self) -> list[Generation]:
        return self._state.generations()

    def create_generation(self, tables: Iterable[TableSchema], pipeline_id: str = "") -> Generation:
        generation = self._state.create(pipeline_id)
        for table in tables:
            self._state.ensure_table(generation, table)
        return generation

    def ensure_table(self, generation: Generation, table: TableSchema) -> Fit:
        return self._state.ensure_table(generation, table)

    def settle(self, generation: Generation) -> Generation:
        return self._state.settle(generation)

    def switch(self, generation: Generation) -> None:
        if self._state.serves_another_pipeline():
            server, pattern = self._state.server_of(generation), every_row_pattern(self._prefix)
            sweep(self._client, scripts.SWEEP_FOREIGN, server, pattern, [], [markers_key(self._prefix)])
        self._state.settle(generation, serve=True)

    def drop(self, generation: Generation) -> None:
        """Remove the generation's position. The rows stay, because the serving generation uses them too."""
        self._state.drop(generation)

    def position(self, generation: Generation) -> Position | None:
        return self._state.position(generation)

    def take(self, generation: Generation, owner: str) -> Position:
        return self._state.take(generation, owner)

    def save_position(self, generation: Generation, position: Position) -> Position:
        return self._state.save(generation, position)

    def writer_factory(self, generation: Generation) -> WriterFactory:
        position = self._state.position(generation)
        pipeline_id = position.pipeline_id if position is not None else ""
        server = self._state.server_of(generation)
        return RedisWriterFactory(self._settings, self._prefix, generation.number, pipeline_id, server)

    def delete_stale_rows(self, generation: Generation, table: TableSchema, below: Version) -> int:
        arguments: list[str | bytes | int] = [generation.number, str(below), self._settings.tombstone_hours * 3600]
        server, pattern = self._state.server_of(generation), row_pattern(self._prefix, table)
        return sweep(self._client, scripts.SWEEP, server, pattern, arguments)

    def count(self, generation: Generation, table: TableSchema) -> int:  # noqa: ARG002
        """Count live rows by scanning every key. A row may be counted twice while the server resizes its key table."""
        live = Script(self._client, scripts.COUNT)
        return sum(live(keys, []) for keys in scan(self._client, self._prefix, table))

    def contents(
        self,
        generation: Generation,  # noqa: ARG002
        table: TableSchema,
        *,
        tombstones: bool = False,
    ) -> Iterator[StoredRow]:
        """Yield the rows. A row may occur twice while the server resizes its key table."""
        start = len(row_prefix(self._prefix, table).encode())
        for keys in scan(self._client, self._prefix, table):
            with translated(), self._client.pipeline(transaction=False) as pipeline:
                for key in keys:
                    pipeline.hmget(key, "version", "row")
                found: list[Any] = pipeline.execute()
            for key, (version, row) in zip(keys, found, strict=True):
                if version is not None and (tombstones or row is not None):
                    yield StoredRow(key[start:].decode(), Version.parse(version.decode()), row)

    def close(self) -> None:
        self._client.close()
