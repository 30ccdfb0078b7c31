"""Mends just the rows that differ: a store's from the topic where that is right, otherwise by a copy of their keys.

A copy of keys makes new events with new versions, which reach the stores by themselves. A store's row is written again
from the topic's last record; where the row has a larger version than that, by force. Whoever repairs looks again
afterwards: a change that came in between may have lost against the row that was wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing

from cdc.audit.audit_records import TOPIC
from cdc.audit.difference_rules import RowCase, RowState
from cdc.audit.recheck import Audited, RowVerdict
from cdc.config import Config
from cdc.errors import TransientError
from cdc.lsn import Version
from cdc.snapshot.incremental.keys import copy_keys
from cdc.stores.contract import Change, StoredRow
from cdc.stores.registry import open_store
from cdc.stores.scan import Forced

Wrong = Mapping[str, tuple[RowCase, RowVerdict]]


def repair_topic(config: Config, audited: Audited, wrong: Wrong) -> int:
    """How many keys were copied anew."""
    cases = [case for case, verdict in wrong.values() if TOPIC in verdict.kinds and case.key is not None]
    if cases:
        keys: Collection[bytes] = {case.key for case in cases if case.key is not None}
        copy_keys(config, audited.oid, keys, timeout_seconds=audited.timeout_seconds)
        for case in cases:
            case.disordered = False
    return len(cases)


def repair_store(config: Config, audited: Audited, name: str, wrong: Wrong, marker: Version) -> int:
    """How many rows were written again: those whose topic is right."""
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
                continue  # its shape fails for this row: it is parked
        held = verdict.held.get(name)
        if _needs_force(held, change, states):
            assert held is not None  # noqa: S101  # what is not there needs no force
            forced.append(Forced(held, change))
        else:
            plain.append(change)
    written = len(plain) + len(forced)
    _apply(config, audited, name, plain)
    forced += _refused(audited, name, plain)
    if forced:
        audited.scans[name].force(audited.schema_in(name), forced)
    return written


def _change(case: RowCase, states: Sequence[RowState]) -> Change:
    """The topic's last word; where it has none, there is no such row."""
    last = states[-1] if states else RowState(Version(0, 0), None, None)
    return Change(case.id, case.key or b"", last.version, last.row)


def _needs_force(held: StoredRow | None, change: Change, states: Sequence[RowState]) -> bool:
    """A row that the topic never had is removed for good: a tombstone needs a version, and there is none."""
    return held is not None and (held.version > change.version or not states)


def _refused(audited: Audited, name: str, changes: Sequence[Change]) -> list[Forced]:
    """Rows that the store does not have although they were just written: it remembers that they were deleted."""
    rows = [change for change in changes if change.row is not None]
    there = audited.scans[name].rows(audited.schema_in(name), [change.id for change in rows]) if rows else {}
    return [Forced(None, change) for change in rows if change.id not in there]


def _apply(config: Config, audited: Audited, name: str, changes: Sequence[Change]) -> None:
    if not changes:
        return
    with closing(open_store(name, config.stores[name], config.kafka.prefix)) as store:
        serving = store.serving()
        if serving is None:
            raise TransientError(f"{name} serves nothing any more.")
        with closing(store.writer_factory(serving)()) as writer:
            writer.apply(audited.schema_in(name), changes)
        store.publish(serving, [audited.schema_in(name)])
