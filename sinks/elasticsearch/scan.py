"""Reads a table's documents for the audit, in slices at one point in time and by id, and overwrites them by force.

Implements `cdc.stores.scan.StoreScan`. A document holds its version twice: as `_version` and in the field `_tailrace`.
If the two differ, the scan uses `_version`, because Elasticsearch compares that one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import orjson

from cdc.clock import now_ms
from cdc.config.stores import SearchConfig as Settings
from cdc.errors import TransientError
from cdc.lsn import Version
from cdc.stores.contract import Generation, StoredRow, TableSchema
from cdc.stores.scan import Forced, ReadSlice, RowScan
from sinks.elasticsearch.client import open_elasticsearch, translated_errors
from sinks.elasticsearch.clients import SearchClient
from sinks.elasticsearch.generations import Generations
from sinks.elasticsearch.naming import index_of, writer_alias
from sinks.elasticsearch.writing import bulk
from sinks.elasticsearch.writing.documents import Documents, live
from sinks.elasticsearch.writing.external_versions import VersionScheme

_KEEP_ALIVE: Final = "10m"
_PAGE_ROWS: Final = 5000
_IDS_AT_ONCE: Final = 1000
_FORGET_SECONDS: Final = 90.0


class _Hit(msgspec.Struct):
    id: str = msgspec.field(name="_id")
    version: int = msgspec.field(name="_version", default=0)
    source: msgspec.Raw = msgspec.field(name="_source", default_factory=msgspec.Raw)
    sort: list[Any] = []
    found: bool = True
    seq_no: int = msgspec.field(name="_seq_no", default=-1)
    primary_term: int = msgspec.field(name="_primary_term", default=-1)


class _Hits(msgspec.Struct):
    hits: list[_Hit] = []


class _Page(msgspec.Struct):
    hits: _Hits
    pit_id: str = ""


class _Docs(msgspec.Struct):
    docs: list[_Hit] = []


_decode_page = msgspec.json.Decoder(_Page).decode
_decode_docs = msgspec.json.Decoder(_Docs).decode


@dataclass(frozen=True, slots=True)
class ElasticsearchSlice:
    """Reads one slice of each point in time. Picklable."""

    settings: Settings
    table: TableSchema
    points: tuple[str, ...]
    number: int
    count: int
    numbering: VersionScheme

    def __call__(self) -> Iterator[list[StoredRow]]:
        client = open_elasticsearch(self.settings, raw=True)
        try:
            for point in self.points:
                yield from self._pages(client, point)
        finally:
            client.close()

    def _pages(self, client: SearchClient, point: str) -> Iterator[list[StoredRow]]:
        documents = Documents(self.table)
        own = {"slice": {"id": self.number, "max": self.count}} if self.count > 1 else {}
        after: list[Any] | None = None
        while True:
            with translated_errors():
                body = client.search(
                    pit={"id": point, "keep_alive": _KEEP_ALIVE},
                    query=live(),
                    sort=[client.point_order],
                    search_after=after,
                    size=_PAGE_ROWS,
                    version=True,
                    track_total_hits=False,
                    allow_partial_search_results=False,
                    **own,  # type: ignore[arg-type]  # one option, or none
                ).body
            hits = _decode_page(body).hits.hits
            if not hits:
                return
            yield [_row(documents, self.numbering, hit) for hit in hits]
            after = hits[-1].sort


class ElasticsearchScan(RowScan):
    """Reads and repairs one generation of a store for the audit."""

    def __init__(self, name: str, settings: Settings, prefix: str, generation: Generation) -> None:
        self._settings = settings
        self._prefix = settings.prefix or prefix
        self._generation = generation
        self._client: SearchClient = open_elasticsearch(settings)
        self._raw: SearchClient = open_elasticsearch(settings, raw=True)
        self._numbering = Generations(self._client, settings, self._prefix, name).numbering(generation)

    @contextmanager
    def slices(self, table: TableSchema, count: int) -> Iterator[list[ReadSlice]]:
        """Open a point in time, and yield the slices that read it."""
        index = self._index(table)
        with translated_errors():
            self._client.indices.refresh(index=index)
            points = self._raw.open_points(index, _KEEP_ALIVE)
        try:
            yield [
                ElasticsearchSlice(self._settings, table, tuple(points), number, count, self._numbering)
                for number in range(count)
            ]
        finally:
            self._raw.close_points(points)

    def rows(self, table: TableSchema, ids: Sequence[str]) -> dict[str, StoredRow]:
        """Return the current documents, including writes since the last refresh."""
        documents = Documents(table)
        return {hit.id: _row(documents, self._numbering, hit) for hit in self._hits(table, ids)}

    def sample(self, table: TableSchema, count: int) -> list[StoredRow]:
        """Return `count` random live rows."""
        documents = Documents(table)
        chance = {"function_score": {"query": live(), "random_score": {}, "boost_mode": "replace"}}
        with translated_errors():
            body = self._raw.search(index=self._index(table), query=chance, size=count, version=True).body
        return [_row(documents, self._numbering, hit) for hit in _decode_page(body).hits.hits]

    def force(self, table: TableSchema, forced: Sequence[Forced]) -> None:
        """Delete each existing document, then write the new document at its own version.

        Elasticsearch remembers the version of a delete for the time `index.gc_deletes`, and rejects a smaller version
        until then. So this sets `index.gc_deletes` to zero for the duration of the call. (Tailrace's normal deletes are
        tombstone documents and do not depend on this setting.)
        """
        wanted = {each.change.id: each for each in forced}
        documents = Documents(table, self._numbering)
        hits = {hit.id: hit for hit in self._hits(table, list(wanted))}
        found = [hit for hit in hits.values() if _row(documents, self._numbering, hit) == wanted[hit.id].held]
        again = [wanted[hit.id].change for hit in found]
        again += [each.change for each in forced if each.held is None and each.change.id not in hits]
        if not again:
            return
        index, target = self._index(table), writer_alias(self._prefix, table, self._generation)
        self._remember_deletes(index, "0s")
        try:
            self._send(target, [(_delete_line(hit), hit.id) for hit in found])
            written_ms = now_ms()
            lines = [(documents.lines(change, written_ms), change.id) for change in again if change.row is not None]
            self._write_when_forgotten(index, target, lines)
        finally:
            self._remember_deletes(index, None)
        with translated_errors():
            self._client.indices.refresh(index=index)

    def close(self) -> None:
        self._client.close()
        self._raw.close()

    def _index(self, table: TableSchema) -> str:
        return index_of(self._prefix, table, self._generation.number)

    def _hits(self, table: TableSchema, ids: Sequence[str]) -> Iterator[_Hit]:
        for start in range(0, len(ids), _IDS_AT_ONCE):
            with translated_errors():
                body = self._raw.mget(index=self._index(table), ids=list(ids[start : start + _IDS_AT_ONCE])).body
            yield from (hit for hit in _decode_docs(body).docs if hit.found)

    def _write_when_forgotten(self, index: str, target: str, lines: Sequence[tuple[bytes, str]]) -> None:
        """Refresh and write until every document is stored.

        A refresh makes the server discard remembered deletes. `send_bulk` treats a version conflict as success, so this
        reads the documents back to find those that the server rejected because of a remembered delete.
        """
        give_up_at = time.monotonic() + _FORGET_SECONDS
        left = list(lines)
        while left:
            with translated_errors():
                self._client.indices.refresh(index=index)
            done = {refusal.what for refusal in self._send(target, left)}  # documents that the server can never accept
            ids = [row_id for _, row_id in left]
            with translated_errors():
                body = self._raw.mget(index=index, ids=ids).body
            done |= {hit.id for hit in _decode_docs(body).docs if hit.found}
            left = [each for each in left if each[1] not in done]
            if left and time.monotonic() > give_up_at:
                raise TransientError(
                    f"{index}: The search server rejects {len(left)} documents: it still remembers their deletes.",
                    remedy="Repair again after the time index.gc_deletes, which is one minute by default.",
                )
            if left:
                time.sleep(0.2)

    def _send(self, target: str, lines: Sequence[tuple[bytes, str]]) -> list[bulk.BulkRefusal]:
        items = [bulk.BulkItem(line, what) for line, what in lines]
        portions = bulk.requests(items, self._settings.bulk_bytes)
        return [refusal for portion in portions for refusal in bulk.send_bulk(self._raw, target, portion)]

    def _remember_deletes(self, index: str, time_value: str | None) -> None:
        with translated_errors():
            self._client.indices.put_settings(index=index, settings={"index.gc_deletes": time_value})


def _row(documents: Documents, numbering: VersionScheme, hit: _Hit) -> StoredRow:
    source = bytes(hit.source)
    try:
        version, row = documents.row_of(source)
    except (msgspec.DecodeError, ValueError, KeyError):  # another program wrote this document
        version, row = Version(0, 0), source
    if not numbering.says(hit.version, version):
        version = numbering.version(hit.version)
    return StoredRow(hit.id, version, row)


def _delete_line(hit: _Hit) -> bytes:
    action = {"_id": hit.id, "if_seq_no": hit.seq_no, "if_primary_term": hit.primary_term}
    return orjson.dumps({"delete": action}) + b"\n"
