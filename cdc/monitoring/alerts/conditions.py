"""The problems of a pipeline at one moment. Each has a name that is stable while the problem lasts.

Alerts and the journal identify a problem by this name.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdc.monitoring.health_rules import parked_by_capture, parked_for_store
from cdc.monitoring.status_record import Health, HealthLevel, PipelineStatus
from cdc.tables.recorded_state import NEVER_COPIED

#: The states that raise an alert, and their severity.
SEVERITY = {
    HealthLevel.PARKED: 1,
    HealthLevel.BEHIND: 1,
    HealthLevel.UNKNOWN: 2,
    HealthLevel.STALLED: 3,
    HealthLevel.DOWN: 4,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertCondition:
    """One problem: its hop, part or table, its state, the reason and the remedy."""

    where: str
    state: HealthLevel
    reason: str
    remedy: str = ""

    @property
    def severity(self) -> int:
        return SEVERITY[self.state]


def conditions_of(record: PipelineStatus) -> dict[str, AlertCondition]:
    """Return the problems of a status record, by name."""
    found = {
        hop: _of_health(hop, health)
        for hop, health in record.hops.items()
        if health.state in SEVERITY and health.state is not HealthLevel.PARKED
    }
    # Parked rows have their own names, because they last while the hop is also behind or down.
    if record.topics.parked:
        found["topics parked"] = _of_health("topics", parked_by_capture(record.topics.parked))
    for store in record.stores:
        own = (store.parked or 0) - (store.parked_by_capture or 0)  # capture's are reported once, under topics
        if own > 0:
            where = f"store {store.name}"
            found[f"{where} parked"] = _of_health(where, parked_for_store(store.name, own))
        if store.audit is not None and store.audit.differences:
            reason = f"The last audit found {store.audit.differences:,} rows that differ from the source."
            where = f"store {store.name}"
            remedy = f"tailrace audit {store.name} --repair"
            found[f"{where} audit"] = AlertCondition(
                where=where, state=HealthLevel.BEHIND, reason=reason, remedy=remedy
            )
    for table in record.tables:
        if table.incomplete is not None and table.incomplete != NEVER_COPIED:  # the operator's own choice
            name = f"table {table.name}"
            reason = f"Incomplete: {table.incomplete}."
            found[name] = AlertCondition(
                where=name, state=HealthLevel.BEHIND, reason=reason, remedy="tailrace snapshot"
            )
    for error in record.process_errors:
        found[f"{error.where} said"] = AlertCondition(
            where=error.where, state=error.state, reason=error.reason, remedy=error.remedy
        )
    return found


def _of_health(where: str, health: Health) -> AlertCondition:
    return AlertCondition(where=where, state=health.state, reason=health.reason, remedy=health.remedy)
