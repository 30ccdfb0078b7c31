"""Checks that the server's WAL is the one that capture published from: its last published commit must still be there.

This detects a server whose disk was rolled back, and that has written more WAL since than before. Its system
identifier, timeline and WAL length look correct. But the slot was rolled back too. So the server sends transactions
again from the slot's older position, and other transactions are at the LSNs of the published ones. Without this check,
capture would skip them as already published.

Capture must not confirm the slot until the stream has passed the LSN in the progress record. To confirm it would
destroy the evidence. The module does no I/O. The check is exact, because Postgres sends the same transactions every
time for the same WAL: whether it sends a transaction depends on the catalog at that transaction.
"""

from __future__ import annotations

from cdc.encoding.envelope import POSTGRES_EPOCH_US
from cdc.errors import RefusedError
from cdc.lsn import LSN
from cdc.pgoutput.messages import Begin
from cdc.positions.progress import Progress


class ResumptionCheck:
    """Compares the transactions that the server sends again with the progress record.

    `confirmed`: the slot's confirmed LSN, from which the server sends again. `is_passed`: the stream has passed the LSN
    in the progress record, so the check is complete.
    """

    def __init__(self, progress: Progress, confirmed: LSN | None) -> None:
        self._commit = LSN(progress.commit_lsn)
        self._commit_time_us = progress.commit_time_us
        # The server has sent all commits before this LSN. It includes the last commit of progress, also where only a
        # part of that transaction is published.
        self._through = LSN(max(progress.confirm_lsn, progress.commit_lsn + 1))
        self._expects_commit = confirmed is not None and confirmed <= self._commit
        is_known = progress.commit_lsn > 0  # 0 in a record of an older release, or before the first commit
        self.is_passed = not is_known or confirmed is None or confirmed >= self._through

    def on_begin(self, begin: Begin) -> None:
        """Raise RefusedError for a transaction that contradicts the progress record."""
        lsn = begin.final_lsn
        if lsn == self._commit:
            if begin.commit_time_us + POSTGRES_EPOCH_US != self._commit_time_us:
                raise self._rolled_back(f"another transaction commits at {lsn}")
            self._expects_commit = False
        elif lsn > self._commit:
            self._pass(lsn)
            if lsn < self._through:
                raise self._rolled_back(f"it has a transaction at {lsn} that it had not sent before")

    def on_keepalive(self, sent: LSN) -> None:
        """Handle a keepalive outside a transaction: the server has sent everything before `sent`."""
        if sent > self._commit:
            self._pass(sent)

    def _pass(self, lsn: LSN) -> None:
        if self._expects_commit:
            raise self._rolled_back(f"it no longer has the transaction that committed at {self._commit}")
        self.is_passed = lsn >= self._through

    def _rolled_back(self, what: str) -> RefusedError:
        return RefusedError(
            f"The server was rolled back: {what}. Capture has published changes up to {self._through} from WAL that "
            "the server no longer has.",
            remedy="Run: tailrace recover --anyway (it shows what it will do, and asks). Every table then "
            "needs a snapshot.",
        )
