"""Differences that the audit expects and counts separately: parked rows, and rows that a cache may evict."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from cdc.audit.audit_records import TOPIC
from cdc.audit.difference_rules import DifferenceKind, RowCase
from cdc.audit.recheck import Audited, RecheckOutcome, RowVerdict
from cdc.config import Config
from cdc.publishing.parked import RowName, names_of
from spark_jobs.tasks.parked_rows import read_parked

_OF_PARKED = (DifferenceKind.MISSING, DifferenceKind.CONTENT, DifferenceKind.VERSION)


class KnownDifferences:
    """Removes expected differences from a recheck's outcome and counts them.

    The counts belong to the outcome that was last passed to `taken`.
    """

    def __init__(self, config: Config, audited: Audited) -> None:
        self._config = config
        self._topic = audited.schema.topic
        self._parked: dict[str, set[str]] = {}
        self.evicted: dict[str, int] = {}  # number of rows by store

    def parked(self, side: str) -> int:
        """Return the number of rows that this side lacks because its sync or capture parked them.

        No store can have a row that capture parked.
        """
        return len(self._parked.get(side, set()) | self._parked.get(TOPIC, set()))

    def taken(self, outcome: RecheckOutcome) -> RecheckOutcome:
        """Return the outcome without the expected differences, and count those."""
        self._parked, self.evicted = {}, {}
        if not outcome.wrong:
            return outcome
        known = {row.name for row in read_parked(self._config) if row.topic == self._topic}
        left = {}
        for name, (case, verdict) in outcome.wrong.items():
            kinds = {side: kind for side, kind in verdict.kinds.items() if not self._excused(side, kind, case, known)}
            if kinds:
                left[name] = (case, RowVerdict(kinds, verdict.agreeing, verdict.row, verdict.held))
        return replace(outcome, wrong=left)

    def _excused(self, side: str, kind: DifferenceKind, case: RowCase, known: Set[RowName]) -> bool:
        names = names_of("" if side == TOPIC else side, self._topic, case.key or b"")
        if kind in _OF_PARKED and known & names:
            self._parked.setdefault(side, set()).add(case.id)
            return True
        settings = self._config.stores.get(side)
        if settings is not None and settings.evicts_rows and kind is DifferenceKind.MISSING:
            self.evicted[side] = self.evicted.get(side, 0) + 1
            return True
        return False
