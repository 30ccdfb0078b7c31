"""Logical messages across a restart: which of them were published, by position and by count."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cdc.capture.batches import draft_progress
from cdc.capture.events.numbering import Numbering
from cdc.capture.message_topics import message_record
from cdc.lsn import LSN, Version
from cdc.pgoutput.messages import Begin, Commit, LogicalMessage
from cdc.positions.progress import Progress

NOTHING = Version(0, 0)


class Life:
    """`sent` is what was published in this life, by content."""

    def __init__(self, resume_after: Version = NOTHING, messages: int = 0) -> None:
        self.sent: list[bytes] = []
        self.numbering = Numbering(base=0, resume_after=resume_after, messages_published=messages)

    def _take(self, message: LogicalMessage) -> None:
        number = self.numbering.number_message(message)
        if number is not None:
            self.sent.append(message_record(message, "shop.m", number).value or b"")

    def transaction(self, lsn: int, *contents: bytes) -> Life:
        self.part(lsn, *contents)
        self.numbering.on_commit(Commit(LSN(lsn), LSN(lsn + 40), 0))
        return self

    def part(self, lsn: int, *contents: bytes) -> Life:
        """The beginning of a transaction."""
        self.numbering.on_begin(Begin(LSN(lsn), 0, 7))
        for content in contents:
            self._take(LogicalMessage(True, LSN(lsn - 8), "m", content))
        return self

    def loose(self, lsn: int, content: bytes) -> Life:
        self._take(LogicalMessage(False, LSN(lsn), "m", content))
        return self

    def restart(self) -> Life:
        return Life(self.numbering.version, self.numbering.messages)


def test_a_loose_message_right_before_a_commit_hides_none_of_its_messages() -> None:
    """Its position is where the commit begins; how many were published of the transaction *before* does not count."""
    again = Life().transaction(100, b"a", b"b", b"c").loose(200, b"loose").restart()
    again.transaction(100, b"a", b"b", b"c").loose(200, b"loose").transaction(200, b"d", b"e")
    assert again.sent == [b"d", b"e"]


def test_after_the_commit_everything_at_its_position_is_published() -> None:
    """The loose one and the transaction's own alike."""
    again = Life().loose(200, b"loose").transaction(200, b"d", b"e").restart()
    again.loose(200, b"loose").transaction(200, b"d", b"e").transaction(300, b"f")
    assert again.sent == [b"f"]


def test_half_a_transaction_of_messages_goes_on_where_it_was() -> None:
    """It has no rows, so only the count tells."""
    again = Life(Version(200, 0), messages=2).transaction(200, b"a", b"b", b"c")
    assert again.sent == [b"c"]


# -- and killed again before everything has been sent again -----------------------------------------------------------

HALF = Progress(
    state="streaming",
    position=200,
    seq=0,
    base=0,
    confirm_lsn=50,
    messages=2,
    inside_transaction=True,
    system_identifier="",
    timeline=1,
    publication="",
    publication_tables={},
    topic_ids={},
    end_offsets={},
)


def _resumed(progress: Progress) -> Life:
    return Life(progress.version, progress.messages)


def _written(life: Life, *, idle_lsn: int = 0) -> Progress:
    """What a batch, or an idle moment, would write now."""
    version = max(life.numbering.version, Version(idle_lsn, 0))
    return draft_progress(HALF, life.numbering, version, confirm_lsn=LSN(idle_lsn))


@pytest.mark.parametrize(
    "replay",
    [
        pytest.param(lambda life: life, id="before anything came"),
        pytest.param(lambda life: life.transaction(100), id="after an earlier transaction"),
        pytest.param(
            lambda life: life.transaction(100, b"x", b"y", b"z"), id="after an earlier one with more messages"
        ),
        pytest.param(lambda life: life.part(100, b"x"), id="inside an earlier transaction"),
        pytest.param(lambda life: life.loose(100, b"x"), id="after a loose message"),
        pytest.param(lambda life: life.part(200), id="at its beginning"),
        pytest.param(lambda life: life.part(200, b"a"), id="between its published messages"),
    ],
)
@pytest.mark.parametrize("idle_lsn", [0, 60])
def test_progress_written_during_a_replay_still_knows_what_was_published(
    replay: Callable[[Life], Life], idle_lsn: int
) -> None:
    """Killed a second time, the messages before the first kill do not come again, and the rest of them does."""
    written = _written(replay(_resumed(HALF)), idle_lsn=idle_lsn)
    assert (written.version, written.messages, written.inside_transaction) == (Version(200, 0), 2, True)
    assert _resumed(written).transaction(200, b"a", b"b", b"c").sent == [b"c"]


def test_progress_goes_on_where_the_replay_has_caught_up() -> None:
    """More messages of it, then its end, then what comes after it; or a log that went on without us."""
    more = _written(_resumed(HALF).part(200, b"a", b"b", b"c"))
    assert (more.messages, more.inside_transaction) == (3, True)
    whole = _written(_resumed(HALF).transaction(200, b"a", b"b", b"c"))
    assert (whole.messages, whole.inside_transaction) == (3, False)
    next_one = _written(_resumed(HALF).transaction(200, b"a", b"b", b"c").part(300, b"d"))
    assert (next_one.version, next_one.messages, next_one.inside_transaction) == (Version(300, 0), 1, True)
    idle = _written(_resumed(HALF).transaction(200, b"a", b"b"), idle_lsn=250)
    assert (idle.version, idle.messages, idle.inside_transaction) == (Version(250, 0), 0, False)
