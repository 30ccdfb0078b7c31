"""Which transactions a snapshot shows; the stream's 32-bit ids are extended to the snapshot's 64 bits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.postgres.visibility import Snapshot

EPOCH = 1 << 32


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("700:705:700,703", Snapshot(700, 705, frozenset({700, 703}))),
        ("700:700:", Snapshot(700, 700, frozenset())),
        ("4294967300:4294967310:4294967301", Snapshot(4_294_967_300, 4_294_967_310, frozenset({4_294_967_301}))),
    ],
)
def test_the_text_of_pg_current_snapshot_is_read(text: str, expected: Snapshot) -> None:
    """xmin, xmax and the transactions in progress are parsed from the server's text."""
    assert Snapshot.parse(text) == expected


@pytest.mark.parametrize(
    ("xid", "shown"),
    [
        pytest.param(699, True, id="before xmin"),
        pytest.param(700, False, id="xmin itself, in progress"),
        pytest.param(701, True, id="committed between"),
        pytest.param(703, False, id="in progress between"),
        pytest.param(704, True, id="the last one that had ended"),
        pytest.param(705, False, id="xmax itself: not yet begun"),
        pytest.param(900, False, id="later"),
    ],
)
def test_a_committed_transaction_is_shown_only_if_it_had_ended(xid: int, shown: bool) -> None:
    """A streamed commit that is still in progress for other sessions is not visible."""
    assert Snapshot.parse("700:705:700,703").shows(xid) is shown


@pytest.mark.parametrize(
    ("xid", "shown"),
    [
        pytest.param(EPOCH - 10, True, id="before the wraparound, older than xmin"),
        pytest.param(EPOCH - 3, False, id="before the wraparound, in progress"),
        pytest.param(EPOCH - 2, True, id="before the wraparound, ended"),
        pytest.param(3, True, id="after the wraparound, ended"),
        pytest.param(4, False, id="after the wraparound, in progress"),
        pytest.param(6, False, id="after the wraparound, not yet begun"),
    ],
)
def test_transaction_ids_that_wrap_around_are_told_apart(xid: int, shown: bool) -> None:
    """Ids around 2^32 are distinguished by the snapshot's 64-bit ids."""
    snapshot = Snapshot(3 * EPOCH - 3, 3 * EPOCH + 5, frozenset({3 * EPOCH - 3, 3 * EPOCH + 4}))
    assert snapshot.shows(xid) is shown


@given(
    xmax=st.integers(EPOCH, 1 << 60),
    distance=st.integers(-(EPOCH // 2) + 1, EPOCH // 2 - 1),
)
def test_the_nearest_id_with_the_same_low_bits_is_meant(xmax: int, distance: int) -> None:
    """The nearest id with the same low bits is meant, since live transactions are within 2^31 of each other."""
    wide = xmax + distance
    snapshot = Snapshot(xmax, xmax, frozenset())
    assert snapshot.shows(wide % EPOCH) is (wide < xmax)


@given(
    xmin=st.integers(3, 1 << 60),
    in_progress=st.frozensets(st.integers(0, 1000), max_size=20),
    place=st.integers(-1000, 2000),
)
def test_the_answer_is_the_same_as_with_whole_ids(xmin: int, in_progress: frozenset[int], place: int) -> None:
    """Cutting an id to 32 bits and extending it again changes no answer."""
    snapshot = Snapshot(xmin, xmin + 1001, frozenset(xmin + offset for offset in in_progress))
    wide = max(0, xmin + place)
    expected = wide < snapshot.xmin or (wide < snapshot.xmax and wide not in snapshot.in_progress)
    assert snapshot.shows(wide % EPOCH) is expected
