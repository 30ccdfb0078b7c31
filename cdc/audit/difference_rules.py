"""Decide whether a row truly differs, from what the source, the topic and the stores hold. Pure functions, no I/O.

The sides are never read at the same instant. The verdict is still right, because the topic records the row after each
change. The source's row, read in a snapshot, must equal the topic's row after the last change that the snapshot shows.
A store's row must equal the topic's row after some change, with the same version. That change must not be older than
the changes that the store is known to have applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from cdc.audit.row_content import Content
from cdc.audit.topic_records import TopicRecord
from cdc.lsn import Version
from cdc.postgres.visibility import Snapshot
from cdc.stores.contract import StoredRow


class DifferenceKind(str, Enum):
    """How a row of the topic or of a store differs."""

    MISSING = "missing"
    #: The row is there, but no change ever created it.
    EXTRA = "extra"
    #: The row was deleted or truncated, and is still there.
    GHOST = "ghost"
    CONTENT = "content"
    #: The content is right, but the version is wrong: the row would reject later changes or accept older ones.
    VERSION = "version"


class RowState(NamedTuple):
    """A row after one change.

    `row`: None if the change removed the row. `xid`: None if the record carries no transaction (a snapshot row, a
    tombstone).
    """

    version: Version
    row: bytes | None
    xid: int | None


@dataclass(slots=True)
class RowCase:
    """A row that may differ, with its topic records: those of the full read and all later ones, oldest first.

    `key` is None while only the store's id of the row is known. `disordered`: an earlier record of the row has a larger
    version than the last one.
    """

    id: str
    key: bytes | None
    disordered: bool = False
    records: list[TopicRecord] = field(default_factory=list)

    def states(self, marker: Version) -> list[RowState]:
        """Return the row after each of its changes, oldest first.

        `marker`: the version of the last TRUNCATE at the full read of the topic.
        """
        found: list[RowState] = []
        for record in self.records:
            if record.is_marker:
                _mark(found, record.version, record.xid)
                continue
            # A tombstone follows its delete and has the same version: it is not a change of its own.
            if record.xid is None and found and record.row is None and found[-1].version == record.version:
                found[-1] = found[-1]._replace(row=None)
                continue
            found.append(RowState(record.version, record.row, record.xid))
            if len(found) == 1:
                _mark(found, marker, None)
        return found


def _mark(states: list[RowState], marker: Version, xid: int | None) -> None:
    if states and states[-1].row is not None and states[-1].version < marker:
        states.append(RowState(marker, None, xid))


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The source's snapshot and the positions (base + LSN) around it.

    `began`: before the snapshot was taken. `ended`: after it was taken. `now`: after all sides were read.
    """

    snapshot: Snapshot
    began: int
    ended: int
    now: int


def judge_topic(
    case: RowCase, states: Sequence[RowState], row: bytes | None, moment: Moment, content: Content
) -> DifferenceKind | None:
    """Compare the topic with the source, and return how the topic's row differs, or None.

    `row`: the source's row in the snapshot encoding, or None if the source does not have it.
    """
    if any(state.version.position > moment.now for state in states) or case.disordered or _falls(states):
        return DifferenceKind.VERSION
    shown = [state for state in states if _is_shown(state, moment)]
    held = shown[-1].row if shown else None
    if row is None:
        return None if held is None else DifferenceKind.GHOST if _was_deleted(shown) else DifferenceKind.EXTRA
    if held is None:
        return DifferenceKind.MISSING
    return None if content.same(row, held) else DifferenceKind.CONTENT


def _is_shown(state: RowState, moment: Moment) -> bool:
    if state.xid is None:
        return state.version.position <= moment.began
    return moment.snapshot.shows(state.xid)


def _was_deleted(states: Iterable[RowState]) -> bool:
    return any(state.row is None for state in states)


def _falls(states: Sequence[RowState]) -> bool:
    return any(later.version < earlier.version for earlier, later in pairwise(states))


def judge_store(
    states: Sequence[RowState],
    held: StoredRow | None,
    moment: Moment,
    content: Content,
    expected: Callable[[bytes], bytes | None] | None = None,
) -> DifferenceKind | None:
    """Compare a store with the topic, and return how the store's row differs, or None.

    `held`: the store's row, read after the store had everything up to `moment.ended` and before the topic was read
    again. `expected`: returns what the store must hold for a row of the topic, for stores that transform rows.
    """
    allowed = _since(states, moment.ended)
    rows = [
        (state.version, state.row if state.row is None or expected is None else expected(state.row))
        for state in allowed
    ]
    if held is None or held.row is None:
        return None if not rows or any(row is None for _, row in rows) else DifferenceKind.MISSING
    live = [(version, row) for version, row in rows if row is not None]
    if not live:
        return DifferenceKind.GHOST if states else DifferenceKind.EXTRA
    if any(version == held.version and content.same(row, held.row) for version, row in live):
        return None
    return DifferenceKind.VERSION if any(content.same(row, held.row) for _, row in live) else DifferenceKind.CONTENT


def _since(states: Sequence[RowState], position: int) -> Sequence[RowState]:
    """Return the last state at or before the position, and all later ones.

    If the first state is later than the position, a state "no such row" precedes them.
    """
    reached = [number for number, state in enumerate(states) if state.version.position <= position]
    return states[reached[-1] :] if reached else [RowState(Version(0, 0), None, None), *states]
