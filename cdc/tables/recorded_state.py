"""What capture knows of the tables beyond the stream: their identity in the catalog, and which of them are incomplete.

A schema change can alter existing rows without a single row event (a rewrite, a default, an attached partition). So the
catalog is looked at with every heartbeat and compared with this record; what changed marks the table as incomplete
until it has been copied again. The record lives on `<prefix>.__schema` and is written inside capture's transactions.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from cdc.errors import RefusedError

# 2: `settings`. A record of format 1 knows none. 3: `protected`, and the digests of `settings` are of another form.
FORMAT = 3
KEY = b'{"state":"tables"}'
NEVER_COPIED = "the rows that it had before were never copied ([copy] first = false)"


class CatalogColumn(msgspec.Struct, frozen=True):
    """`entry` changes whenever the column's catalog row does, also when a retype leaves the type as it was."""

    number: int
    name: str
    type_oid: int
    type_modifier: int
    entry: str
    has_default: bool
    is_streamed: bool = True


class TablePartition(msgspec.Struct, frozen=True, array_like=True):
    """`link` changes when a partition is taken out and put back; `storage` when it is rewritten."""

    link: str
    storage: str


class TableState(msgspec.Struct, frozen=True, kw_only=True):
    schema: str
    table: str
    topic: str
    key: list[str]
    storage: str  # changes with every rewrite; of all leaves together, for a partitioned table
    columns: list[CatalogColumn]
    leaves: dict[str, bool] = {}  # oids of the partitions that hold rows -> whether it was born as one, so empty
    parts: dict[
        str, TablePartition
    ] = {}  # of these and of unlogged ones, whose rows nobody can follow; older records have none
    forms: dict[str, str] = {}  # oids of enum labels and composites that its columns' types have -> what they are
    dropped: list[str] = []  # names of columns that are gone: rows in the topic may still have them


class Pending(msgspec.Struct, frozen=True):
    """The topic may lack what happened at the source before `since` (an LSN): a copy is due.

    `again`: where it was marked last; a copy that began before that does not bring it all. `by_choice`: the config says
    that these rows are not wanted (`[copy] first = false`), so no copy begins by itself.
    """

    since: int
    reason: str
    again: int = 0
    by_choice: bool = False


class Gone(msgspec.Struct, frozen=True):
    """A table that was dropped or renamed; `seen` is an LSN behind the last change of its rows."""

    schema: str
    table: str
    seen: int


class Protected(msgspec.Struct, frozen=True, array_like=True):
    """What the config keeps back of a table: its masked columns, and whether a list holds columns back."""

    masks: list[str] = []
    has_list: bool = False

    def __bool__(self) -> bool:
        return bool(self.masks) or self.has_list


class TableStates(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    tables: dict[str, TableState] = {}  # by oid
    pending: dict[str, Pending] = {}  # by topic
    emptying: dict[str, Gone] = {}  # by topic: emptied by the next heartbeat
    settings: dict[str, str] = {}  # by topic: digest of the settings under which it is published (`table_settings`)
    protected: dict[str, Protected] = {}  # by topic; older records have none
    strays: dict[str, Gone] = {}  # by topic: a name under which rows came between two looks; it may be gone by now
    away: dict[str, list[str]] = {}  # by topic: columns that had another name in rows between two looks

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    def root_of(self, oid: int) -> TableState | None:
        """The table that a relation belongs to: itself, or the partitioned table above it."""
        found = self.tables.get(str(oid))
        if found is not None:
            return found
        return next((state for state in self.tables.values() if str(oid) in state.leaves), None)

    def with_pending(self, topic: str, since: int, reason: str) -> TableStates:
        """The first mark stands: what is missing began there. One that was by choice is none any more."""
        old = self.pending.get(topic)
        if old is None:
            mark = Pending(int(since), reason)
        else:
            mark = Pending(old.since, reason if old.by_choice else old.reason, int(since))
        return msgspec.structs.replace(self, pending={**self.pending, topic: mark})

    def never_copied(self, topic: str, since: int) -> TableStates:
        """Its rows of before are not wanted."""
        mark = Pending(int(since), NEVER_COPIED, by_choice=True)
        return msgspec.structs.replace(self, pending={**self.pending, topic: mark})

    def due(self, *, first: bool) -> set[str]:
        """Topics of incomplete tables that are to be copied. Not `first` (`[copy] first`): rows of before are not."""
        return {topic for topic, mark in self.pending.items() if first or not mark.by_choice}

    def copied(self, topic: str, began: int) -> TableStates:
        """A whole copy of the table that began at this LSN is through."""
        mark = self.pending.get(topic)
        return self.without_pending(topic) if mark is not None and max(mark.since, mark.again) <= began else self

    def with_tables(self, tables: dict[str, TableState]) -> TableStates:
        return msgspec.structs.replace(self, tables=tables)

    def with_leaf(self, root: str, leaf: str, *, born: bool, part: TablePartition) -> TableStates:
        state = self.tables[root]
        state = msgspec.structs.replace(state, leaves={**state.leaves, leaf: born}, parts={**state.parts, leaf: part})
        return self.with_tables({**self.tables, root: state})

    def with_stray(self, oid: int, schema: str, table: str, topic: str, lsn: int) -> TableStates:
        """Rows of a relation come under this name. If it is not the one that is known, the table was renamed since.

        Most likely the next look finds it under that name. But it may be back under the known one by then, and what
        was written in between is in another topic.
        """
        known = self.root_of(oid)
        if known is None or known.topic == topic:
            return self
        strays = {**self.strays, topic: Gone(schema, table, int(lsn))}
        return msgspec.structs.replace(self.with_pending(known.topic, lsn, "it was renamed"), strays=strays)

    def with_columns_away(self, oid: int, columns: Collection[str]) -> TableStates:
        """Rows of a relation have these columns: one that is missing there, while another is new, was renamed."""
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
    """`away`: columns that had another name in rows in between. Here they are again, and those rows lack them."""
    old = {column.number: column.name for column in before.columns}
    names = (column.name for column in now.columns if column.name in away and old.get(column.number) == column.name)
    return next((f"column {name} was renamed and renamed back" for name in names), None)


def remembering_dropped(before: TableState, now: TableState) -> TableState:
    """`now`, with the names of all columns that rows in its topic may have although the table has not."""
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
    # A retype that leaves the type as it was, with USING. (VACUUM FULL rewrites too, but leaves the column's entry.)
    return f"the table was rewritten with column {now.name}" if rewritten and before.entry != now.entry else None


def _is_rewritten(before: TableState, now: TableState) -> bool:
    """Partitions that came or went say nothing about those that stayed."""
    if before.parts:
        return any(now.parts[leaf].storage != part.storage for leaf, part in before.parts.items() if leaf in now.parts)
    return before.storage != now.storage


def _why_new_column(now: CatalogColumn, table_before: TableState, *, rewritten: bool) -> str | None:
    """Old rows have NULL in it, and readers take a missing field for that; unless it was filled, or is not missing."""
    if now.has_default:
        return f"column {now.name} was added with a default"
    if rewritten:  # by a default that every row has a value of its own from (a random one), and that is gone by now
        return f"column {now.name} was added and the table rewritten"
    if now.name in table_before.dropped or any(column.name == now.name for column in table_before.columns):
        return f"column {now.name} was dropped and added again"
    return None
