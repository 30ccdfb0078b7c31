"""What is wrong at one moment, each thing under a name that stays while it lasts: what alerts and the journal go by."""

from __future__ import annotations

from dataclasses import dataclass

from cdc.seeing.judging import parked_by_capture, parked_for_store
from cdc.seeing.record import Health, Record, State
from cdc.table_states import NEVER_COPIED

#: The states that a person is told of, and how grave they are.
GRAVITY = {State.PARKED: 1, State.BEHIND: 1, State.UNKNOWN: 2, State.STALLED: 3, State.DOWN: 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    where: str
    state: State
    reason: str
    remedy: str = ""

    @property
    def gravity(self) -> int:
        return GRAVITY[self.state]


def conditions_of(record: Record) -> dict[str, Condition]:
    found = {
        hop: _of_health(hop, health)
        for hop, health in record.hops.items()
        if health.state in GRAVITY and health.state is not State.PARKED
    }
    # Under names of their own: they last while the hop is also behind or down.
    if record.topics.parked:
        found["topics parked"] = _of_health("topics", parked_by_capture(record.topics.parked))
    for store in record.stores:
        own = (store.parked or 0) - (store.parked_by_capture or 0)  # capture's are told once, not once for each store
        if own > 0:
            where = f"store {store.name}"
            found[f"{where} parked"] = _of_health(where, parked_for_store(store.name, own))
        if store.audit is not None and store.audit.differences:
            reason = f"The last audit found {store.audit.differences:,} rows that differ from the source."
            where = f"store {store.name}"
            remedy = f"tailrace audit {store.name} --repair"
            found[f"{where} audit"] = Condition(where=where, state=State.BEHIND, reason=reason, remedy=remedy)
    for table in record.tables:
        if table.incomplete is not None and table.incomplete != NEVER_COPIED:  # the operator's own choice: no alarm
            name = f"table {table.name}"
            reason = f"Incomplete: {table.incomplete}."
            found[name] = Condition(where=name, state=State.BEHIND, reason=reason, remedy="tailrace snapshot")
    for trouble in record.troubles:
        found[f"{trouble.where} said"] = Condition(
            where=trouble.where, state=trouble.state, reason=trouble.reason, remedy=trouble.remedy
        )
    return found


def _of_health(where: str, health: Health) -> Condition:
    return Condition(where=where, state=health.state, reason=health.reason, remedy=health.remedy)
