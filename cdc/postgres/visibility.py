"""Visibility of transactions in a Postgres snapshot.

Capture needs it because Postgres streams a commit before other sessions see its changes.
"""

from __future__ import annotations

from dataclasses import dataclass

_EPOCH = 1 << 32


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A result of `pg_current_snapshot()`. All transaction ids have 64 bits."""

    xmin: int
    xmax: int
    in_progress: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Parse Postgres's text form, `xmin:xmax:xid,xid,…`."""
        xmin, xmax, in_progress = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in in_progress.split(",") if xid))

    def shows(self, xid: int) -> bool:
        """True if the snapshot shows the changes of a committed transaction, given by its 32-bit id."""
        wide = self._widen(xid)
        return wide < self.xmin or (wide < self.xmax and wide not in self.in_progress)

    def _widen(self, xid: int) -> int:
        """Return the 64-bit id. pgoutput sends the low 32 bits, and the full id is the one nearest to xmax."""
        wide = (self.xmax & ~(_EPOCH - 1)) | xid
        if wide > self.xmax + _EPOCH // 2:
            return wide - _EPOCH
        if wide < self.xmax - _EPOCH // 2:
            return wide + _EPOCH
        return wide
