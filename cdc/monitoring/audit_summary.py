"""The last audit of each store, from what `tailrace audit` keeps on `<prefix>.__audits`: a record for each table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from cdc.audit.audit_records import FORMAT, AuditRecord
from cdc.monitoring.status_record import AuditStatus

_GRAVITY = ("equal", "equal except parked", "undecided", "incomplete", "drift")


def decode_audit(value: bytes) -> AuditRecord | None:
    """None where it cannot be understood: it is only shown."""
    try:
        found = msgspec.json.decode(value, type=AuditRecord)
    except msgspec.MsgspecError:
        return None
    return found if found.format <= FORMAT else None


def last_audits(records: Iterable[AuditRecord]) -> Mapping[str, AuditStatus]:
    """By store. A continuous audit looks at samples: it counts where it found something."""
    by_store: dict[str, list[AuditRecord]] = {}
    for record in records:
        if not record.sampled or record.differing:
            by_store.setdefault(record.store, []).append(record)
    return {
        store: AuditStatus(
            ended=max(each.written_ms for each in tables) / 1000,
            differences=sum(each.differing for each in tables),
            verdict=max((each.verdict for each in tables), key=_GRAVITY.index),
        )
        for store, tables in by_store.items()
    }
