"""Converts rows to documents and back. The hot loop of writing to Elasticsearch. Pure: no I/O.

A document is the row's bytes with the field `_tailrace` inserted at the front. The row is not parsed, so no value can
change. Only rows of a table whose column names must be changed (`field_name`) are decoded, and even then the values
stay bytes.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import orjson

from cdc.lsn import Version
from cdc.stores.contract import Change, TableSchema
from sinks.elasticsearch.naming import OWN, field_name
from sinks.elasticsearch.writing.external_versions import VersionScheme

_ACTION: Final = b'{"index":{"_id":%b,"version":%d,"version_type":"external_gte"}}\n'
_ROW_LINES: Final = _ACTION + b'{"' + OWN.encode() + b'":{"position":%d,"seq":%d}%b%b\n'
_TOMBSTONE_LINES: Final = (
    _ACTION + b'{"' + OWN.encode() + b'":{"position":%d,"seq":%d,"deleted":true,"deleted_ms":%d}}\n'
)
_ANY_NUMBERING: Final = VersionScheme()
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class Stamp(msgspec.Struct):
    """The field `_tailrace` of a document."""

    position: int
    seq: int
    deleted: bool = False


class DocumentSource(msgspec.Struct):
    """A document's source, reduced to the field `_tailrace`."""

    stamp: Stamp = msgspec.field(name=OWN)


_decode_stamp = msgspec.json.Decoder(DocumentSource).decode


class Documents:
    """Encodes one table's changes as bulk lines, and decodes documents into rows."""

    def __init__(self, table: TableSchema, numbering: VersionScheme = _ANY_NUMBERING) -> None:
        """Writing lines needs the generation's `numbering`. Reading rows does not use it."""
        self._number = numbering.number
        self._renamed = {
            column.name: field_name(column.name) for column in table.columns if field_name(column.name) != column.name
        }

    def lines(self, change: Change, now_ms: int) -> bytes:
        """Return the two lines of a bulk request for a change: the action and the document."""
        position, seq = change.version
        version = self._number(change.version)
        row = change.row
        if row is None:
            return tombstone_lines(change.id, version, position, seq, now_ms)
        if self._renamed:
            row = self._rename(row)
        comma = b"" if len(row) == 2 else b","
        return _ROW_LINES % (orjson.dumps(change.id), version, position, seq, comma, row[1:])

    def _rename(self, row: bytes) -> bytes:
        members = _decode_members(row)
        return _encode({self._renamed.get(name, name): value for name, value in members.items()})

    def row_of(self, source: bytes) -> tuple[Version, bytes | None]:
        """Return the version and the row's original bytes from a document's source. The row of a tombstone is None."""
        stamp = _decode_stamp(source).stamp
        version = Version(stamp.position, stamp.seq)
        if stamp.deleted:
            return version, None
        row = b"{" + source[source.index(b"}") + 1 :].removeprefix(b",")
        if not self._renamed:
            return version, row
        original = {renamed: name for name, renamed in self._renamed.items()}
        return version, _encode({original.get(name, name): value for name, value in _decode_members(row).items()})


def tombstone_lines(row_id: str, version: int, position: int, seq: int, now_ms: int) -> bytes:
    """Return the two lines of a bulk request for a tombstone."""
    return _TOMBSTONE_LINES % (orjson.dumps(row_id), version, position, seq, now_ms)


def live() -> dict[str, Any]:
    """Return the query by which reader aliases filter: no tombstones."""
    return {"bool": {"must_not": [{"term": {f"{OWN}.deleted": True}}]}}


def older_than(version: Version) -> dict[str, Any]:
    """Return the query for documents with a smaller version."""
    same_position = [
        {"term": {f"{OWN}.position": version.position}},
        {"range": {f"{OWN}.seq": {"lt": version.seq}}},
    ]
    return {
        "bool": {
            "should": [{"range": {f"{OWN}.position": {"lt": version.position}}}, {"bool": {"filter": same_position}}],
            "minimum_should_match": 1,
        }
    }
