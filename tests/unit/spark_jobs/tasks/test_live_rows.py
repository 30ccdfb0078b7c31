"""The rows that a store must have, counted by tasks; and topics cut into ranges."""

from __future__ import annotations

import random

from spark_jobs.tasks.apply_tasks import Answer
from spark_jobs.tasks.key_groups import count_group_rows, grouped
from spark_jobs.tasks.row_counts import live_rows, packed
from spark_jobs.tasks.topic_range import TopicRange, cut

TOPIC = "shop.public.t"


def _stamp(number: int) -> bytes:
    return b"%016x.%08x" % (number * 8, number % 3)


def _groups(states: list[tuple[bytes, int, int, int, bool]], groups: int) -> dict[int, list[bytes]]:
    """Each state in a group of its own, as from separate tasks: key, partition, offset, version, live."""
    found: dict[int, list[bytes]] = {}
    for key, partition, offset, version, live in states:
        for group, data in packed([key], [partition], [offset], [_stamp(version)], [live], groups):
            found.setdefault(group, []).append(data)
    return found


def test_the_last_state_of_each_key_counts_once() -> None:
    """The state with the largest offset counts in any task order; a delete counts as none."""
    states = [(b"a", 0, 5, 5, True), (b"a", 0, 2, 2, False), (b"b", 0, 3, 3, True), (b"b", 0, 9, 9, False)]
    states += [(b"c", 1, 1, 1, True), (b"a", 1, 1, 1, True)]
    for groups in (1, 3):
        assert sum(live_rows(each, b"") for each in _groups(states, groups).values()) == 3


def test_rows_below_a_marker_do_not_count() -> None:
    """Rows with a smaller position or sequence than the marker do not count; its own version does."""
    states = [(b"a", 0, 1, 4, True), (b"b", 0, 2, 5, True), (b"c", 0, 3, 6, True)]
    (group,) = _groups(states, 1).values()
    assert [live_rows(group, _stamp(each)) for each in (4, 5, 6, 7)] == [3, 2, 1, 0]
    same_commit = b"%016x.%08x" % (40, 3)
    assert live_rows(group, same_commit) == 1


def test_the_count_agrees_with_a_plain_count() -> None:
    """For many random states and keys of any length the count equals a plain one."""
    generator = random.Random(7)
    states = [
        (b"k" * (each % 40) + b"%d" % generator.randrange(500), each % 3, each, each, generator.random() < 0.7)
        for each in range(5_000)
    ]
    last = {(key, partition): live for key, partition, _, _, live in states}
    found = _groups(states, 7)
    assert len(found) == 7
    assert sum(live_rows(each, b"") for each in found.values()) == sum(last.values())


def test_a_marker_reaches_every_group_and_the_rest_goes_through() -> None:
    """Each group gets the marker, and other task messages pass unchanged, without keys."""
    groups = 3
    keys = _groups([(b"%d" % number, 0, number, number, True) for number in range(40)], groups)
    answers: list[Answer] = [
        {"kind": "keys", "topic": TOPIC, "grp": group, "data": data} for group, some in keys.items() for data in some
    ]
    answers += [{"kind": "marker", "topic": TOPIC, "stamp": _stamp(30).decode()}, {"kind": "events", "topic": TOPIC}]
    sent = [each for answer in answers for each in grouped(groups, answer)]
    by_group = [[each for each in sent if each[0] == number] for number in range(groups)]
    told = [answer for group in by_group for _, answer in count_group_rows(group)]
    assert sum(answer["rows"] for answer in told if answer["kind"] == "rows") == 10
    assert sorted(answer["kind"] for answer in told if answer["kind"] != "rows") == ["events", *["marker"] * groups]


def test_topics_are_cut_without_gaps() -> None:
    """Every offset is in exactly one range, in order, and an empty topic has no range."""
    start, end = {"a": [0, 7, 5], "b": [0]}, {"a": [250, 7, 6], "b": [100]}
    found = cut(start, end, 100)
    assert found[:3] == [TopicRange("a", 0, 0, 83), TopicRange("a", 0, 83, 166), TopicRange("a", 0, 166, 250)]
    assert found[3:] == [TopicRange("a", 2, 5, 6), TopicRange("b", 0, 0, 100)]
