"""The last record of each key, from hashes of the keys."""

from __future__ import annotations

import random

import pytest

from spark_jobs.source.latest_records import LatestRecords


@pytest.mark.parametrize("count", [1, 3])
def test_only_the_last_record_of_a_key_is_left(count: int) -> None:
    """The slices together have the last offset of each key, each key once."""
    chosen = random.Random(1)
    records = [(b'{"id":%d}' % chosen.randrange(200), offset) for offset in range(1000) if chosen.random() < 0.8]
    found: list[int] = []
    for number in range(count):
        latest = LatestRecords(number, count)
        for first in range(0, len(records), 7):
            part = records[first : first + 7]
            latest.add([key for key, _ in part], [offset for _, offset in part])
        latest.finish()
        assert len(latest.between(0, 1000)) == len(latest)
        assert latest.between(300, 500) == {offset for offset in latest.between(0, 1000) if 300 <= offset < 500}
        found += latest.between(0, 1000)
    assert sorted(found) == sorted(dict(records).values())


def test_keys_without_a_record_are_found() -> None:
    """Of the keys that are asked for, those are missing that have no record and belong to the slice."""
    keys = [b"%d" % number for number in range(50)]
    missing: list[bytes] = []
    for number in range(2):
        latest = LatestRecords(number, 2)
        latest.add(keys[:30], range(30))
        latest.finish()
        missing += latest.missing(keys)
    assert sorted(missing) == sorted(keys[30:])
    empty = LatestRecords()
    empty.finish()
    assert empty.missing(keys) == keys
    assert empty.between(0, 10) == set()
    others = LatestRecords(7, 1000)
    others.add(keys[:2], range(2))
    others.finish()
    assert len(others) == 0
