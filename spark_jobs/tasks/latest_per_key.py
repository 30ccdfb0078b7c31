"""Reduces records in offset order to the last change of each key. Pure; the hot loop of every sync and bootstrap.

The bytes of `after` stay as they are in the topic. Versions are compared as the bytes of the header, which have a
fixed width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from cdc.lsn import Version
from cdc.stores.contract import Change
from cdc.stores.row_ids import row_id_of


class _Envelope(msgspec.Struct, gc=False):
    op: str
    after: msgspec.Raw


_decode = msgspec.json.Decoder(_Envelope).decode
_NULL = b"null"
# An event without a `before` is not parsed. Its `after` lies between two texts that cannot occur inside a JSON string,
# since their quotes would be escaped there.
_HEAD = b'{"before":null,"after":'
_HEAD_BYTES = len(_HEAD)
_SOURCE = b',"source":{"version":"'
# The estimated memory of a change besides its key and row, so that many small rows count as well.
_OBJECT_BYTES = 300
_ID_DIGITS = 100
# Creates named tuples in hot loops: twice as fast as calling the class.
_new: Any = tuple.__new__


#: Topic, partition, offset, key, value, stamp, and Spark's result for the row if the table has a shape.
Record = tuple[str, int, int, bytes, bytes | None, bytes, dict[str, Any] | None]


class LastChange(NamedTuple):
    """The last change of a key so far, and its place in the topic."""

    version_bytes: bytes
    row: bytes | None
    partition: int
    offset: int
    shaped: dict[str, Any] | None = None


class Reduction:
    """Collects records and keeps the last change of each key.

    `markers` maps a topic to the version of the last TRUNCATE whose rows have been deleted from the store; older rows
    are dead. A newer TRUNCATE is put into `new_markers`: the rows of its topic must not be applied before the driver
    has deleted the truncated rows.
    """

    def __init__(self, markers: Mapping[str, bytes], *, leave_out_dead: bool = False) -> None:
        self._markers = markers
        self._leave_out_dead = leave_out_dead
        self._rows: dict[str, dict[bytes, LastChange]] = {}
        self.new_markers: dict[str, bytes] = {}
        self.size_bytes = 0
        self.events: dict[str, int] = {}

    def add(self, records: Iterable[Record]) -> None:
        """Add records. Those of one partition must come in offset order."""
        current: str | None = None
        rows: dict[bytes, LastChange] = {}
        events, size_bytes, count = self.events, 0, 0
        for topic, partition, offset, key, value, version_bytes, shaped in records:
            if topic != current:
                if current is not None:
                    events[current] = events.get(current, 0) + count
                current, rows, count = topic, self._rows.setdefault(topic, {}), 0
            count += 1
            row: bytes | None = None
            if value is not None:
                end = value.find(_SOURCE, _HEAD_BYTES) if value.startswith(_HEAD) else -1
                row = value[_HEAD_BYTES:end] if end > 0 else _NULL
                if row == _NULL:  # a delete, a TRUNCATE, or an event with a `before`
                    event = _decode(value)
                    if event.op == "t":
                        self._mark(topic, version_bytes)
                        continue
                    row = bytes(event.after)
                    if row == _NULL:
                        row = None
            before = rows.get(key)
            if before is not None and before.version_bytes > version_bytes:
                continue
            rows[key] = _new(LastChange, (version_bytes, row, partition, offset, shaped))
            size_bytes += len(key) + _OBJECT_BYTES + (len(row) if row is not None else 0)
        if current is not None:
            events[current] = events.get(current, 0) + count
        self.size_bytes += size_bytes

    def take(self) -> Iterator[tuple[str, dict[bytes, LastChange]]]:
        """Yields the collected changes by topic and removes them from the collection. Markers stay.

        Rows older than a TRUNCATE are returned as deletes at its version. A delayed write request of an earlier
        attempt then finds a larger version in the store. If there was no earlier attempt, the rows may be left out.
        """
        rows, self._rows, self.size_bytes = self._rows, {}, 0
        for topic, held in rows.items():
            marker = max(self._markers.get(topic, b""), self.new_markers.get(topic, b""))
            kept = self._above(marker, held) if marker else held
            if kept:
                yield topic, kept

    def _above(self, marker: bytes, held: dict[bytes, LastChange]) -> dict[bytes, LastChange]:
        if self._leave_out_dead:
            return {key: last for key, last in held.items() if last.version_bytes >= marker}
        return {
            key: last if last.version_bytes >= marker else LastChange(marker, None, last.partition, last.offset)
            for key, last in held.items()
        }

    def _mark(self, topic: str, version_bytes: bytes) -> None:
        if version_bytes > max(self._markers.get(topic, b""), self.new_markers.get(topic, b"")):
            self.new_markers[topic] = version_bytes


def changes_of(held: Mapping[bytes, LastChange], *, one_column: bool = False) -> list[Change]:
    """Return the changes in the form that a writer takes.

    `one_column` says that the key has one column. Most such keys are whole numbers, whose digits are the row's id.
    """
    versions: dict[bytes, Version] = {}  # rows of a snapshot chunk share one version
    changes = []
    for key, (version_bytes, row, _, _, _) in held.items():
        version = versions.get(version_bytes)
        if version is None:
            version = versions[version_bytes] = Version(int(version_bytes[:16], 16), int(version_bytes[17:], 16))
        digits = key[key.rfind(b'":') + 2 : -1] if one_column else b""
        row_id_ = digits.decode() if digits.isdigit() and len(digits) <= _ID_DIGITS else row_id_of(key)
        changes.append(_new(Change, (row_id_, key, version, row)))
    return changes
