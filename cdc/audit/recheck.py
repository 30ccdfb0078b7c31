"""Recheck rows that differed in the first comparison, until each is right, wrong, or has changed in every round.

One round:

1. Read all these rows from the source, in one new snapshot.
2. Wait until the topic and the stores have everything that the snapshot shows.
3. Read the rows from the stores.
4. Read the topic on to its end, so that every change that a store may rightly have is known.
5. Decide by `difference_rules`.

A difference counts when two consecutive rounds find the same one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cdc.audit.audit_records import TOPIC
from cdc.audit.catch_up import wait_for_stores, wait_for_topics
from cdc.audit.difference_rules import DifferenceKind, Moment, RowCase, judge_store, judge_topic
from cdc.audit.row_content import Content
from cdc.audit.source_rows import SourceRead, fence, read_source_rows
from cdc.audit.topic_records import Schemas, TopicTail, id_of, read_schemas
from cdc.config import Config
from cdc.errors import TransientError
from cdc.lsn import Version
from cdc.names import Control, control_topic
from cdc.snapshot.table_description import DescribedTable
from cdc.stores.contract import StoredRow, TableSchema
from cdc.stores.scan import StoreScan
from cdc.tables.event_settings import name_of, recorded_settings_mismatch
from cdc.tables.recorded_state import why_incomplete
from cdc.tables.state_reader import incomplete, read_recorded_states

MOST_ROUNDS = 8
_AGREEING_ROUNDS = 2


class ChangedMeanwhileError(TransientError):
    """The table was rewritten or its columns changed during the audit, so one side was read in an outdated form.

    The caller starts the audit of the table again.
    """


class Expected(Protocol):
    """Returns what a store must hold for a row of the topic, or None if the store must not hold the row.

    `learn` computes the results of many rows at once, ahead of the calls.
    """

    def learn(self, rows: Collection[bytes]) -> None: ...

    def __call__(self, row: bytes) -> bytes | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """The table under audit, and the stores that are compared with it.

    `expected`: by store, the transformation of rows, for stores that do not hold them unchanged. `schemas`: by store,
    the table's schema in such a store. `spelled`: columns that at least one store holds in a text form of its own.
    `by_schema`: at least one store shows only the columns of the schema.
    """

    oid: str
    schema: TableSchema
    scans: Mapping[str, StoreScan] = field(default_factory=dict)
    schemas: Mapping[str, TableSchema] = field(default_factory=dict)
    expected: Mapping[str, Expected] = field(default_factory=dict)
    spelled: frozenset[str] = frozenset()
    by_schema: bool = False
    timeout_seconds: float = 60.0

    def schema_in(self, store: str) -> TableSchema:
        return self.schemas.get(store, self.schema)


@dataclass(slots=True)
class RowVerdict:
    """The state of one case between rounds.

    `kinds`: by side, how the row differs. `agreeing`: consecutive rounds with the same result. `row` and `held`: the
    source's and the stores' rows in the last round.
    """

    kinds: dict[str, DifferenceKind] = field(default_factory=dict)
    agreeing: int = 0
    row: bytes | None = None
    held: dict[str, StoredRow | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecheckOutcome:
    """The result of a recheck.

    `wrong`: by id, the cases that truly differ. `moving`: the number of undecided rows. `incomplete`: why the table
    cannot be compared at all, or "". `lsn`: the LSN of the last round's snapshot.
    """

    wrong: dict[str, tuple[RowCase, RowVerdict]]
    moving: int
    incomplete: str
    lsn: int


class Recheck:
    """Rechecks rows of one table.

    `tail`: reads the topic from the end of the full read. `marker`: the version of the last TRUNCATE before that end.
    """

    def __init__(self, config: Config, audited: Audited, tail: TopicTail, marker: Version) -> None:
        self._config = config
        self._audited = audited
        self._tail = tail
        self._marker = marker
        self._followed: dict[str, RowCase] = {}  # decided cases too: a repair needs the last record

    def settle(self, cases: Mapping[str, RowCase]) -> RecheckOutcome:
        """Recheck the cases (by id) for at most `MOST_ROUNDS` rounds, and return the result."""
        self._followed |= cases
        open_cases = {name: (case, RowVerdict()) for name, case in cases.items()}
        wrong: dict[str, tuple[RowCase, RowVerdict]] = {}
        lsn, reason = 0, ""
        for _ in range(MOST_ROUNDS):
            if not open_cases:
                break
            lsn, reason = self._round(open_cases)
            if reason:
                break
            wrong |= {name: each for name, each in open_cases.items() if each[1].agreeing >= _AGREEING_ROUNDS}
            open_cases = {name: each for name, each in open_cases.items() if each[1].kinds and name not in wrong}
        return RecheckOutcome(wrong={} if reason else wrong, moving=len(open_cases), incomplete=reason, lsn=lsn)

    def _round(self, cases: Mapping[str, tuple[RowCase, RowVerdict]]) -> tuple[int, str]:
        config, audited = self._config, self._audited
        keys = {case.key for case, _ in cases.values() if case.key is not None}
        seen = read_source_rows(config, audited.oid, keys)
        if seen.table is None:
            return seen.ended, "the table no longer exists or has no primary key"
        fence(config)
        progress = wait_for_topics(config, seen.ended, audited.timeout_seconds)
        reason = why_unjudged(config, audited.oid, audited.schema.topic, seen)
        if reason:
            return seen.ended, reason
        wait_for_stores(config, list(audited.scans), seen.ended, audited.timeout_seconds)
        held = {name: scan.rows(audited.schema_in(name), list(cases)) for name, scan in audited.scans.items()}
        ends = progress.end_offsets.get(audited.schema.topic, [])
        self._follow([max(each) for each in zip(self._tail.ends(), ends, strict=True)])
        schemas = read_schemas_of(config).get(audited.schema.topic)
        if audited.by_schema and (schemas is None or schemas.last != audited.schema):
            raise ChangedMeanwhileError("the table's columns changed during the audit")
        now = fence(config)
        moment = Moment(
            snapshot=seen.snapshot,
            began=progress.base + seen.began,
            ended=progress.base + seen.ended,
            now=progress.base + now,
        )
        content = content_of(seen.table, schemas, audited.spelled)
        rows_said = [
            state.row for case, _ in cases.values() for state in case.states(self._marker) if state.row is not None
        ]
        for expected in audited.expected.values():
            expected.learn(rows_said)
        for case, verdict in cases.values():
            row = seen.rows.get(case.key) if case.key is not None else None
            self._judge(case, verdict, row, {name: rows.get(case.id) for name, rows in held.items()}, moment, content)
        return seen.ended, ""

    def _judge(
        self,
        case: RowCase,
        verdict: RowVerdict,
        row: bytes | None,
        held: dict[str, StoredRow | None],
        moment: Moment,
        content: Content,
    ) -> None:
        states = case.states(self._marker)
        kinds: dict[str, DifferenceKind | None] = {TOPIC: judge_topic(case, states, row, moment, content)}
        for name, stored in held.items():
            kinds[name] = judge_store(states, stored, moment, content, self._audited.expected.get(name))
        found = {side: kind for side, kind in kinds.items() if kind is not None}
        verdict.agreeing = verdict.agreeing + 1 if found and found == verdict.kinds else int(bool(found))
        verdict.kinds, verdict.row, verdict.held = found, row, held

    def _follow(self, ends: Sequence[int]) -> None:
        for record in self._tail.read_to(ends):
            if record.is_marker:
                for case in self._followed.values():
                    case.records.append(record)
                continue
            found = self._followed.get(id_of(record.key))
            if found is not None:
                found.key = record.key
                found.records.append(record)


def why_unjudged(config: Config, oid: str, topic: str, seen: SourceRead) -> str:
    """Return why the table cannot be compared now, or "".

    The table is incomplete if rows changed without row events and the incremental snapshot that publishes them has not
    finished. Such a table is neither equal nor drifted. Capture may not have detected the change yet, so this function
    compares the catalog with the recorded state in the same way as capture does.
    """
    states = read_recorded_states(config)
    if states is None:
        raise TransientError("Capture has not recorded the state of its tables yet.")
    mark = states.pending.get(topic)
    if mark is not None:
        return incomplete(mark)
    before = states.tables.get(oid)
    if before is None or seen.state is None:
        return "capture has no recorded state of the table"
    return (
        recorded_settings_mismatch(config, states, {oid: name_of(before)}) or why_incomplete(before, seen.state) or ""
    )


def read_schemas_of(config: Config) -> Mapping[str, Schemas]:
    """Return the schemas of all tables of the pipeline, by topic."""
    return read_schemas(config.kafka, control_topic(config.kafka.prefix, Control.SCHEMA))


def content_of(table: DescribedTable, schemas: Schemas | None, spelled: Collection[str] = ()) -> Content:
    """Return how rows of the table are compared, given every set of columns that the table and its partitions had."""
    of_leaves = [[name for name, _, _ in table.table(leaf.relation).columns()] for leaf in table.leaves]
    present = [name for name, _, _ in table.table(table.relation).columns()]
    ever = [present, *of_leaves, *(schemas.columns if schemas is not None else ())]
    return Content.of(present, ever, spelled)
