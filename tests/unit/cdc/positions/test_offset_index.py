"""Offsets are mapped to an LSN: the newest progress record whose end offsets are all reached."""

from __future__ import annotations

from cdc.lsn import Version
from cdc.positions.offset_index import Point, Points


def _point(lsn: int, **ends: list[int]) -> Point:
    return Point(lsn, Version(lsn, 0), ends, lsn * 1000, lsn)


def _lsn(points: Points, **offsets: list[int]) -> int | None:
    found = points.covered(offsets)
    return None if found is None else found.lsn


def test_the_newest_record_that_is_reached_in_every_partition() -> None:
    """A record is reached only when every partition has reached it."""
    points = Points()
    for number in range(1, 10):
        points.add(_point(number * 8, a=[number, 2 * number], b=[number]))
    assert _lsn(points, a=[0, 0], b=[0]) is None
    assert _lsn(points, a=[4, 8], b=[9]) == 32
    assert _lsn(points, a=[4, 7], b=[9]) == 24
    assert _lsn(points, a=[9, 18], b=[9]) == 72


def test_a_topic_that_is_not_read_counts_once_it_has_records() -> None:
    """A topic that the store does not read yet counts once it has records; an empty one delays nothing."""
    points = Points()
    points.add(_point(8, a=[1], new=[0, 0]))
    points.add(_point(16, a=[1], new=[1, 0]))
    assert _lsn(points, a=[1]) == 8
    assert _lsn(points, a=[1], new=[1, 0]) == 16


def test_many_records_become_coarser_and_stay_correct() -> None:
    """At most 4096 points are kept: LSNs of old offsets become coarser, and are never beyond the offset."""
    points = Points()
    for number in range(1, 20_001):
        points.add(_point(number, a=[number]))
    found = {offset: _lsn(points, a=[offset]) for offset in range(1, 20_001)}
    assert all(lsn is not None and 0 < lsn <= offset for offset, lsn in found.items())
    assert len(set(found.values())) <= 4096
    assert _lsn(points, a=[20_000]) == 20_000
    assert _lsn(points, a=[19_999]) == 19_999


def test_a_table_that_was_removed_holds_up_nothing() -> None:
    """Points from before a table's removal, which need its topic, are discarded."""
    points = Points()
    for number in range(1, 9):
        points.add(_point(number, a=[number], removed=[number]))
    points.add(_point(9, a=[9]))
    assert _lsn(points, a=[8]) is None
    assert _lsn(points, a=[9]) == 9


def test_a_server_with_lower_lsns_moves_on_by_version() -> None:
    """After a recovery to lower LSNs the points are ordered by version."""
    points = Points()
    points.add(Point(100, Version(100, 0), {"a": [1]}, 0, 0))
    points.add(Point(5, Version(205, 0), {"a": [2]}, 0, 0))
    assert _lsn(points, a=[2]) == 5
