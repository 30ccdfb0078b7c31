"""Does a row truly differ? Facts of all sides in, a kind of difference out, or None. Pure.

The sides are never read at the same instant. What makes a verdict right all the same is the topic: it says what a row
was after each change. The source's row, seen in a snapshot, must be what the topic says after the last change that the
snapshot shows. A store's row must be what the topic says after some change that is not older than what the store is
known to have applied, with that very version.
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


class Kind(str, Enum):
    """What is wrong with a row of the topic or of a store."""

    MISSING = "missing"
    #: Nothing ever put it there.
    EXTRA = "extra"
    #: It was deleted or truncated, and is still there.
    GHOST = "ghost"
    CONTENT = "content"
    #: The content is right, but later changes would lose against the version, or older ones win.
    VERSION = "version"


class RowState(NamedTuple):
    """What a row was after a change; `row` None: gone. `xid` None: not a transaction's (a copy, a tombstone)."""

    version: Version
    row: bytes | None
    xid: int | None


@dataclass(slots=True)
class RowCase:
    """A row under suspicion, with all that the topic said of it since it was read as a whole, oldest first.

    `key` is None while only a store's id of it is known. `disordered`: see `Suspect`.
    """

    id: str
    key: bytes | None
    disordered: bool = False
    records: list[TopicRecord] = field(default_factory=list)

    def states(self, marker: Version) -> list[RowState]:
        """`marker`: of the last TRUNCATE when the topic was read as a whole."""
        found: list[RowState] = []
        for record in self.records:
            if record.is_marker:
                _mark(found, record.version, record.xid)
                continue
            # A tombstone follows its delete, with the same version; it says nothing new.
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
    """Positions (LSN and base): `began` before and `ended` after the source's snapshot, `now` after all was read."""

    snapshot: Snapshot
    began: int
    ended: int
    now: int


def judge_topic(
    case: RowCase, states: Sequence[RowState], row: bytes | None, moment: Moment, content: Content
) -> Kind | None:
    """`row`: the source's, in the copy's encoding."""
    if any(state.version.position > moment.now for state in states) or case.disordered or _falls(states):
        return Kind.VERSION
    shown = [state for state in states if _is_shown(state, moment)]
    held = shown[-1].row if shown else None
    if row is None:
        return None if held is None else Kind.GHOST if _was_deleted(shown) else Kind.EXTRA
    if held is None:
        return Kind.MISSING
    return None if content.same(row, held) else Kind.CONTENT


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
) -> Kind | None:
    """`held`: as read after the store had everything up to `moment.ended`, and before the topic was read again."""
    allowed = _since(states, moment.ended)
    rows = [
        (state.version, state.row if state.row is None or expected is None else expected(state.row))
        for state in allowed
    ]
    if held is None or held.row is None:
        return None if not rows or any(row is None for _, row in rows) else Kind.MISSING
    live = [(version, row) for version, row in rows if row is not None]
    if not live:
        return Kind.GHOST if states else Kind.EXTRA
    if any(version == held.version and content.same(row, held.row) for version, row in live):
        return None
    return Kind.VERSION if any(content.same(row, held.row) for _, row in live) else Kind.CONTENT


def _since(states: Sequence[RowState], position: int) -> Sequence[RowState]:
    """From the last one up to this position on; before the first one, there was no such row."""
    reached = [number for number, state in enumerate(states) if state.version.position <= position]
    return states[reached[-1] :] if reached else [RowState(Version(0, 0), None, None), *states]
