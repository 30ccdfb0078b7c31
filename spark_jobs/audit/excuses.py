"""Differences that are known and said elsewhere: rows that were parked, rows that a cache may evict."""

from __future__ import annotations

from dataclasses import replace

from cdc.audit.judging import Case, Kind
from cdc.audit.recheck import Audited, Outcome, Verdict
from cdc.audit.records import TOPIC
from cdc.config import Config
from cdc.config.stores import Redis
from spark_jobs.stores.parked_rows import read_parked

_KEPT_KEY_BYTES = 512


class Excuses:
    """`parked` and `evicted`: how many, by side, of the outcome that was looked at last."""

    def __init__(self, config: Config, audited: Audited) -> None:
        self._config = config
        self._topic = audited.schema.topic
        self.parked: dict[str, int] = {}
        self.evicted: dict[str, int] = {}

    def taken(self, outcome: Outcome) -> Outcome:
        self.parked, self.evicted = {}, {}
        if not outcome.wrong:
            return outcome
        known = {(each.store, each.key) for each in read_parked(self._config) if each.topic == self._topic}
        left = {}
        for name, (case, verdict) in outcome.wrong.items():
            kinds = {side: kind for side, kind in verdict.kinds.items() if not self._excused(side, kind, case, known)}
            if kinds:
                left[name] = (case, Verdict(kinds, verdict.agreeing, verdict.row, verdict.held))
        return replace(outcome, wrong=left)

    def _excused(self, side: str, kind: Kind, case: Case, known: set[tuple[str, str]]) -> bool:
        key = (case.key or b"")[:_KEPT_KEY_BYTES].decode(errors="replace")
        if ("" if side == TOPIC else side, key) in known and kind in (Kind.MISSING, Kind.CONTENT, Kind.VERSION):
            self.parked[side] = self.parked.get(side, 0) + 1
            return True
        settings = self._config.stores.get(side)
        if isinstance(settings, Redis) and settings.eviction and kind is Kind.MISSING:
            self.evicted[side] = self.evicted.get(side, 0) + 1
            return True
        return False
