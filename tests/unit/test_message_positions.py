"""Logical messages across a restart: which of them were published, by position and by count."""

from __future__ import annotations

from cdc.changes import Changes
from cdc.lsn import LSN, Version
from cdc.messages import Begin, Commit, LogicalMessage
from cdc.records import Headers

NOTHING = Version(0, 0)


class Life:
    """`sent` is what was published in this life, by content."""

    def __init__(self, resume_after: Version = NOTHING, messages: int = 0) -> None:
        self.sent: list[bytes] = []
        self.changes = Changes(
            pipeline="shop",
            database="db",
            base=0,
            resume_after=resume_after,
            messages_published=messages,
            emit=self._emit,
            partitions=1,
        )

    def _emit(self, _topic: str, _key: bytes, value: bytes | None, _headers: Headers, _partition: int = -1) -> None:
        self.sent.append(value or b"")

    def transaction(self, lsn: int, *contents: bytes) -> Life:
        self.changes.on_begin(Begin(LSN(lsn), 0, 7))
        for content in contents:
            self.changes.on_message(LogicalMessage(True, LSN(lsn - 8), "m", content), "shop.m")
        self.changes.on_commit(Commit(LSN(lsn), LSN(lsn + 40), 0))
        return self

    def loose(self, lsn: int, content: bytes) -> Life:
        self.changes.on_message(LogicalMessage(False, LSN(lsn), "m", content), "shop.m")
        return self

    def restart(self) -> Life:
        return Life(self.changes.version, self.changes.messages)


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
