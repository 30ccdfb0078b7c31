"""Tracks changes while a chunk is read, and decides which of the chunk's rows capture publishes. Does no I/O.

A chunk is read in a Postgres snapshot S between two watermarks, which commit at A (low) and B (high). Capture publishes
its rows at B. For every transaction there are four cases:

- Streamed before A and visible in S: the chunk's rows include it. Nothing to do.
- Streamed before A and not visible in S (a commit is in the WAL before other sessions see it): the chunk's rows are
  older than the published ones. The chunk is read again.
- Streamed between A and B and not visible in S: its rows are newer than the chunk's. Capture discards the chunk's rows
  with those keys.
- Streamed between A and B and visible in S, or streamed after B: either the chunk's rows include it, or it is published
  later with a larger version.

A TRUNCATE or a change of columns between A and B invalidates the whole chunk. The chunk is read again.

The second case also occurs for a transaction that an earlier capture session published. This session has no record of
those transactions. But they were in progress for all other sessions when this capture session started, and they keep
their lock on the table until they are visible.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from cdc.postgres.visibility import Snapshot

# Above this number of changed keys, reading the chunk again costs less than storing more keys.
MOST_KEYS = 200_000
# Limits the open windows, since a chunk whose task died never gets a high watermark. It is the largest allowed value of
# [snapshot] connections.
MOST_WINDOWS = 256

# Numbers of streamed transactions that may not be visible yet. Usually `forget_visible` removes all of them.
_MANY_STREAMED = 50_000
_TOO_MANY_STREAMED = 1_000_000

_XIDS = 1 << 32  # snapshots have 64-bit transaction ids, the stream has the lower 32 bits

ChunkId = tuple[str, int]
Reading = tuple[int, str]  # the attempt, and the id of its run
Key = tuple[str, bytes]  # topic, record key


@dataclass(frozen=True, slots=True)
class WindowVerdict:
    """Decision about a chunk.

    `repeat`: why the chunk must be read again, or None if its rows are valid. `overtaken`: keys whose rows in the chunk
    are older than the published ones. Capture does not publish those rows.
    """

    repeat: str | None
    overtaken: frozenset[Key] = frozenset()


@dataclass(slots=True)
class _Window:
    reading: Reading
    topics: frozenset[str]
    streamed_before: frozenset[int]
    in_progress_at_start: frozenset[int]
    touched: dict[Key, set[int]] = field(default_factory=dict)
    broken: str | None = None


class ChunkWindows:
    """The chunks between their low and high watermarks, and the changes that were streamed meanwhile."""

    def __init__(self) -> None:
        self._windows: dict[ChunkId, _Window] = {}
        self._streamed: set[int] = set()  # transactions that another session may not see yet
        self._in_progress_at_start: set[int] = set()  # those that an earlier session may have streamed
        self.started_at_lsn = 0
        self._full_at = _MANY_STREAMED

    def start(self, in_progress: Iterable[int], lsn: int) -> None:
        """Start tracking at the start of a capture session, or again after an overflow.

        `lsn` was read after the snapshot in which these transactions are in progress. So a chunk whose low watermark is
        after `lsn` is read after that snapshot.
        """
        self._streamed.clear()
        self._in_progress_at_start = {xid % _XIDS for xid in in_progress}
        self.started_at_lsn = lsn

    @property
    def topics(self) -> frozenset[str]:
        """Topics of the open windows. The caller must pass changes of their rows to `touch`."""
        return frozenset().union(*(window.topics for window in self._windows.values()))

    @property
    def is_full(self) -> bool:
        """Whether the caller should call `forget_visible`."""
        return len(self._streamed) > self._full_at

    @property
    def is_overfull(self) -> bool:
        """Whether there are too many streamed transactions to store."""
        return len(self._streamed) > _TOO_MANY_STREAMED

    def streamed(self, xid: int) -> None:
        """Record that this session has streamed the transaction."""
        self._streamed.add(xid)
        self._in_progress_at_start.discard(xid)

    def forget_visible(self, snapshot: Snapshot) -> None:
        """Remove the transactions that are visible in the snapshot, since they are visible in every later one too.

        The snapshot must be older than those of chunks that are read later.
        """
        self._streamed = {xid for xid in self._streamed if not snapshot.shows(xid)}
        self._in_progress_at_start = {xid for xid in self._in_progress_at_start if not snapshot.shows(xid)}
        self._full_at = len(self._streamed) + _MANY_STREAMED

    def low(self, chunk: ChunkId, reading: Reading, topics: Iterable[str], lsn: int) -> None:
        """Open the window of a chunk at its low watermark."""
        self._windows.pop(chunk, None)
        if lsn < self.started_at_lsn:
            return  # the read may have begun before this session, whose predecessor's transactions are unknown
        while len(self._windows) >= MOST_WINDOWS:
            self._windows.pop(next(iter(self._windows)))
        self._windows[chunk] = _Window(
            reading, frozenset(topics), frozenset(self._streamed), frozenset(self._in_progress_at_start)
        )

    def touch(self, topic: str, key: bytes, xid: int) -> None:
        """Record a change of one row by a streamed transaction."""
        for window in self._windows.values():
            if topic in window.topics and window.broken is None:
                window.touched.setdefault((topic, key), set()).add(xid)
                if len(window.touched) > MOST_KEYS:
                    self._break(window, "too many rows changed while the chunk was read")

    def disturb(self, topics: Collection[str], reason: str) -> None:
        """Invalidate the open chunks of these topics, after a TRUNCATE or a change of columns."""
        for window in self._windows.values():
            if not window.topics.isdisjoint(topics):
                self._break(window, reason)

    def high(
        self, chunk: ChunkId, reading: Reading, snapshot: Snapshot, writers: Collection[int] = ()
    ) -> WindowVerdict:
        """Close the window of a chunk at its high watermark, and return the decision about its rows.

        `writers`: transactions that held a lock on the chunk's tables just before the snapshot was taken.
        """
        window = self._windows.pop(chunk, None)
        if window is None or window.reading != reading:
            return WindowVerdict("this capture session did not track the chunk from its low watermark")
        if window.broken is not None:
            return WindowVerdict(window.broken)
        if not all(snapshot.shows(xid) for xid in window.streamed_before):
            return WindowVerdict("a transaction that was streamed before the chunk was not visible to its read yet")
        if not all(snapshot.shows(xid) for xid in window.in_progress_at_start.intersection(writers)):
            return WindowVerdict(
                "an earlier capture session may have published a transaction that the read did not see"
            )
        seen = {xid: snapshot.shows(xid) for xids in window.touched.values() for xid in xids}
        overtaken = (key for key, xids in window.touched.items() if not all(seen[xid] for xid in xids))
        return WindowVerdict(None, frozenset(overtaken))

    @staticmethod
    def _break(window: _Window, reason: str) -> None:
        window.broken = reason
        window.touched.clear()
