"""Forgets streamed transactions once every later snapshot chunk is sure to see them."""

from __future__ import annotations

from typing import NamedTuple

import psycopg

from cdc.capture.commit_handover import CommitHandover
from cdc.capture.events.numbering import Numbering
from cdc.lsn import LSN
from cdc.postgres.visibility import Snapshot
from cdc.snapshot.incremental.window import ChunkWindows

_VISIBLE = """
select pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text,
       current_setting('synchronous_standby_names') <> ''
"""


class _Visible(NamedTuple):
    """A snapshot of the visible transactions, and an LSN read just after it.

    `late`: the server has synchronous standbys, so a commit in the WAL becomes visible only after a standby confirms.
    """

    snapshot: Snapshot
    lsn: LSN
    late: bool


class VisibleTransactions:
    """The transactions that were visible at the last query. The constructor queries once and starts `windows`."""

    def __init__(
        self, catalog: psycopg.Connection, *, numbering: Numbering, windows: ChunkWindows, commits: CommitHandover
    ) -> None:
        self._catalog = catalog
        self._numbering = numbering
        self._windows = windows
        self._commits = commits
        self._visible = self._query()
        windows.start(self._visible.snapshot.in_progress if self._visible.late else (), self._visible.lsn)

    def forget_if_full(self) -> None:
        if self._windows.is_full:
            self.forget()

    def forget(self) -> None:
        """Forget the streamed transactions that every later snapshot chunk is sure to see.

        A chunk that was read earlier may still be on its way, and a commit is in the WAL before it is visible. So
        capture uses a snapshot only once the stream has passed the LSN that was read with it. (Capture ignores chunks
        that began before the first snapshot.) A stream that is far behind takes long to pass that LSN: if too many
        transactions accumulate, tracking starts again with the transactions that are in progress now.
        """
        windows, seen = self._windows, self._visible
        has_passed = self._numbering.position - self._numbering.base > seen.lsn
        if has_passed or windows.is_overfull:
            self._visible = self._commits.call(self._query)
        if has_passed or seen.lsn == windows.started_at_lsn:
            windows.forget_visible(seen.snapshot)
        if windows.is_overfull:
            windows.start(self._visible.snapshot.in_progress, self._visible.lsn)

    def _query(self) -> _Visible:
        row = self._catalog.execute(_VISIBLE).fetchone()
        assert row is not None  # noqa: S101  # a select without FROM has one row
        return _Visible(Snapshot.parse(row[0]), LSN.parse(row[1]), row[2])
