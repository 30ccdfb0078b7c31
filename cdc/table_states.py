"""What capture knows of the tables beyond the stream: their identity in the catalog, and which of them are incomplete.

A schema change can alter existing rows without a single row event (a rewrite, a default, an attached partition). So the
catalog is looked at with every heartbeat and compared with this record; what changed marks the table as incomplete
until it has been copied again. The record lives on `<prefix>.__schema` and is written inside capture's transactions.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from cdc.errors import RefusedError

# 2: `settings`. A record of format 1 knows none.
FORMAT = 2
KEY = b'{"state":"tables"}'


class Column(msgspec.Struct, frozen=True):
    """`entry` changes whenever the column's catalog row does, also when a retype leaves the type as it was."""

    number: int
    name: str
    type_oid: int
    type_modifier: int
    entry: str
    has_default: bool
    is_streamed: bool = True


class TableState(msgspec.Struct, frozen=True, kw_only=True):
    schema: str
    table: str
    topic: str
    key: list[str]
    storage: str  # changes with every rewrite; of all leaves together, for a partitioned table
    columns: list[Column]
    leaves: dict[str, bool] = {}  # oids of the partitions that hold rows -> whether it was born as one, so empty


class Pending(msgspec.Struct, frozen=True):
    """The topic may lack what happened at the source before `since` (an LSN): a copy is due.

    `again`: where it was marked last; a copy that began before that does not bring it all.
    """

    since: int
    reason: str
    again: int = 0


class Gone(msgspec.Struct, frozen=True):
    """A table that was dropped or renamed; `seen` is an LSN behind the last change of its rows."""

    schema: str
    table: str
    seen: int


class TableStates(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    tables: dict[str, TableState] = {}  # by oid
    pending: dict[str, Pending] = {}  # by topic
    emptying: dict[str, Gone] = {}  # by topic: emptied by the next heartbeat
    settings: dict[str, str] = {}  # by topic: digest of the masks and columns under which it is published

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    def root_of(self, oid: int) -> TableState | None:
        """The table that a relation belongs to: itself, or the partitioned table above it."""
        found = self.tables.get(str(oid))
        if found is not None:
            return found
        return next((state for state in self.tables.values() if str(oid) in state.leaves), None)

    def with_pending(self, topic: str, since: int, reason: str) -> TableStates:
        """The first mark stands: what is missing began there."""
        old = self.pending.get(topic)
        mark = Pending(int(since), reason) if old is None else Pending(old.since, old.reason, int(since))
        return msgspec.structs.replace(self, pending={**self.pending, topic: mark})

    def copied(self, topic: str, began: int) -> TableStates:
        """A whole copy of the table that began at this LSN is through."""
        mark = self.pending.get(topic)
        return self.without_pending(topic) if mark is not None and max(mark.since, mark.again) <= began else self

    def with_tables(self, tables: dict[str, TableState]) -> TableStates:
        return msgspec.structs.replace(self, tables=tables)

    def with_leaf(self, root: str, leaf: str, *, born: bool) -> TableStates:
        state = self.tables[root]
        state = msgspec.structs.replace(state, leaves={**state.leaves, leaf: born})
        return self.with_tables({**self.tables, root: state})

    def with_settings(self, topic: str, digest: str) -> TableStates:
        return msgspec.structs.replace(self, settings={**self.settings, topic: digest})

    def emptied(self, topics: Collection[str]) -> TableStates:
        left = {topic: gone for topic, gone in self.emptying.items() if topic not in topics}
        return msgspec.structs.replace(self, emptying=left)

    def without_pending(self, topic: str) -> TableStates:
        return msgspec.structs.replace(self, pending={k: v for k, v in self.pending.items() if k != topic})


class _Format(msgspec.Struct):
    format: int = 1


def decode(data: bytes) -> TableStates:
    found = msgspec.json.decode(data, type=_Format)
    if found.format > FORMAT:
        raise RefusedError(
            f"The tables' record on __schema has format {found.format}; this Tailrace knows up to {FORMAT}.",
            remedy="Run the newer Tailrace that wrote it.",
        )
    return msgspec.structs.replace(msgspec.json.decode(data, type=TableStates), format=FORMAT)


def why_incomplete(before: TableState, now: TableState) -> str | None:
    """What has changed rows without row events, if anything has."""
    if before.leaves.keys() - now.leaves.keys():
        return "a partition was detached or dropped"
    if any(not born for leaf, born in now.leaves.items() if leaf not in before.leaves):
        return "a partition was attached"
    old = {column.number: column for column in before.columns}
    rewritten = before.storage != now.storage
    reasons = (_why_column(old.get(column.number), column, rewritten=rewritten) for column in now.columns)
    changed_key = "its key changed" if before.key != now.key else None
    return next((reason for reason in reasons if reason is not None), changed_key)


def _why_column(before: Column | None, now: Column, *, rewritten: bool) -> str | None:
    if not now.is_streamed:
        return None
    if before is None:
        return f"column {now.name} was added with a default" if now.has_default else None
    if not before.is_streamed:
        return f"column {now.name} is generated no longer"
    if before.name != now.name:
        return f"column {before.name} was renamed to {now.name}"
    if (before.type_oid, before.type_modifier) != (now.type_oid, now.type_modifier):
        return f"column {now.name} changed its type"
    # A retype that leaves the type as it was, with USING. (VACUUM FULL rewrites too, but leaves the column's entry.)
    return f"the table was rewritten with column {now.name}" if rewritten and before.entry != now.entry else None
