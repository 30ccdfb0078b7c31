"""Records in offset order are reduced to the last change of each key; TRUNCATE and versions decide which rows
remain.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_jobs.tasks.latest_per_key import LastChange, Reduction, changes_of

TOPIC = "shop.public.t"


def _stamp(number: int) -> bytes:
    return b"%016x.%08x" % (number * 8, 1)


def _event(op: str, after: str = "null") -> bytes:
    return b'{"before":{"after":null,"op":"d"},"after":' + after.encode() + b',"source":{},"op":"' + op.encode() + b'"}'


def _feed(reduction: Reduction, *records: tuple[int, str, bytes | None, int]) -> None:
    reduction.add(
        (TOPIC, partition, offset, json.dumps({"id": key}).encode(), value, _stamp(version), None)
        for offset, (partition, key, value, version) in enumerate(records)
    )


def _rows(reduction: Reduction) -> dict[str, Any]:
    return {json.loads(key)["id"]: held.row for _, rows in reduction.take() for key, held in rows.items()}


def test_the_last_record_of_a_key_stands_and_keeps_its_bytes() -> None:
    """The last record keeps the bytes of `after`: spaces, digits and member order."""
    reduction = Reduction({})
    _feed(
        reduction,
        (0, "a", _event("c", '{"id": 1, "n": 1.10}'), 1),
        (0, "b", _event("c", '{"id":2}'), 2),
        (0, "a", _event("u", '{"id": 1, "n": 1.100}'), 3),
        (0, "b", _event("d"), 4),
        (0, "b", None, 4),
    )
    assert _rows(reduction) == {"a": b'{"id": 1, "n": 1.100}', "b": None}
    assert reduction.events == {TOPIC: 5}
    assert _rows(reduction) == {}, "it is empty after it was taken"


def test_a_tombstone_alone_is_a_delete() -> None:
    """A tombstone alone, as compaction may leave it, is a delete."""
    reduction = Reduction({})
    _feed(reduction, (0, "a", None, 7))
    assert _rows(reduction) == {"a": None}


def test_an_older_version_does_not_replace_a_newer_one() -> None:
    """Versions decide, not the order of arrival."""
    reduction = Reduction({})
    _feed(reduction, (0, "a", _event("c", '{"n":2}'), 2), (0, "a", _event("r", '{"n":1}'), 1))
    assert _rows(reduction) == {"a": b'{"n":2}'}


def test_a_marker_is_found_and_removes_what_is_older() -> None:
    """Rows below a marker become deletes at its version at any place, and a marker is never a row."""
    reduction = Reduction({})
    _feed(
        reduction,
        (0, "a", _event("c", '{"n":1}'), 1),
        (0, "marker", _event("t"), 5),
        (0, "b", _event("c", '{"n":6}'), 6),
        (1, "c", _event("c", '{"n":2}'), 2),
    )
    assert reduction.new_markers == {TOPIC: _stamp(5)}
    ((_, held),) = reduction.take()
    assert {key: (last.version_bytes, last.row) for key, last in held.items()} == {
        b'{"id": "a"}': (_stamp(5), None),
        b'{"id": "b"}': (_stamp(6), b'{"n":6}'),
        b'{"id": "c"}': (_stamp(5), None),
    }


def test_a_marker_that_was_swept_for_is_not_found_again() -> None:
    """The markers of one TRUNCATE in several partitions cause one sweep."""
    reduction = Reduction({TOPIC: _stamp(5)}, leave_out_dead=True)
    _feed(reduction, (0, "a", _event("c", '{"n":1}'), 4), (0, "marker", _event("t"), 5), (0, "b", None, 6))
    assert reduction.new_markers == {}
    assert _rows(reduction) == {"b": None}


def test_a_change_carries_what_the_store_needs() -> None:
    """A change has the id, the key, the version and the row's bytes."""
    (change,) = changes_of({b'{"a":1,"b":"x"}': LastChange(_stamp(3), b'{"a":1}', 0, 9)})
    assert change.id == '["1","x"]'
    assert (change.version.position, change.version.seq) == (24, 1)
    assert change.row == b'{"a":1}'


@pytest.mark.parametrize("value", [0, 42, -7, 10**30, "42", "", "a:1", 'x":5', 'say "', True])
def test_the_fast_path_to_an_id_gives_the_same(value: object) -> None:
    """The fast path gives the same id for any column name and value."""
    for name in ("id", 'odd":7', "a:b"):
        key = json.dumps({name: value}, separators=(",", ":")).encode()
        held = LastChange(_stamp(3), None, 0, 0)
        assert changes_of({key: held}, one_column=True) == changes_of({key: held})
