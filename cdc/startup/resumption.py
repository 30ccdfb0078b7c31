"""Whether the stream goes on where progress ended: the server must still have the last commit that it has sent.

The check for a server whose disk was rolled back and that has since written more log than before: its system
identifier, timeline and length of log look as they should. But the slot was rolled back too, so the server sends again
from there on, and other transactions are where the published ones were. They would be skipped as published.

Until the stream has passed what progress covers, the slot must not be confirmed: that would destroy the evidence.
Pure: no I/O. What Postgres sends for one stretch of log is the same every time, so this is exact: whether a transaction
is sent hangs on the catalog as it was then.
"""

from __future__ import annotations

from cdc.encoding.envelope import POSTGRES_EPOCH_US
from cdc.errors import RefusedError
from cdc.lsn import LSN
from cdc.pgoutput.messages import Begin
from cdc.positions.progress import Progress


class Resumption:
    """`confirmed`: where the slot stands, so what it sends again. `is_passed` once everything in progress is behind."""

    def __init__(self, progress: Progress, confirmed: LSN | None) -> None:
        self._commit = LSN(progress.commit_lsn)
        self._commit_time_us = progress.commit_time_us
        # Commits before it have all been sent; with the last of them inside, a large transaction is half published.
        self._through = LSN(max(progress.confirm_lsn, progress.commit_lsn + 1))
        self._is_due = confirmed is not None and confirmed <= self._commit
        is_known = progress.commit_lsn > 0  # not so in the record of an older Tailrace, or before the first commit
        self.is_passed = not is_known or confirmed is None or confirmed >= self._through

    def on_begin(self, begin: Begin) -> None:
        """Refuses a transaction that cannot be there."""
        lsn = begin.final_lsn
        if lsn == self._commit:
            if begin.commit_time_us + POSTGRES_EPOCH_US != self._commit_time_us:
                raise self._rolled_back(f"another transaction commits at {lsn}")
            self._is_due = False
        elif lsn > self._commit:
            self._pass(lsn)
            if lsn < self._through:
                raise self._rolled_back(f"there is a transaction at {lsn} that it had not sent before")

    def on_keepalive(self, sent: LSN) -> None:
        """Outside of transactions: everything before `sent` has come."""
        if sent > self._commit:
            self._pass(sent)

    def _pass(self, lsn: LSN) -> None:
        if self._is_due:
            raise self._rolled_back(f"the transaction that committed at {self._commit} is not there any more")
        self.is_passed = lsn >= self._through

    def _rolled_back(self, what: str) -> RefusedError:
        return RefusedError(
            f"The server was rolled back: {what}. Changes up to {self._through} were published from a log that it has "
            "no more.",
            remedy="Run: tailrace recover --anyway (it shows what it will do, and asks). It copies every table again, "
            "in place.",
        )
