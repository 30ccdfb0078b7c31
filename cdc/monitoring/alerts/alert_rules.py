"""Decides when to raise an alert and when to report recovery: once each, and only for conditions that last.

No I/O and no clock: the caller passes the time.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal

from cdc.config import AlertsConfig
from cdc.monitoring.alerts.conditions import AlertCondition


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert. `id` stays the same when delivery is retried, so a receiver can discard duplicates."""

    event: Literal["raised", "recovered"]
    pipeline: str
    condition: AlertCondition
    since: float
    at: float
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def as_json(self) -> dict[str, Any]:
        condition = self.condition
        return {
            "id": self.id,
            "event": self.event,
            "pipeline": self.pipeline,
            "where": condition.where,
            "state": condition.state.value if self.event == "raised" else "ok",
            "reason": condition.reason,
            "remedy": condition.remedy if self.event == "raised" else "",
            "since": in_iso(self.since),
            "at": in_iso(self.at),
        }


@dataclass(slots=True)
class _Held:
    condition: AlertCondition
    since: float
    raised: AlertCondition | None = None
    gone_since: float | None = None


class AlertRules:
    """The alert state of one pipeline. A condition that becomes more severe while it lasts is raised again."""

    def __init__(self, settings: AlertsConfig, pipeline: str) -> None:
        self._settings = settings
        self._pipeline = pipeline
        self._held: dict[str, _Held] = {}

    def consider(self, conditions: Mapping[str, AlertCondition], now: float) -> list[Alert]:
        """Return the alerts that are due, given the conditions that hold now."""
        alerts = [alert for name, each in conditions.items() if (alert := self._present(name, each, now)) is not None]
        for name in [name for name in self._held if name not in conditions]:
            alert = self._absent(name, now)
            if alert is not None:
                alerts.append(alert)
        return alerts

    def _present(self, name: str, condition: AlertCondition, now: float) -> Alert | None:
        held = self._held.setdefault(name, _Held(condition, now))
        held.condition, held.gone_since = condition, None
        is_news = held.raised is None or condition.severity > held.raised.severity
        if not is_news or now - held.since < self._settings.after_seconds:
            return None
        held.raised = condition
        return self._alert("raised", held, now)

    def _absent(self, name: str, now: float) -> Alert | None:
        held = self._held[name]
        if held.raised is None:
            del self._held[name]  # it ended before it was raised
            return None
        if held.gone_since is None:
            held.gone_since = now
        if now - held.gone_since < self._settings.recovered_seconds:
            return None
        del self._held[name]
        return self._alert("recovered", held, now)

    def _alert(self, event: Literal["raised", "recovered"], held: _Held, now: float) -> Alert:
        return Alert(event=event, pipeline=self._pipeline, condition=held.condition, since=held.since, at=now)


def in_iso(seconds: float) -> str:
    """Return a Unix time as an ISO 8601 string in UTC, with milliseconds."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")
