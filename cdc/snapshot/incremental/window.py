"""What changed while a chunk was read beside the stream. No I/O: facts in, verdict out.

A chunk is read in a snapshot S between two marks that commit at A (LOW) and B (HIGH); its rows are published at B. For
every transaction there are four cases:

- streamed before A, shown by S: it is in the chunk's rows. Nothing to do.
- streamed before A, not shown by S (a commit reaches the log before other sessions see it): the rows are older than
  what is published already. The chunk is read again.
- streamed between A and B, not shown by S: its rows are newer than the chunk's. The chunk gives way for those keys.
- streamed between A and B, shown by S, or after B: either it is in the rows, or it comes later and wins by its version.

A TRUNCATE or another set of columns between A and B makes the chunk worthless as a whole; it is read again.

The second case has a twin: a transaction that an earlier life of capture has published. Nobody remembers which those
were, but they were in progress to everybody when this life began, and hold a lock on the table until they are not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from cdc.postgres.visibility import Snapshot

# Past this many keys it is cheaper to read the chunk again than to remember more.
MOST_KEYS = 200_000
# Chunks whose task died never get their HIGH; they must not be watched for ever. As many as [copy] connections may be.
MOST_WINDOWS = 256

# Of transactions that may not be visible yet; mostly all of them are, and can be forgotten.
_MANY_STREAMED = 50_000
_TOO_MANY_STREAMED = 1_000_000

_XIDS = 1 << 32  # snapshots have 64-bit ids, the stream has their lower half

ChunkId = tuple[str, int]
Reading = tuple[int, str]  # the attempt, and which run of it
Key = tuple[str, bytes]  # topic, record key


@dataclass(frozen=True, slots=True)
class WindowVerdict:
    """`repeat`: why the chunk must be read again, or None; otherwise its rows hold, without those of `overtaken`."""

    repeat: str | None
    overtaken: frozenset[Key] = frozenset()


@dataclass(slots=True)
class _Window:
    reading: Reading
    topics: frozenset[str]
    streamed_before: frozenset[int]
    open_at_start: frozenset[int]
    touched: dict[Key, set[int]] = field(default_factory=dict)
    broken: str | None = None


class ChunkWindows:
    def __init__(self) -> None:
        self._open: dict[ChunkId, _Window] = {}
        self._streamed: set[int] = set()  # transactions that another session may not see yet
        self._open_at_start: set[int] = set()  # and those that an earlier life may have streamed
        self.started_at = 0
        self._full_at = _MANY_STREAMED

    def start(self, in_progress: Iterable[int], lsn: int) -> None:
        """A life of capture begins, or has lost track. `lsn` was read after the snapshot that shows these transactions
        in progress: a chunk that begins behind it is read later."""
        self._streamed.clear()
        self._open_at_start = {xid % _XIDS for xid in in_progress}
        self.started_at = lsn

    @property
    def topics(self) -> frozenset[str]:
        """Those that are watched: changes of their rows must come to `touch`."""
        return frozenset().union(*(window.topics for window in self._open.values()))

    @property
    def is_full(self) -> bool:
        """Whether it is time for `forget_visible`."""
        return len(self._streamed) > self._full_at

    @property
    def is_overfull(self) -> bool:
        """Whether there are more than can be remembered."""
        return len(self._streamed) > _TOO_MANY_STREAMED

    def streamed(self, xid: int) -> None:
        self._streamed.add(xid)
        self._open_at_start.discard(xid)

    def forget_visible(self, snapshot: Snapshot) -> None:
        """What a snapshot shows, every later one shows too. It must be older than those of chunks still to come."""
        self._streamed = {xid for xid in self._streamed if not snapshot.shows(xid)}
        self._open_at_start = {xid for xid in self._open_at_start if not snapshot.shows(xid)}
        self._full_at = len(self._streamed) + _MANY_STREAMED

    def low(self, chunk: ChunkId, reading: Reading, topics: Iterable[str], lsn: int) -> None:
        self._open.pop(chunk, None)
        if lsn < self.started_at:
            return  # it may have been read before this life began: what an earlier one streamed by then, nobody knows
        while len(self._open) >= MOST_WINDOWS:
            self._open.pop(next(iter(self._open)))
        self._open[chunk] = _Window(
            reading, frozenset(topics), frozenset(self._streamed), frozenset(self._open_at_start)
        )

    def touch(self, topic: str, key: bytes, xid: int) -> None:
        for window in self._open.values():
            if topic in window.topics and window.broken is None:
                window.touched.setdefault((topic, key), set()).add(xid)
                if len(window.touched) > MOST_KEYS:
                    self._break(window, "too many rows changed while it was read")

    def disturb(self, topics: Collection[str], reason: str) -> None:
        """A TRUNCATE, or other columns: whatever was read before does not hold."""
        for window in self._open.values():
            if not window.topics.isdisjoint(topics):
                self._break(window, reason)

    def high(
        self, chunk: ChunkId, reading: Reading, snapshot: Snapshot, writers: Collection[int] = ()
    ) -> WindowVerdict:
        """`writers`: transactions that held a lock on the chunk's tables just before the snapshot was taken."""
        window = self._open.pop(chunk, None)
        if window is None or window.reading != reading:
            return WindowVerdict("capture was not there when it began")
        if window.broken is not None:
            return WindowVerdict(window.broken)
        if not all(snapshot.shows(xid) for xid in window.streamed_before):
            return WindowVerdict("a commit that was streamed before it was not visible yet")
        if not all(snapshot.shows(xid) for xid in window.open_at_start.intersection(writers)):
            return WindowVerdict("a transaction on it was open when capture began, and may have been published before")
        seen = {xid: snapshot.shows(xid) for xids in window.touched.values() for xid in xids}
        overtaken = (key for key, xids in window.touched.items() if not all(seen[xid] for xid in xids))
        return WindowVerdict(None, frozenset(overtaken))

    @staticmethod
    def _break(window: _Window, reason: str) -> None:
        window.broken = reason
        window.touched.clear()
