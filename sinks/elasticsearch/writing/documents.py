"""Rows as documents and back; the hot part of writing to Elasticsearch. Pure.

A document is the row's own bytes with our field put in front, so nothing of the row is parsed, and nothing can change.
Only a table with odd column names (`field_name`) is taken apart, and even there the values stay bytes.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import orjson

from cdc.lsn import Version
from cdc.stores.contract import Change, TableSchema
from sinks.elasticsearch.naming import OWN, field_name
from sinks.elasticsearch.writing.external_versions import Numbering

_ACTION: Final = b'{"index":{"_id":%b,"version":%d,"version_type":"external_gte"}}\n'
_ROW_LINES: Final = _ACTION + b'{"' + OWN.encode() + b'":{"position":%d,"seq":%d}%b%b\n'
_TOMBSTONE_LINES: Final = (
    _ACTION + b'{"' + OWN.encode() + b'":{"position":%d,"seq":%d,"deleted":true,"deleted_ms":%d}}\n'
)
_ANY_NUMBERING: Final = Numbering()
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class Stamp(msgspec.Struct):
    """Our own field, as it stands in a document."""

    position: int
    seq: int
    deleted: bool = False


class DocumentSource(msgspec.Struct):
    stamp: Stamp = msgspec.field(name=OWN)


_decode_stamp = msgspec.json.Decoder(DocumentSource).decode


class Documents:
    """Makes the bulk lines of one table."""

    def __init__(self, table: TableSchema, numbering: Numbering = _ANY_NUMBERING) -> None:
        """`numbering`: the generation's, where lines are made; rows are read without it."""
        self._number = numbering.number
        self._renamed = {
            column.name: field_name(column.name) for column in table.columns if field_name(column.name) != column.name
        }

    def lines(self, change: Change, now_ms: int) -> bytes:
        """The action and the document."""
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
        """The version and the row (None: a tombstone) of a document's source: the row's own bytes again."""
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
    return _TOMBSTONE_LINES % (orjson.dumps(row_id), version, position, seq, now_ms)


def live() -> dict[str, Any]:
    """The query that readers' aliases filter by: no tombstones."""
    return {"bool": {"must_not": [{"term": {f"{OWN}.deleted": True}}]}}


def older_than(version: Version) -> dict[str, Any]:
    """The query for documents with a smaller version."""
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
