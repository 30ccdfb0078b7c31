"""The log of parked rows: what settles an entry, and what is left of an event that is too large."""

from __future__ import annotations

import orjson
import pytest

from cdc.kafka.record import Record
from cdc.publishing.parked import (
    Parked,
    ParkedKeys,
    ParkedRows,
    decode_parked,
    every_settled_entry,
    is_delete,
    names_of,
    parked_entry,
    settled_entry,
    without_before,
    without_rows,
)

LARGEST = 10_000


def _version(number: int) -> bytes:
    return b"%016x.00000001" % number


def _rows(*records: Record | Parked) -> list[tuple[str, str]]:
    """Store and key of the rows that are parked after these entries."""
    rows = ParkedRows()
    for place, record in enumerate(records):
        rows.take(record if isinstance(record, Parked) else decode_parked(record.value or b"", place, "p.__parked"))
    return [(row.store, row.key) for row in rows]


def _park(key: str, version: int, topic: str = "p.s.t") -> Record:
    return parked_entry("p.__parked", topic, key.encode(), _version(version), 99, LARGEST)


def _settle(key: str, version: int) -> Record:
    return settled_entry("p.__parked", "p.s.t", key.encode(), _version(version), LARGEST)


def test_a_row_is_parked_until_it_is_settled() -> None:
    """A row, known by topic and key, is parked until it is settled, and can be parked again."""
    assert _rows(_park("a", 1), _park("b", 2), _park("a", 3)) == [("", "b"), ("", "a")]
    assert _rows(_park("a", 1), _park("a", 1, "p.s.other"), _settle("a", 2)) == [("", "a")]
    assert _rows(_park("a", 1), _settle("a", 2), _park("a", 3)) == [("", "a")]


def test_a_marker_settles_what_is_older_and_capture_parked() -> None:
    """A TRUNCATE or the end of a snapshot settles older rows parked by capture, and none parked by a store."""
    marker = every_settled_entry("p.__parked", "p.s.t", _version(3))
    of_store = Parked(topic="p.s.t", key="a", version=_version(1).decode(), store="cache")
    records = (_park("a", 1), _park("b", 2), _park("c", 3), _park("a", 1, "p.s.other"), of_store, marker)
    assert _rows(*records) == [("", "c"), ("", "a"), ("cache", "a")]


def test_stores_write_at_least_once() -> None:
    """A late entry neither parks a row again nor settles a newer entry."""
    parked = Parked(topic="p.s.t", key="a", version=_version(2).decode(), store="cache")
    settled = Parked(topic="p.s.t", key="a", version=_version(2).decode(), store="cache", settled=True)
    old = Parked(topic="p.s.t", key="a", version=_version(1).decode(), store="cache")
    assert _rows(parked, settled, old) == []
    assert _rows(parked, old) == [("cache", "a")]


@pytest.mark.parametrize("length", [600, 2 * LARGEST], ids=["long", "too long for an entry"])
def test_long_keys_are_told_apart(length: int) -> None:
    """Long keys are distinct, also in entries of release 0.1 that have the whole key and no digest."""
    one, other = "k" * length + "1", "k" * length + "2"
    assert len(_rows(_park(one, 1), _park(other, 2))) == 2
    assert len(_rows(_park(one, 1), _park(other, 2), _settle(one, 3))) == 1
    entry = decode_parked(_park(one, 1).value or b"", 0, "p.__parked")
    assert {entry.name} <= names_of("", "p.s.t", one.encode())
    keys = ParkedKeys()
    keys.load([entry])
    assert not keys.settle("p.s.t", other.encode())
    assert keys.settle("p.s.t", one.encode())
    assert keys.counts == {}


def test_an_old_entry_with_a_long_key_is_the_same_row() -> None:
    """An entry of release 0.1 with the whole key and no digest is the same row."""
    key = "k" * 600
    assert _rows(Parked(topic="p.s.t", key=key, version=_version(1).decode()), _settle(key, 2)) == []


def test_what_is_left_of_an_event() -> None:
    """Only the row, or its earlier state, is removed from an event, also if columns have the envelope's names."""
    row = b'{"after":{"x":1},"source":"a,\\"source\\":{\\"version\\":\\""}'
    source = b',"source":{"version":"1","seq":7},"transaction":{"id":"1:2"},"op":"%b","ts_ms":1}'
    event = b'{"before":' + row + b',"after":' + row + source % b"u"
    assert without_before(event) == b'{"before":null,"after":' + row + source % b"u"
    assert without_before(without_before(event)) == without_before(event)
    marker = orjson.loads(without_rows(event, parked=True))
    assert (marker["before"], marker["after"], marker["op"]) == (None, None, "d")
    assert marker["source"] == {"version": "1", "seq": 7, "parked": True}
    assert marker["transaction"] == {"id": "1:2"}
    delete = b'{"before":' + row + b',"after":null' + source % b"d"
    assert (is_delete(event), is_delete(delete)) == (False, True)
    assert "parked" not in orjson.loads(without_rows(delete, parked=False))["source"]
