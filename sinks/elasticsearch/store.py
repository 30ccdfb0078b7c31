"""Elasticsearch as a store: a `cdc.stores.contract.RowStore`. docs/reference/stores.md describes the indices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Final

import orjson

from cdc.clock import now_ms
from cdc.config.stores import SearchConfig as Settings
from cdc.lsn import Version
from cdc.stores.contract import Fit, Generation, Position, RowStore, StoreCheck, StoredRow, TableSchema, WriterFactory
from sinks.elasticsearch import checks
from sinks.elasticsearch.client import open_elasticsearch, translated_errors
from sinks.elasticsearch.generations import Generations
from sinks.elasticsearch.naming import OWN, index_of, writers_of
from sinks.elasticsearch.pages import Hit, pages
from sinks.elasticsearch.positions import Positions
from sinks.elasticsearch.tables import ElasticsearchTables
from sinks.elasticsearch.writing import bulk
from sinks.elasticsearch.writing.documents import Documents, live, older_than
from sinks.elasticsearch.writing.writer import ElasticsearchWriterFactory

_PAGE_ROWS: Final = 2000
_LONGEST_LIST: Final = 3000  # characters; the server limits a request's first line to 4096 bytes
_EVERYTHING: Final[dict[str, Any]] = {"match_all": {}}


class ElasticsearchStore(RowStore):
    """One configured Elasticsearch store."""

    kind: ClassVar[str] = "elasticsearch"

    def __init__(self, name: str, settings: Settings, prefix: str) -> None:
        self._settings = settings
        self._prefix = settings.prefix or prefix
        self._client = open_elasticsearch(settings)
        self._raw = open_elasticsearch(settings, raw=True)
        self._generations = Generations(self._client, settings, self._prefix, name)
        self._tables = ElasticsearchTables(self._client, settings, self._prefix, self._generations)
        self._positions = Positions(self._client, self._prefix)

    def check(self) -> list[StoreCheck]:
        return [*checks.check_elasticsearch(self._client, self._prefix), *checks.check_serving(self._generations)]

    def serving(self) -> Generation | None:
        return self._generations.serving()

    def list_generations(self) -> list[Generation]:
        return self._generations.all()

    def create_generation(self, tables: Iterable[TableSchema], pipeline_id: str = "") -> Generation:
        generation = self._generations.create()
        self._positions.create(generation, pipeline_id)
        self._tables.create_all(generation, tables)
        return generation

    def ensure_table(self, generation: Generation, table: TableSchema) -> Fit:
        is_serving = self._generations.serving_number() == generation.number
        return self._tables.ensure(self._generations.present(generation), table, serving=is_serving)

    def settle(self, generation: Generation) -> Generation:
        return self._generations.settle(generation)

    def switch(self, generation: Generation) -> None:
        self._generations.switch(generation)

    def drop(self, generation: Generation) -> None:
        self._generations.drop(generation)

    def position(self, generation: Generation) -> Position | None:
        return self._positions.read(generation) if self._generations.why_lost(generation.number) is None else None

    def take(self, generation: Generation, owner: str) -> Position:
        self._generations.refuse_lost(generation)
        position = self._positions.take(generation, owner)
        self._generations.adopt(generation, position)
        return position

    def publish(self, generation: Generation, tables: Iterable[TableSchema]) -> None:
        """Refresh the tables' indices, so that searches find all writes without waiting for the refresh interval."""
        wanted = [index_of(self._prefix, table, generation.number) for table in tables]
        if sum(map(len, wanted)) > _LONGEST_LIST:
            wanted = [f"{self._prefix}.*-g{generation.number}"]
        if wanted:
            with translated_errors():
                self._client.indices.refresh(index=wanted)

    def save_position(self, generation: Generation, position: Position) -> Position:
        return self._positions.save(generation, position)

    def writer_factory(self, generation: Generation) -> WriterFactory:
        return ElasticsearchWriterFactory(
            self._settings, self._prefix, generation, self._generations.numbering(generation)
        )

    def reap(self, generation: Generation, below: Version, grace_seconds: float | None = None) -> int:
        """Delete the tombstone documents, each only if it has not changed since this call read it."""
        if grace_seconds is None:
            grace_seconds = self._settings.tombstone_hours * 3600
        newest_ms = now_ms() - int(grace_seconds * 1000)
        old = [
            {"term": {f"{OWN}.deleted": True}},
            {"range": {f"{OWN}.deleted_ms": {"lte": newest_ms}}},
            older_than(below),
        ]
        reaped = 0
        for index in self._generations.table_indices(generation):
            for page in pages(self._raw, index, {"bool": {"filter": old}}, size=_PAGE_ROWS, with_source=False):
                items = [bulk.BulkItem(_delete_line(hit), hit.id) for hit in page]
                for portion in bulk.requests(items, self._settings.bulk_bytes):
                    bulk.send_bulk(self._raw, writers_of(index, generation), portion)
                reaped += len(page)
        return reaped

    def count(self, generation: Generation, table: TableSchema) -> int:
        index = index_of(self._prefix, table, generation.number)
        with translated_errors():
            self._client.indices.refresh(index=index)
            return int(self._client.count(index=index, query=live())["count"])

    def contents(self, generation: Generation, table: TableSchema, *, tombstones: bool = False) -> Iterator[StoredRow]:
        documents = Documents(table)
        query = _EVERYTHING if tombstones else live()
        index = index_of(self._prefix, table, generation.number)
        for page in pages(self._raw, index, query, size=_PAGE_ROWS, with_source=True):
            for hit in page:
                yield StoredRow(hit.id, *documents.row_of(bytes(hit.source)))

    def close(self) -> None:
        self._client.close()
        self._raw.close()


def _delete_line(hit: Hit) -> bytes:
    action = {"_id": hit.id, "if_seq_no": hit.seq_no, "if_primary_term": hit.primary_term}
    return orjson.dumps({"delete": action}) + b"\n"
