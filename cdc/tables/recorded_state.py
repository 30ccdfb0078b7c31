"""The recorded state of the tables: their catalog state, and which of them are incomplete.

A schema change can change existing rows without row events (a rewrite, a default, an attached partition). So capture
reads the catalog with every heartbeat and compares it with this record. If a table has changed, capture marks it as
incomplete until an incremental snapshot. The record is on `<prefix>.__schema`. Capture writes it in its transactions.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from cdc.errors import RefusedError

# Format 2 adds `settings`. Format 3 adds `protected`, and the digests in `settings` have another form.
FORMAT = 3
KEY = b'{"state":"tables"}'
NEVER_COPIED = "the rows that it had before were never copied ([snapshot] initial = false)"


class CatalogColumn(msgspec.Struct, frozen=True):
    """A column in the catalog.

    `entry` changes whenever the column's pg_attribute row changes, also after an ALTER TYPE to the same type.
    """

    number: int
    name: str
    type_oid: int
    type_modifier: int
    entry: str
    has_default: bool
    is_streamed: bool = True


class TablePartition(msgspec.Struct, frozen=True, array_like=True):
    """A partition. `link` changes if it is detached and attached again, `storage` if it is rewritten."""

    link: str
    storage: str


class TableState(msgspec.Struct, frozen=True, kw_only=True):
    """A table's state in the catalog."""

    schema: str
    table: str
    topic: str
    key: list[str]
    storage: str  # changes with every rewrite; for a partitioned table, a digest over all leaves
    columns: list[CatalogColumn]
    leaves: dict[str, bool] = {}  # oids of partitions that hold rows -> whether created as one, and so empty
    parts: dict[
        str, TablePartition
    ] = {}  # also has unlogged partitions, whose changes are not in the WAL; empty in older records
    forms: dict[str, str] = {}  # oids of enum labels and composite types of the columns -> their definition
    dropped: list[str] = []  # names of dropped columns; records in the topic may still have them


class IncompleteMark(msgspec.Struct, frozen=True):
    """Marks a table as incomplete: its topic may lack changes that were made before `since` (an LSN).

    `again`: the LSN of the last mark. A snapshot that started before it does not complete the table. `by_choice`: the
    config excludes the existing rows (`[snapshot] initial = false`), so no snapshot starts automatically.
    """

    since: int
    reason: str
    again: int = 0
    by_choice: bool = False


class RemovedTable(msgspec.Struct, frozen=True):
    """A table that was dropped or renamed. `seen` is an LSN after the last change of its rows."""

    schema: str
    table: str
    seen: int


class Protected(msgspec.Struct, frozen=True, array_like=True):
    """A table's masked columns in the config, and whether the config has a column list for it."""

    masks: list[str] = []
    has_list: bool = False

    def __bool__(self) -> bool:
        return bool(self.masks) or self.has_list


class TableStates(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded state of all tables."""

    format: int = FORMAT
    tables: dict[str, TableState] = {}  # by oid
    pending: dict[str, IncompleteMark] = {}  # by topic
    emptying: dict[str, RemovedTable] = {}  # by topic: the next heartbeat writes markers that empty the topic
    settings: dict[str, str] = {}  # by topic: digest of the settings with which it is published (`event_settings`)
    protected: dict[str, Protected] = {}  # by topic; empty in older records
    strays: dict[str, RemovedTable] = {}  # by topic: tables' temporary names in rows between two catalog reads
    away: dict[str, list[str]] = {}  # by topic: columns that had another name in rows between two catalog reads

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    def root_of(self, oid: int) -> TableState | None:
        """Return the table that a relation belongs to: itself, or its partitioned table."""
        found = self.tables.get(str(oid))
        if found is not None:
            return found
        return next((state for state in self.tables.values() if str(oid) in state.leaves), None)

    def with_pending(self, topic: str, since: int, reason: str) -> TableStates:
        """Mark a table as incomplete. An earlier mark keeps its `since` and reason, but is no longer by choice."""
        old = self.pending.get(topic)
        if old is None:
            mark = IncompleteMark(int(since), reason)
        else:
            mark = IncompleteMark(old.since, reason if old.by_choice else old.reason, int(since))
        return msgspec.structs.replace(self, pending={**self.pending, topic: mark})

    def never_copied(self, topic: str, since: int) -> TableStates:
        """Mark a table whose existing rows the config excludes."""
        mark = IncompleteMark(int(since), NEVER_COPIED, by_choice=True)
        return msgspec.structs.replace(self, pending={**self.pending, topic: mark})

    def due(self, *, first: bool) -> set[str]:
        """Return the topics of tables that are due for a snapshot.

        `first` is `[snapshot] initial`. If it is false, tables that are incomplete by choice are not due.
        """
        return {topic for topic, mark in self.pending.items() if first or not mark.by_choice}

    def copied(self, topic: str, began: int) -> TableStates:
        """Remove the mark of a table after a complete snapshot that started at this LSN, unless it was marked later."""
        mark = self.pending.get(topic)
        return self.without_pending(topic) if mark is not None and max(mark.since, mark.again) <= began else self

    def with_tables(self, tables: dict[str, TableState]) -> TableStates:
        return msgspec.structs.replace(self, tables=tables)

    def with_leaf(self, root: str, leaf: str, *, born: bool, part: TablePartition) -> TableStates:
        state = self.tables[root]
        state = msgspec.structs.replace(state, leaves={**state.leaves, leaf: born}, parts={**state.parts, leaf: part})
        return self.with_tables({**self.tables, root: state})

    def with_temporary_name(self, oid: int, schema: str, table: str, topic: str, lsn: int) -> TableStates:
        """Record the name that a relation has in the stream. If it differs from the recorded name, it was renamed.

        Usually the next catalog read finds the table under the new name. But the table may have its old name again by
        then, and the rows written in between are in another topic.
        """
        known = self.root_of(oid)
        if known is None or known.topic == topic:
            return self
        strays = {**self.strays, topic: RemovedTable(schema, table, int(lsn))}
        return msgspec.structs.replace(self.with_pending(known.topic, lsn, "it was renamed"), strays=strays)

    def with_renamed_columns(self, oid: int, columns: Collection[str]) -> TableStates:
        """Record the columns that a relation has in the stream.

        A column that is missing there, while another column is new, may have been renamed.
        """
        known = self.root_of(oid)
        if known is None or {column.name for column in known.columns}.issuperset(columns):
            return self
        missing = {column.name for column in known.columns if column.is_streamed}.difference(columns)
        if not missing:
            return self
        away = sorted(missing.union(self.away.get(known.topic, ())))
        return msgspec.structs.replace(self, away={**self.away, known.topic: away})

    def with_settings(self, topic: str, digest: str) -> TableStates:
        return msgspec.structs.replace(self, settings={**self.settings, topic: digest})

    def with_protected(self, protected: dict[str, Protected]) -> TableStates:
        return self if protected == self.protected else msgspec.structs.replace(self, protected=protected)

    def emptied(self, topics: Collection[str]) -> TableStates:
        left = {topic: gone for topic, gone in self.emptying.items() if topic not in topics}
        return msgspec.structs.replace(self, emptying=left)

    def without_pending(self, topic: str) -> TableStates:
        return msgspec.structs.replace(self, pending={k: v for k, v in self.pending.items() if k != topic})


class _Format(msgspec.Struct):
    format: int = 1


def decode_states(data: bytes) -> TableStates:
    found = msgspec.json.decode(data, type=_Format)
    if found.format > FORMAT:
        raise RefusedError(
            f"The tables' record on __schema has format {found.format}. This Tailrace reads formats up to {FORMAT}.",
            remedy="Run the newer Tailrace that wrote it.",
        )
    return msgspec.structs.replace(msgspec.json.decode(data, type=TableStates), format=FORMAT)


def why_incomplete(before: TableState, now: TableState) -> str | None:
    """Return which schema change has changed rows without row events, or None."""
    if before.leaves.keys() - now.leaves.keys():
        return "a partition was detached or dropped"
    if any(not born for leaf, born in now.leaves.items() if leaf not in before.leaves):
        return "a partition was attached"
    if any(leaf in before.parts for leaf in now.leaves.keys() - before.leaves.keys()):
        return "a partition is unlogged no longer"
    if any(now.parts[leaf].link != part.link for leaf, part in before.parts.items() if leaf in now.parts):
        return "a partition was detached and attached again"
    old = {column.number: column for column in before.columns}
    rewritten = _is_rewritten(before, now)
    reasons = (_why_column(old.get(column.number), column, before, rewritten=rewritten) for column in now.columns)
    return next((reason for reason in reasons if reason is not None), _why_key_or_types(before, now))


def _why_key_or_types(before: TableState, now: TableState) -> str | None:
    if before.key != now.key:
        return "its key changed"
    if any(now.forms[oid] != form for oid, form in before.forms.items() if oid in now.forms):
        return "a type of its columns was altered"
    return None


def why_back(before: TableState, now: TableState, away: Collection[str]) -> str | None:
    """Return the reason if a column was renamed and renamed back between two catalog reads, or None.

    `away`: columns that had another name in rows in between. Those rows lack the column.
    """
    old = {column.number: column.name for column in before.columns}
    names = (column.name for column in now.columns if column.name in away and old.get(column.number) == column.name)
    return next((f"column {name} was renamed and renamed back" for name in names), None)


def remembering_dropped(before: TableState, now: TableState) -> TableState:
    """Return `now` with the names of all dropped columns that records in its topic may still have."""
    gone = {*before.dropped, *(column.name for column in before.columns if column.is_streamed)}
    gone -= {column.name for column in now.columns}
    return msgspec.structs.replace(now, dropped=sorted(gone)) if gone else now


def _why_column(
    before: CatalogColumn | None, now: CatalogColumn, table_before: TableState, *, rewritten: bool
) -> str | None:
    if not now.is_streamed:
        return None
    if before is None:
        return _why_new_column(now, table_before, rewritten=rewritten)
    if not before.is_streamed:
        return f"column {now.name} is generated no longer"
    if before.name != now.name:
        return f"column {before.name} was renamed to {now.name}"
    if (before.type_oid, before.type_modifier) != (now.type_oid, now.type_modifier):
        return f"column {now.name} changed its type"
    # An ALTER TYPE … USING to the same type. VACUUM FULL also rewrites, but does not change the column's entry.
    return f"the table was rewritten with column {now.name}" if rewritten and before.entry != now.entry else None


def _is_rewritten(before: TableState, now: TableState) -> bool:
    """Whether the table was rewritten. Compares only partitions that exist both before and now."""
    if before.parts:
        return any(now.parts[leaf].storage != part.storage for leaf, part in before.parts.items() if leaf in now.parts)
    return before.storage != now.storage


def _why_new_column(now: CatalogColumn, table_before: TableState, *, rewritten: bool) -> str | None:
    """Return why a new column makes the table incomplete, or None.

    Old rows have NULL in a new column, and consumers read a missing field as NULL. That is wrong if the old rows got
    another value, or if old records have a field of this name from a dropped column.
    """
    if now.has_default:
        return f"column {now.name} was added with a default"
    if rewritten:  # by a volatile default (a different value for each row) that was dropped since
        return f"column {now.name} was added and the table rewritten"
    if now.name in table_before.dropped or any(column.name == now.name for column in table_before.columns):
        return f"column {now.name} was dropped and added again"
    return None
