"""Writes rows of one generation to Elasticsearch within one task. Implements `cdc.stores.contract.Writer`.

The server compares versions: every document carries its version as an external version. A delete is written as a
tombstone document, because the server remembers the version of a real delete for only a minute. The writer omits rows
below a TRUNCATE marker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cdc.clock import now_ms
from cdc.config.stores import SearchConfig as Settings
from cdc.lsn import Version
from cdc.stores.contract import Change, Generation, Rejected, TableSchema
from sinks.elasticsearch.client import open_elasticsearch
from sinks.elasticsearch.clients import SearchClient
from sinks.elasticsearch.markers import read_marker, write_marker
from sinks.elasticsearch.naming import index_of, writer_alias
from sinks.elasticsearch.pages import pages
from sinks.elasticsearch.writing import bulk
from sinks.elasticsearch.writing.documents import Documents, live, older_than, tombstone_lines
from sinks.elasticsearch.writing.external_versions import VersionScheme

_SWEEP_ROWS: Final = 5000


@dataclass(frozen=True, slots=True)
class ElasticsearchWriterFactory:
    """Creates an `ElasticsearchWriter` in each task. Picklable."""

    settings: Settings
    prefix: str
    generation: Generation
    numbering: VersionScheme

    def __call__(self) -> ElasticsearchWriter:
        return ElasticsearchWriter(self.settings, self.prefix, self.generation, self.numbering)


class ElasticsearchWriter:
    """Writes the rows of one generation."""

    def __init__(self, settings: Settings, prefix: str, generation: Generation, numbering: VersionScheme) -> None:
        self._prefix = prefix
        self._generation = generation
        self._numbering = numbering
        self._bulk_bytes = settings.bulk_bytes
        self._client: SearchClient = open_elasticsearch(settings)
        self._raw: SearchClient = open_elasticsearch(settings, raw=True)
        self._markers: dict[TableSchema, Version | None] = {}

    def apply(self, table: TableSchema, changes: Sequence[Change]) -> list[Rejected]:
        target = writer_alias(self._prefix, table, self._generation)
        rejected: list[Rejected] = []
        if not changes:
            return rejected
        for portion in bulk.requests(self._items(table, changes), self._bulk_bytes):
            rejected += [Rejected(what, reason) for what, reason in bulk.send_bulk(self._raw, target, portion)]
        return rejected

    def truncate(self, table: TableSchema, version: Version) -> int:
        write_marker(self._client, self._prefix, self._generation, table, version, self._numbering)
        self._markers.pop(table, None)
        target = writer_alias(self._prefix, table, self._generation)
        query = {"bool": {"filter": [live(), older_than(version)]}}
        swept = 0
        for page in pages(
            self._raw,
            index_of(self._prefix, table, self._generation.number),
            query,
            size=_SWEEP_ROWS,
            with_source=False,
        ):
            deleted_ms, number = now_ms(), self._numbering.number(version)
            items = [bulk.BulkItem(tombstone_lines(hit.id, number, *version, deleted_ms), hit.id) for hit in page]
            for portion in bulk.requests(items, self._bulk_bytes):
                bulk.send_bulk(self._raw, target, portion)
            swept += len(page)
        return swept

    def close(self) -> None:
        self._client.close()
        self._raw.close()

    def _items(self, table: TableSchema, changes: Sequence[Change]) -> Iterator[bulk.BulkItem]:
        if table not in self._markers:
            self._markers[table] = read_marker(self._client, self._prefix, self._generation, table)
        marker = self._markers[table]
        lines = Documents(table, self._numbering).lines
        written_ms = now_ms()
        for change in changes:
            if marker is None or change.version >= marker:
                yield bulk.BulkItem(lines(change, written_ms), change)
