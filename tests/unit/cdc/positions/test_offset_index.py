"""Offsets stand for an LSN: the newest progress record whose end offsets are all reached."""

from __future__ import annotations

from cdc.lsn import Version
from cdc.positions.offset_index import Point, Points


def _point(lsn: int, **ends: list[int]) -> Point:
    return Point(lsn, Version(lsn, 0), ends, lsn * 1000, lsn)


def _lsn(points: Points, **offsets: list[int]) -> int | None:
    found = points.covered(offsets)
    return None if found is None else found.lsn


def test_the_newest_record_that_is_reached_in_every_partition() -> None:
    """One partition behind is enough not to have it."""
    points = Points()
    for number in range(1, 10):
        points.add(_point(number * 8, a=[number, 2 * number], b=[number]))
    assert _lsn(points, a=[0, 0], b=[0]) is None
    assert _lsn(points, a=[4, 8], b=[9]) == 32
    assert _lsn(points, a=[4, 7], b=[9]) == 24
    assert _lsn(points, a=[9, 18], b=[9]) == 72


def test_a_topic_that_is_not_read_counts_once_it_has_records() -> None:
    """A new table's rows are not in the store before it reads the topic; an empty topic holds up nothing."""
    points = Points()
    points.add(_point(8, a=[1], new=[0, 0]))
    points.add(_point(16, a=[1], new=[1, 0]))
    assert _lsn(points, a=[1]) == 8
    assert _lsn(points, a=[1], new=[1, 0]) == 16


def test_many_records_become_coarser_and_stay_true() -> None:
    """A store that is far behind costs no more memory than so many points."""
    points = Points()
    for number in range(1, 20_001):
        points.add(_point(number, a=[number]))
    found = {offset: _lsn(points, a=[offset]) for offset in range(1, 20_001)}
    assert all(lsn is not None and 0 < lsn <= offset for offset, lsn in found.items())
    assert len(set(found.values())) <= 4096
    assert _lsn(points, a=[20_000]) == 20_000
    assert _lsn(points, a=[19_999]) == 19_999


def test_a_table_that_was_removed_holds_up_nothing() -> None:
    """Points from before ask for its topic, which nobody reads any more."""
    points = Points()
    for number in range(1, 9):
        points.add(_point(number, a=[number], removed=[number]))
    points.add(_point(9, a=[9]))
    assert _lsn(points, a=[8]) is None
    assert _lsn(points, a=[9]) == 9


def test_a_server_with_lower_lsns_moves_on_by_version() -> None:
    """After a recovery the LSNs start lower, the versions do not."""
    points = Points()
    points.add(Point(100, Version(100, 0), {"a": [1]}, 0, 0))
    points.add(Point(5, Version(205, 0), {"a": [2]}, 0, 0))
    assert _lsn(points, a=[2]) == 5
