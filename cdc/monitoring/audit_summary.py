"""The last audit of each store, from the records that `tailrace audit` writes to `<prefix>.__audits`, one per table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from cdc.audit.audit_records import FORMAT, AuditRecord
from cdc.monitoring.status_record import AuditStatus

_GRAVITY = ("equal", "equal except parked", "undecided", "incomplete", "drift")


def decode_audit(value: bytes) -> AuditRecord | None:
    """Decode an audit record; None if its format is unknown, because the record is only for display."""
    try:
        found = msgspec.json.decode(value, type=AuditRecord)
    except msgspec.MsgspecError:
        return None
    return found if found.format <= FORMAT else None


def last_audits(records: Iterable[AuditRecord]) -> Mapping[str, AuditStatus]:
    """Return the last audit of each store.

    A continuous audit reads only samples, so its record counts only if it found differences.
    """
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
