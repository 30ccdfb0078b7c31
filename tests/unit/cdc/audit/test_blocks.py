"""Comparing two sides of packed rows names exactly the rows that differ, and compares versions only on request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cdc.audit.row_blocks import Side, block, by_group, differing, found_at, joined, packed_place, split_place
from cdc.audit.row_content import row_digest

Row = tuple[str, str, tuple[int, int], int, bool]  # key, content, version, place, alive


def row(key: str, content: str = "c", version: tuple[int, int] = (8, 1), place: int = -1, live: bool = True) -> Row:
    return key, content, version, place, live


def side(*rows: Row, marker: tuple[int, int] = (0, 0), groups: int = 3) -> Side:
    """Rows as one side, packed into groups and back."""
    packed = block(
        ids=np.array([row_digest(key.encode()) for key, *_ in rows], np.uint64),
        contents=np.array([row_digest(content.encode()) for _, content, *_ in rows], np.uint64),
        keys=[key.encode() for key, *_ in rows],
        positions=np.array([version[0] for _, _, version, _, _ in rows], np.uint64),
        seqs=np.array([version[1] for _, _, version, _, _ in rows], np.uint32),
        places=np.array([place for *_, place, _ in rows], np.int64),
        live=np.array([live for *_, live in rows], bool),
    )
    data = [each for _, each in by_group(packed, groups)]
    return Side(joined(data) if data else None, marker)


def names(one: Side, other: Side, *, versions: bool = False) -> set[str]:
    ids = differing(one, other, versions=versions)
    known: list[Any] = [a or b for a, b in zip(found_at(one, ids), found_at(other, ids), strict=True)]
    return {key.decode() for key, _ in known}


def test_only_what_differs_is_named() -> None:
    """Missing, extra and changed rows are named; equal rows in another order are not."""
    one = side(row("a"), row("b"), row("c"), row("d"))
    other = side(row("d"), row("b", "other"), row("a"), row("x"))
    assert names(one, other) == {"b", "c", "x"}


@pytest.mark.parametrize(("versions", "expected"), [(False, set()), (True, {"a", "b"})])
def test_versions_count_where_asked(versions: bool, expected: set[str]) -> None:
    """Versions are compared by position and sequence when they are requested."""
    one = side(row("a", version=(8, 1)), row("b", version=(8, 1)), row("c"))
    other = side(row("a", version=(16, 1)), row("b", version=(8, 2)), row("c"))
    assert names(one, other, versions=versions) == expected


def test_the_last_record_of_a_key_counts() -> None:
    """The last record by offset counts in any order of arrival, and a delete is no row."""
    topic = side(
        row("a", "new", (16, 1), place=9),
        row("a", "old", (8, 1), place=3),
        row("b", "gone", (8, 1), place=4),
        row("b", "", (16, 2), place=7, live=False),
    )
    assert names(side(row("a", "new")), topic) == set()
    assert topic.live_rows == 1


def test_rows_below_a_marker_are_dead() -> None:
    """Rows below a TRUNCATE marker are removed, and rows at or above it stay."""
    topic = side(row("a", version=(8, 5), place=1), row("b", version=(16, 1), place=2), marker=(16, 1))
    assert names(side(row("b")), topic) == set()


def test_a_version_that_falls_is_reported() -> None:
    """A falling version is reported, since compaction and the stores would keep different records."""
    topic = side(row("a", "same", (16, 1), place=1), row("a", "same", (8, 1), place=2))
    assert names(side(row("a", "same")), topic) == {"a"}


def test_an_empty_side() -> None:
    """Against an empty side every row differs."""
    assert names(side(row("a"), row("b")), side()) == {"a", "b"}
    assert names(side(), side()) == set()


def test_places() -> None:
    """Partition and offset are packed into one number and back."""
    assert split_place(packed_place(7, (1 << 40) + 3)) == (7, (1 << 40) + 3)
    assert packed_place(1, 5) < packed_place(1, 6)
