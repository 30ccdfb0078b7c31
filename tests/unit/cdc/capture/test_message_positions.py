"""After a restart, position and count tell which logical messages were already published."""

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


class Session:
    """One capture session: `sent` has the contents that it published."""

    def __init__(self, resume_after: Version = NOTHING, messages: int = 0) -> None:
        self.sent: list[bytes] = []
        self.numbering = Numbering(base=0, resume_after=resume_after, messages_published=messages)

    def _take(self, message: LogicalMessage) -> None:
        number = self.numbering.number_message(message)
        if number is not None:
            self.sent.append(message_record(message, "shop.m", number).value or b"")

    def transaction(self, lsn: int, *contents: bytes) -> Session:
        self.part(lsn, *contents)
        self.numbering.on_commit(Commit(LSN(lsn), LSN(lsn + 40), 0))
        return self

    def part(self, lsn: int, *contents: bytes) -> Session:
        """The beginning of a transaction."""
        self.numbering.on_begin(Begin(LSN(lsn), 0, 7))
        for content in contents:
            self._take(LogicalMessage(True, LSN(lsn - 8), "m", content))
        return self

    def loose(self, lsn: int, content: bytes) -> Session:
        self._take(LogicalMessage(False, LSN(lsn), "m", content))
        return self

    def restart(self) -> Session:
        return Session(self.numbering.version, self.numbering.messages)


def test_a_nontransactional_message_right_before_a_commit_hides_none_of_its_messages() -> None:
    """A message at the position where the commit begins does not take over the count of the previous transaction."""
    again = Session().transaction(100, b"a", b"b", b"c").loose(200, b"loose").restart()
    again.transaction(100, b"a", b"b", b"c").loose(200, b"loose").transaction(200, b"d", b"e")
    assert again.sent == [b"d", b"e"]


def test_after_the_commit_everything_at_its_position_is_published() -> None:
    """Both the non-transactional message and the transaction's own are published."""
    again = Session().loose(200, b"loose").transaction(200, b"d", b"e").restart()
    again.loose(200, b"loose").transaction(200, b"d", b"e").transaction(300, b"f")
    assert again.sent == [b"f"]


def test_half_a_transaction_of_messages_goes_on_where_it_was() -> None:
    """In a transaction without rows, the count alone tells where to continue."""
    again = Session(Version(200, 0), messages=2).transaction(200, b"a", b"b", b"c")
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


def _resumed(progress: Progress) -> Session:
    return Session(progress.version, progress.messages)


def _written(session: Session, *, idle_lsn: int = 0) -> Progress:
    """What a batch, or an idle moment, would write now."""
    version = max(session.numbering.version, Version(idle_lsn, 0))
    return draft_progress(HALF, session.numbering, version, confirm_lsn=LSN(idle_lsn))


@pytest.mark.parametrize(
    "replay",
    [
        pytest.param(lambda session: session, id="before anything came"),
        pytest.param(lambda session: session.transaction(100), id="after an earlier transaction"),
        pytest.param(
            lambda session: session.transaction(100, b"x", b"y", b"z"), id="after an earlier one with more messages"
        ),
        pytest.param(lambda session: session.part(100, b"x"), id="inside an earlier transaction"),
        pytest.param(lambda session: session.loose(100, b"x"), id="after a loose message"),
        pytest.param(lambda session: session.part(200), id="at its beginning"),
        pytest.param(lambda session: session.part(200, b"a"), id="between its published messages"),
    ],
)
@pytest.mark.parametrize("idle_lsn", [0, 60])
def test_progress_written_during_a_replay_still_knows_what_was_published(
    replay: Callable[[Session], Session], idle_lsn: int
) -> None:
    """After a second kill the messages from before the first one are not published again, and the others are."""
    written = _written(replay(_resumed(HALF)), idle_lsn=idle_lsn)
    assert (written.version, written.messages, written.inside_transaction) == (Version(200, 0), 2, True)
    assert _resumed(written).transaction(200, b"a", b"b", b"c").sent == [b"c"]


def test_progress_goes_on_where_the_replay_has_caught_up() -> None:
    """After a replay, progress continues with more messages of the transaction, its end, or a later transaction."""
    more = _written(_resumed(HALF).part(200, b"a", b"b", b"c"))
    assert (more.messages, more.inside_transaction) == (3, True)
    whole = _written(_resumed(HALF).transaction(200, b"a", b"b", b"c"))
    assert (whole.messages, whole.inside_transaction) == (3, False)
    next_one = _written(_resumed(HALF).transaction(200, b"a", b"b", b"c").part(300, b"d"))
    assert (next_one.version, next_one.messages, next_one.inside_transaction) == (Version(300, 0), 1, True)
    idle = _written(_resumed(HALF).transaction(200, b"a", b"b"), idle_lsn=250)
    assert (idle.version, idle.messages, idle.inside_transaction) == (Version(250, 0), 0, False)
