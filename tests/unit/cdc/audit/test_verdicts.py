"""Verdicts from facts: a row that moved is not wrong, and a wrong row gets its kind of difference."""

from __future__ import annotations

import pytest

from cdc.audit.difference_rules import DifferenceKind, Moment, RowCase, RowState, judge_store, judge_topic
from cdc.audit.row_content import Content
from cdc.audit.topic_records import TopicRecord
from cdc.lsn import Version
from cdc.postgres.visibility import Snapshot
from cdc.stores.contract import StoredRow

CONTENT = Content()
A, B = b'{"id":1,"v":"a"}', b'{"id":1,"v":"b"}'
#: Transactions below 100 are visible, but for 90; LSNs 1000 to 1100 were passed while the source was read.
MOMENT = Moment(snapshot=Snapshot(90, 100, frozenset({90})), began=1000, ended=1100, now=2000)
NONE = Version(0, 0)


def case(*records: TopicRecord) -> RowCase:
    return RowCase("1", b'{"id":1}', records=list(records))


def record(position: int, row: bytes | None, xid: int | None = 50, *, marker: bool = False) -> TopicRecord:
    return TopicRecord(position, b'{"id":1}', Version(position, 1), row, xid, marker)


def topic_verdict(row: bytes | None, *records: TopicRecord, marker: Version = NONE) -> DifferenceKind | None:
    one = case(*records)
    return judge_topic(one, one.states(marker), row, MOMENT, CONTENT)


@pytest.mark.parametrize(
    ("row", "records", "kind"),
    [
        (A, [record(800, A)], None),
        (B, [record(800, A)], DifferenceKind.CONTENT),
        (A, [], DifferenceKind.MISSING),
        (None, [], None),
        (None, [record(800, A)], DifferenceKind.EXTRA),
        (None, [record(700, None), record(800, A)], DifferenceKind.GHOST),
        (A, [record(800, None)], DifferenceKind.MISSING),
        # Changed after the snapshot was taken: what the snapshot shows is what counts.
        (A, [record(800, A), record(1050, B, xid=150)], None),
        # Streamed before other sessions see it.
        (A, [record(800, A), record(900, B, xid=90)], None),
        # Copied rows have no transaction: by their place.
        (A, [record(800, A, xid=None), record(1500, B, xid=None)], None),
        (A, [record(900, A), record(800, A)], DifferenceKind.VERSION),
        (A, [record(800, A), record(9000, A, xid=None)], DifferenceKind.VERSION),
    ],
)
def test_the_topic_against_the_source(
    row: bytes | None, records: list[TopicRecord], kind: DifferenceKind | None
) -> None:
    """The topic's record is judged by what the source's snapshot shows."""
    assert topic_verdict(row, *records) == kind


def test_a_marker_removes_what_is_older() -> None:
    """A TRUNCATE marker removes older rows, read with the topic or later."""
    assert topic_verdict(None, record(800, A), marker=Version(850, 1)) is None
    assert topic_verdict(None, record(800, A), record(900, None, marker=True)) is None
    assert topic_verdict(A, record(950, A), marker=Version(850, 1)) is None


def test_a_tombstone_says_no_more_than_its_delete() -> None:
    """A tombstone has no transaction of its own, so its delete's counts."""
    states = case(record(800, A), record(900, None, xid=90), record(900, None, xid=None)).states(NONE)
    assert states == [RowState(Version(800, 1), A, 50), RowState(Version(900, 1), None, 90)]


def stored(position: int, row: bytes | None) -> StoredRow:
    return StoredRow("1", Version(position, 1), row)


@pytest.mark.parametrize(
    ("held", "records", "kind"),
    [
        (stored(800, A), [record(800, A)], None),
        (stored(800, B), [record(800, A)], DifferenceKind.CONTENT),
        (stored(900, A), [record(800, A)], DifferenceKind.VERSION),
        (stored(700, A), [record(800, A)], DifferenceKind.VERSION),
        (None, [record(800, A)], DifferenceKind.MISSING),
        (stored(900, None), [record(800, A)], DifferenceKind.MISSING),
        (None, [record(800, A), record(900, None)], None),
        (stored(800, A), [record(800, A), record(900, None)], DifferenceKind.GHOST),
        (stored(8, A), [], DifferenceKind.EXTRA),
        (None, [], None),
        # The store may be anywhere between what it was waited for and the topic's end.
        (stored(800, A), [record(800, A), record(1500, B)], None),
        (stored(1500, B), [record(800, A), record(1500, B)], None),
        (stored(800, A), [record(800, A), record(1050, B)], DifferenceKind.CONTENT),
        (None, [record(1500, A)], None),
        (stored(1500, A), [record(1500, A)], None),
        (None, [record(800, A), record(1500, None), record(1600, B)], None),
    ],
)
def test_a_store_against_the_topic(
    held: StoredRow | None, records: list[TopicRecord], kind: DifferenceKind | None
) -> None:
    """A store's row needs the topic's version, and may not be older than the store's position."""
    assert judge_store(case(*records).states(NONE), held, MOMENT, CONTENT) == kind


def test_a_store_with_a_shape_of_its_own() -> None:
    """A store with a shape must hold the shaped row, and no row that the shape leaves out."""
    states = case(record(800, A)).states(NONE)
    assert judge_store(states, stored(800, B), MOMENT, CONTENT, lambda _: B) is None
    assert judge_store(states, None, MOMENT, CONTENT, lambda _: None) is None
    assert judge_store(states, stored(800, A), MOMENT, CONTENT, lambda _: None) is DifferenceKind.GHOST
