"""Which transactions a Postgres snapshot shows: needed because a commit is streamed before other sessions see it."""

from __future__ import annotations

from dataclasses import dataclass

_EPOCH = 1 << 32


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`pg_current_snapshot()`: 64-bit transaction ids."""

    xmin: int
    xmax: int
    in_progress: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        xmin, xmax, in_progress = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in in_progress.split(",") if xid))

    def shows(self, xid: int) -> bool:
        """Whether the transaction with this 32-bit id, known to have committed, is visible here."""
        wide = self._widen(xid)
        return wide < self.xmin or (wide < self.xmax and wide not in self.in_progress)

    def _widen(self, xid: int) -> int:
        """pgoutput sends the low 32 bits; the full id is the one nearest to xmax."""
        wide = (self.xmax & ~(_EPOCH - 1)) | xid
        if wide > self.xmax + _EPOCH // 2:
            return wide - _EPOCH
        if wide < self.xmax - _EPOCH // 2:
            return wide + _EPOCH
        return wide
