"""Numbers the changes of each transaction, and knows which of them earlier sessions have published. No I/O.

A change's version is the position of its transaction (`base` plus the commit's LSN) and its number in it (`seq`). The
server sends the same transactions with the same changes again after a restart, so each change gets the same version.
"""

from __future__ import annotations

from typing import NamedTuple

from cdc.encoding.envelope import POSTGRES_EPOCH_US
from cdc.errors import ProtocolError
from cdc.lsn import Version
from cdc.pgoutput.messages import Begin, Commit, LogicalMessage

_SKIP_NOTHING, _SKIP_ALL = -1, 1 << 62


class MessageNumber(NamedTuple):
    """Identifies a logical message: its position, its number in the transaction, and the `seq` of the change before.

    A message outside a transaction has the numbers 0.
    """

    position: int
    number: int
    seq: int


class Numbering:
    """The open transaction, and the numbers of its changes. Call it with the messages in stream order.

    `seq` and `order`: the numbers of the last change (`order` counts events, as Debezium's `total_order`).
    `skip_through`: the highest `seq` of the transaction that is already published.
    `messages`: how many logical messages of the transaction have a number.
    `is_behind`: the stream has not reached the transaction of `resume_after`.
    """

    __slots__ = (
        "_messages_published",
        "_resume_after",
        "_unused",
        "base",
        "begin",
        "is_behind",
        "messages",
        "order",
        "position",
        "seq",
        "skip_through",
        "version_head",
    )

    def __init__(self, *, base: int, resume_after: Version, messages_published: int = 0) -> None:
        self.base = base
        self._resume_after = resume_after
        self._messages_published = messages_published  # of the transaction at resume_after
        self.begin: Begin | None = None
        self.position, self.seq = resume_after
        self.order = 0
        self.messages = messages_published
        self.is_behind = True
        self.skip_through = _SKIP_NOTHING
        self.version_head = b""
        self._unused = 0  # how many numbers were skipped

    # -- the transaction -------------------------------------------------------------------------------------

    def on_begin(self, message: Begin) -> None:
        if self.begin is not None:
            raise ProtocolError(f"Begin at {message.final_lsn} inside the transaction of {self.begin.final_lsn}")
        self.begin = message
        self.position = self.base + message.final_lsn
        self.seq = self.order = self.messages = self._unused = 0
        self.version_head = b"%016x." % self.position
        self.is_behind = self.position < self._resume_after.position
        if self.position == self._resume_after.position:
            self.skip_through = self._resume_after.seq
        else:
            self.skip_through = _SKIP_ALL if self.is_behind else _SKIP_NOTHING

    def on_commit(self, message: Commit) -> None:
        if self.begin is None:
            raise ProtocolError(f"Commit at {message.commit_lsn} without a Begin")
        self.begin = None

    # -- numbers ---------------------------------------------------------------------------------------------

    def next_change(self) -> int:
        """Number the next change."""
        self.seq += 1
        return self.seq

    def next_event(self) -> int:
        """Count the next event of the last change. Only a change of a key has two."""
        self.order += 1
        return self.order

    def advance(self, seq: int, order: int) -> None:
        """Take over the numbers of a run of changes that the fast path has numbered."""
        self.seq, self.order = seq, order

    def skip_to(self, seq: int) -> None:
        """Number the next change `seq`. No change has the numbers before it."""
        self._unused += seq - self.seq - 1
        self.seq = seq

    def number_message(self, message: LogicalMessage) -> MessageNumber | None:
        """Number a logical message. None: it was published before the restart.

        The position of a message outside a transaction is its own LSN, not that of a commit.
        """
        if message.transactional:
            self.messages += 1
            is_published = self.skip_through == _SKIP_ALL or (
                self.skip_through >= 0 and self.messages <= self._messages_published
            )
            return None if is_published else MessageNumber(self.position, self.messages, self.seq)
        position = self.base + message.lsn
        if position > self.position:
            self.position, self.seq, self.messages = position, 0, 0
        return None if position <= self._resume_after.position else MessageNumber(position, 0, 0)

    # -- where the stream stands -----------------------------------------------------------------------------

    @property
    def version(self) -> Version:
        """The version up to which all changes are queued or published, in this session or an earlier one.

        It does not decrease while the server sends published transactions again.
        """
        return max(Version(self.position, self.seq), self._resume_after)

    @property
    def version_header(self) -> bytes:
        """The version of the last change, as the record header has it."""
        return b"%b%08x" % (self.version_head, self.seq)

    @property
    def count(self) -> int:
        """How many changes and corrections of the current transaction have a number."""
        return self.seq - self._unused

    @property
    def is_published(self) -> bool:
        """Whether the last change was published before the restart."""
        return self.seq <= self.skip_through

    @property
    def is_replaying(self) -> bool:
        """Whether the next change was published before the restart."""
        return Version(self.position, self.seq) < self._resume_after

    @property
    def is_replaying_snapshots(self) -> bool:
        """Whether the snapshot rows of this position were published before the restart. (Their seq is 0.)"""
        return self.skip_through >= 0

    @property
    def commit_ms(self) -> int:
        return 0 if self.begin is None else (self.begin.commit_time_us + POSTGRES_EPOCH_US) // 1000
