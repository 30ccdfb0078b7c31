"""After a restart the server must send again exactly what it sent and the slot has not confirmed."""

from __future__ import annotations

import pytest

from cdc.encoding.envelope import POSTGRES_EPOCH_US
from cdc.errors import RefusedError
from cdc.lsn import LSN
from cdc.pgoutput.messages import Begin
from cdc.positions.progress import Progress
from cdc.startup.resumption import ResumptionCheck

_TIME_US = 7


def _resumption(confirmed: int | None, *, commit: int = 100, through: int = 150) -> ResumptionCheck:
    """Progress ends at a commit at 100, and keepalives have advanced it to 150."""
    progress = Progress(
        state="streaming",
        position=through,
        seq=0,
        base=0,
        confirm_lsn=through,
        commit_lsn=commit,
        commit_time_us=_TIME_US + POSTGRES_EPOCH_US,
        system_identifier="",
        timeline=1,
        publication="",
        publication_tables={},
        topic_ids={},
        end_offsets={},
    )
    return ResumptionCheck(progress, None if confirmed is None else LSN(confirmed))


def _begin(lsn: int, time_us: int = _TIME_US) -> Begin:
    return Begin(LSN(lsn), time_us, 1)


@pytest.mark.parametrize("confirmed", [None, 150])
def test_what_is_not_sent_again_is_not_waited_for(confirmed: int | None) -> None:
    """A new slot, or one that confirmed everything, sends nothing again."""
    assert _resumption(confirmed).is_passed


def test_a_record_without_a_last_commit_is_gone_on_from() -> None:
    """A record of an older release, which has no last commit, is accepted."""
    assert _resumption(20, commit=0).is_passed


def test_a_slot_that_has_fallen_back_sends_the_same_again() -> None:
    """After a server crash the earlier transactions come again, then the last one, then new ones."""
    for end in ("begin", "keepalive"):
        found = _resumption(20)
        for lsn in (30, 90, 100):
            found.on_begin(_begin(lsn))
        found.on_keepalive(LSN(120))
        assert not found.is_passed
        if end == "begin":
            found.on_begin(_begin(150))
        else:
            found.on_keepalive(LSN(150))
        assert found.is_passed


def test_a_transaction_that_was_half_published_comes_again() -> None:
    """A half-published transaction comes again, since the slot is before it."""
    found = _resumption(20, through=20)
    found.on_begin(_begin(100))
    assert not found.is_passed
    found.on_begin(_begin(101))
    assert found.is_passed


def test_a_last_commit_that_is_missing_is_refused() -> None:
    """Another transaction at or past the place of the last commit is refused."""
    for seen in (_begin(101), _begin(160), _begin(100, time_us=8)):
        with pytest.raises(RefusedError, match="rolled back") as refused:
            _resumption(20).on_begin(seen)
        assert "tailrace recover" in str(refused.value)
    with pytest.raises(RefusedError, match="rolled back"):
        _resumption(100).on_keepalive(LSN(101))


def test_a_transaction_where_there_was_none_is_refused() -> None:
    """A transaction where keepalives had shown none belongs to another log and is refused."""
    with pytest.raises(RefusedError, match="had not sent before"):
        _resumption(110).on_begin(_begin(120))
    found = _resumption(110)
    found.on_begin(_begin(150))
    assert found.is_passed
