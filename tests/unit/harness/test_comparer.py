"""The comparer computes what a topic stands for and reports every difference by name."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from cdc.lsn import Version
from tests.harness.comparison.comparer import Reader, assert_exactly_once, assert_same, differences
from tests.harness.kafka.records import Record, last_rows
from tests.harness.postgres.catalog import Column, PgType, Table

_TABLE = Table("public", "x", (Column("id", PgType("int4")), Column("name", PgType("text"))), key=("id",))


def _record(offset: int, key: int, op: str | None, version: tuple[int, int], name: str = "a") -> Record:
    value: Any = None
    if op is not None:
        value = {"op": op, "after": None if op in "dt" else {"id": key, "name": name}}
    own_key = orjson.dumps({"__truncate" if op == "t" else "id": key})
    return Record("t.public.x", 0, offset, own_key, value, Version(*version), {})


def test_the_last_row_of_each_key_counts() -> None:
    """Inserts and updates leave the newest row; a delete leaves none, with or without its tombstone."""
    records = [
        _record(0, 1, "c", (8, 1)),
        _record(1, 2, "c", (8, 2)),
        _record(2, 3, "c", (8, 3)),
        _record(3, 1, "u", (16, 1), "b"),
        _record(4, 2, "d", (16, 2)),
        _record(5, 3, "d", (16, 3)),
        _record(6, 3, None, (16, 3)),
    ]
    assert last_rows(_TABLE, records) == {(1,): {"id": 1, "name": "b"}}


def test_a_marker_removes_what_is_older() -> None:
    """Rows below a TRUNCATE's version are removed at any place; equal and newer ones stay."""
    records = [
        _record(0, 1, "c", (8, 1)),
        _record(1, 0, "t", (16, 1)),
        _record(2, 2, "c", (16, 2)),
        _record(3, 3, "r", (16, 1)),
        _record(4, 4, "r", (16, 0)),
    ]
    assert set(last_rows(_TABLE, records)) == {(2,), (3,)}


def _reader(rows: dict[Any, Any]) -> Reader:
    return lambda _: rows


def test_every_difference_is_named() -> None:
    """Missing and extra rows, other values and missing columns are each reported with the key."""
    source = {(1,): {"id": 1, "name": "a"}, (2,): {"id": 2, "name": "b"}, (3,): {"id": 3, "name": "c"}}
    topic = {(1,): {"id": 1, "name": "A"}, (3,): {"id": 3}, (4,): {"id": 4, "name": "d"}}
    assert [str(found) for found in differences([_TABLE], _reader(source), _reader(topic))] == [
        "public.x (1,) name: 'a' became 'A'",
        "public.x (2,): missing",
        "public.x (3,) name: 'c' became '<no such column>'",
        "public.x (4,): extra",
    ]


def test_the_failure_lists_the_differences() -> None:
    """An assertion that fails says how many differ and shows them."""
    with pytest.raises(AssertionError, match=r"1 differences:\n  public.x \(1,\): missing"):
        assert_same([_TABLE], _reader({(1,): {"id": 1}}), _reader({}), deadline_seconds=0)


def test_a_reader_may_catch_up() -> None:
    """Without a fence the comparison is repeated until the deadline."""
    states: list[dict[Any, Any]] = [{}, {}, {(1,): {"id": 1}}]
    assert_same([_TABLE], _reader({(1,): {"id": 1}}), lambda _: states.pop(0))


def test_after_the_fence_there_is_one_comparison() -> None:
    """With a fence a difference is an error at once."""
    states: list[dict[Any, Any]] = [{}, {(1,): {"id": 1}}]
    with pytest.raises(AssertionError, match="missing"):
        assert_same([_TABLE], _reader({(1,): {"id": 1}}), lambda _: states.pop(0), settled=lambda: True)


def test_right_order_passes() -> None:
    """Rising versions, a delete with its tombstone, the same version under two keys: all as it must be."""
    assert_exactly_once(
        [
            _record(0, 1, "c", (8, 1)),
            _record(1, 1, "d", (16, 1)),
            _record(2, 1, None, (16, 1)),
            _record(3, 2, "c", (16, 1)),
            _record(4, 0, "t", (16, 1)),
            _record(5, 3, "t", (16, 1)),
            _record(6, 1, "c", (16, 2)),
        ]
    )


@pytest.mark.parametrize(
    ("records", "word"),
    [
        ([_record(0, 1, "c", (8, 1)), _record(1, 1, "c", (8, 1))], "twice"),
        ([_record(0, 0, "t", (8, 1)), _record(1, 0, "t", (8, 1))], "twice"),
        ([_record(0, 1, "c", (8, 2)), _record(1, 1, "u", (8, 1))], "back in time"),
        ([_record(0, 1, "c", (8, 1)), _record(1, 1, None, (8, 1))], "not its delete's"),
        ([_record(0, 1, "d", (8, 1)), _record(1, 1, None, (8, 1)), _record(2, 1, None, (8, 1))], "delete's"),
    ],
)
def test_wrong_order_is_found(records: list[Record], word: str) -> None:
    """An event twice, a version that falls, a tombstone on its own: each is named with its place."""
    with pytest.raises(AssertionError, match=word):
        assert_exactly_once(records)
