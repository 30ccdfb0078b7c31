"""Repair only the rows that differ: a store's row from the topic, or the topic's row by an incremental snapshot.

If the topic is wrong, an incremental snapshot of the keys publishes new events with new versions. The stores apply
these events like any others. If only the store is wrong, the repair writes the topic's last record to it. If the
store's row has a larger version than that record, the repair overwrites it regardless of the version. The caller
must recheck after a repair: the wrong row may have rejected a change that arrived in between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing

from cdc.audit.audit_records import TOPIC
from cdc.audit.difference_rules import RowCase, RowState
from cdc.audit.recheck import Audited, RowVerdict
from cdc.config import Config
from cdc.errors import RefusedError, TransientError
from cdc.lsn import Version
from cdc.snapshot.incremental.keys import snapshot_keys
from cdc.stores.contract import Change, StoredRow
from cdc.stores.registry import open_row_store
from cdc.stores.scan import Forced, RowScan

Wrong = Mapping[str, tuple[RowCase, RowVerdict]]


def repair_topic(config: Config, audited: Audited, wrong: Wrong) -> int:
    """Publish again the rows whose topic is wrong, by an incremental snapshot of their keys. Return how many."""
    cases = [case for case, verdict in wrong.values() if TOPIC in verdict.kinds and case.key is not None]
    if cases:
        keys: Collection[bytes] = {case.key for case in cases if case.key is not None}
        snapshot_keys(config, audited.oid, keys, timeout_seconds=audited.timeout_seconds)
        for case in cases:
            case.disordered = False
    return len(cases)


def repair_store(config: Config, audited: Audited, name: str, wrong: Wrong, marker: Version) -> int:
    """Write again the store's wrong rows whose topic is right. Return how many."""
    expected = audited.expected.get(name)
    plain: list[Change] = []
    forced: list[Forced] = []
    for case, verdict in wrong.values():
        if name not in verdict.kinds or TOPIC in verdict.kinds:
            continue
        states = case.states(marker)
        change = _change(case, states)
        if change.row is not None and expected is not None:
            change = change._replace(row=expected(change.row))
            if change.row is not None and not change.row.startswith(b"{"):
                continue  # the store's shape fails for this row, so the row is parked
        held = verdict.held.get(name)
        if _needs_force(held, change, states):
            assert held is not None  # noqa: S101  # _needs_force returns False for None
            forced.append(Forced(held, change))
        else:
            plain.append(change)
    written = len(plain) + len(forced)
    _apply(config, audited, name, plain)
    forced += _refused(audited, name, plain)
    if forced:
        scan = audited.scans[name]
        if not isinstance(scan, RowScan):
            raise RefusedError(
                f"{audited.schema}: {len(forced)} rows in {name} cannot be repaired, because its scan has no `force`.",
                remedy=f"Rebuild the store: tailrace bootstrap {name}",
            )
        scan.force(audited.schema_in(name), forced)
    return written


def _change(case: RowCase, states: Sequence[RowState]) -> Change:
    """Return the topic's last state of the row as a change. Without one, the change is a delete with version 0."""
    last = states[-1] if states else RowState(Version(0, 0), None, None)
    return Change(case.id, case.key or b"", last.version, last.row)


def _needs_force(held: StoredRow | None, change: Change, states: Sequence[RowState]) -> bool:
    """Return whether the change must overwrite the store's row regardless of its version.

    A row that the topic never had must be removed without a tombstone, since there is no version for a tombstone.
    """
    return held is not None and (held.version > change.version or not states)


def _refused(audited: Audited, name: str, changes: Sequence[Change]) -> list[Forced]:
    """Return the rows that the store lacks although they were just written, because it still holds a tombstone."""
    rows = [change for change in changes if change.row is not None]
    there = audited.scans[name].rows(audited.schema_in(name), [change.id for change in rows]) if rows else {}
    return [Forced(None, change) for change in rows if change.id not in there]


def _apply(config: Config, audited: Audited, name: str, changes: Sequence[Change]) -> None:
    if not changes:
        return
    with closing(open_row_store(name, config.stores[name], config.kafka.prefix)) as store:
        serving = store.serving()
        if serving is None:
            raise TransientError(f"Store {name} no longer has a serving generation.")
        with closing(store.writer_factory(serving)()) as writer:
            writer.apply(audited.schema_in(name), changes)
        store.publish(serving, [audited.schema_in(name)])
