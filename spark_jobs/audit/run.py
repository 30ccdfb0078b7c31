"""`tailrace audit`: compares the tables in the named stores, or in the topics, with the source, and repairs rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cdc.audit.audit_log import keep
from cdc.audit.audit_records import TOPIC, AuditRecord, Difference, Verdict
from cdc.audit.difference_rules import RowCase
from cdc.audit.recheck import Audited, ChangedMeanwhileError, Recheck, RecheckOutcome, content_of, read_schemas_of
from cdc.audit.repair import Wrong, repair_topic
from cdc.audit.source_rows import read_source_rows
from cdc.audit.topic_records import TopicTail, fetch_records, id_of
from cdc.config import Config
from cdc.errors import RefusedError, TransientError, UsageError
from cdc.logs import get_logger
from cdc.lsn import LSN
from cdc.names import Control, control_topic
from cdc.positions.progress import read_progress
from cdc.positions.wait import is_of
from cdc.secrets import SecretOptions as SparkOptions
from cdc.stores.contract import Position, TableSchema
from cdc.stores.registry import is_auditable, open_scan, open_store, scan_module
from cdc.stores.scan import StoreScan
from cdc.tables.event_settings import name_of, recorded_settings_mismatch
from cdc.tables.recorded_state import TableStates
from cdc.tables.state_reader import incomplete, read_recorded_states
from spark_jobs.audit.known_differences import KnownDifferences
from spark_jobs.audit.shapes import ExpectedRows, takes
from spark_jobs.audit.table_pass import TablePass, TablePassResult
from spark_jobs.session.spark_session import spark_session
from spark_jobs.shape.store_tables import StoreTables, build_store_tables
from spark_jobs.writing.choice import writing_of
from spark_jobs.writing.contract import UNREPAIRED, StoreWriting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = get_logger("audit")

# The environment variable that `spark_jobs.session.worker_daemon` reads.
_MODULES = "TAILRACE_WORKER_MODULES"
_TASK_MODULES = ("spark_jobs.audit.group_comparison", "spark_jobs.audit.topic_read_task")
_MOST_PASSES = 3
_MOST_REPAIRS = 3
SHOWN_DIFFERENCES = 1000
# Only this many differences list their fields: the list is for a person to read.
_FIELDS_TOLD = 100


class SessionSource(Protocol):
    """Returns the Spark session, and starts it at the first call."""

    def __call__(self) -> SparkSession: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """Options of the command. Without `stores` only the topics are audited. Without `tables` all tables are."""

    stores: Sequence[str] = ()
    tables: Sequence[str] = ()
    repair: bool = False
    timeout_seconds: float = 60.0


def run_audit(config: Config, options: AuditOptions, spark: SessionSource) -> Iterator[AuditRecord]:
    """Audit the chosen tables and yield one record for each table and store.

    The records of a table are written to the audit log before they are yielded.
    """
    states = read_recorded_states(config)
    if states is None or not states.tables:
        raise RefusedError("Capture has published no table yet.", remedy="Start capture first: tailrace capture")
    chosen = _chosen(states, options.tables)
    spark()  # started here, so that the first table's duration does not include it
    with ExitStack() as opened:
        stores = {name: _open(config, name, opened) for name in options.stores}
        for oid in chosen:
            records = _TableAudit(config, options, spark, stores, states, oid).run()
            keep(config, records)
            yield from records


def _chosen(states: TableStates, names: Sequence[str]) -> list[str]:
    oids = {f"{state.schema}.{state.table}": oid for oid, state in states.tables.items() if state.key}
    wanted = [name if "." in name else f"public.{name}" for name in names] or sorted(oids)
    for name in wanted:
        if name not in oids:
            raise UsageError(
                f"Table {name} is not captured.", remedy=f"Captured tables: {', '.join(sorted(oids)) or 'none'}."
            )
    return [oids[name] for name in wanted]


class _Opened(NamedTuple):
    """An opened store. `position`: the serving generation's; it holds the shapes that the rows were written in."""

    scan: StoreScan
    position: Position


def _open(config: Config, name: str, opened: ExitStack) -> _Opened:
    if name not in config.stores:
        raise UsageError(
            f"There is no [stores.{name}] in the config.",
            remedy=f"Configured stores: {', '.join(config.stores) or 'none'}.",
        )
    with closing(open_store(name, config.stores[name], config.kafka.prefix)) as store:
        serving = store.serving()
        position = store.position(serving) if serving is not None else None
    if serving is None or position is None:
        raise RefusedError(f"Store {name} has no serving generation yet.", remedy=f"tailrace sync {name}")
    progress = read_progress(config.kafka.client_options(), control_topic(config.kafka.prefix, Control.PROGRESS))
    if progress is not None and not is_of(position, progress):
        raise RefusedError(f"Store {name} was built from another pipeline.", remedy=f"tailrace bootstrap {name}")
    scan = open_scan(name, config.stores[name], config.kafka.prefix, serving)
    return _Opened(opened.enter_context(closing(scan)), position)


@dataclass(slots=True)
class _TableAudit:
    """The audit of one table in all chosen stores."""

    config: Config
    options: AuditOptions
    spark: SessionSource
    stores: Mapping[str, _Opened]
    states: TableStates
    oid: str
    started: float = field(default_factory=time.time)

    def run(self) -> list[AuditRecord]:
        state = self.states.tables[self.oid]
        mark = self.states.pending.get(state.topic)
        if mark is not None:
            return self._unjudged(incomplete(mark))
        other = recorded_settings_mismatch(self.config, self.states, {self.oid: name_of(state)})
        if other is not None:  # with other settings every masked value would differ
            return self._unjudged(other)
        schemas = read_schemas_of(self.config).get(state.topic)
        if schemas is None:
            return self._unjudged("capture has published nothing of this table yet")
        audited, shaped_stores = self._audited(schemas.last)
        if self.stores and not audited.scans:
            return []
        reason = ""
        for _ in range(_MOST_PASSES):
            try:
                passed = TablePass(self.spark(), self.config, audited, shaped_stores).run()
                return self._judged(audited, passed)
            except ChangedMeanwhileError as error:
                reason = error.message
                schemas = read_schemas_of(self.config).get(state.topic) or schemas
                audited, shaped_stores = self._audited(schemas.last)
                log.info("audit_repeated", table=str(audited.schema), reason=reason)
        return self._unjudged(reason, verdict="undecided")

    def _audited(self, schema: TableSchema) -> tuple[Audited, dict[str, StoreTables]]:
        """Return the table with the stores that get it, and the stores that get it in a shape of their own by name."""
        shaped_stores: dict[str, StoreTables] = {}
        scans = {}
        for name, (scan, position) in self.stores.items():
            store_tables = build_store_tables(self.config, name, self.spark(), {schema.topic: schema}, position)
            if takes(store_tables, schema):
                scans[name] = scan
            if schema.topic in store_tables.shapes:
                shaped_stores[name] = store_tables
        schemas = {name: store_tables.schemas[schema.topic] for name, store_tables in shaped_stores.items()}
        audited = Audited(
            oid=self.oid,
            schema=schema,
            scans=scans,
            schemas=schemas,
            expected={name: ExpectedRows(store_tables, schema.topic) for name, store_tables in shaped_stores.items()},
            spelled=self._spelled(scans, schema, schemas),
            by_schema=any(self._writing(name).in_spark for name in scans),
            timeout_seconds=self.options.timeout_seconds,
        )
        return audited, shaped_stores

    def _spelled(
        self, scans: Mapping[str, StoreScan], schema: TableSchema, schemas: Mapping[str, TableSchema]
    ) -> frozenset[str]:
        """Return the columns that must be compared by their text, because a store may spell their values differently.

        These include the fields that Spark computes for a warehouse: there they have a type, elsewhere only a text.
        """
        own = {column.name: column for column in schema.columns}
        found: set[str] = set()
        for name, scan in scans.items():
            seen = schemas.get(name, schema)
            found |= scan.spelled(seen)
            if self._writing(name).in_spark:
                found |= {column.name for column in seen.columns if own.get(column.name) != column}
        return frozenset(found)

    def _writing(self, name: str) -> StoreWriting[Any, Any]:
        return writing_of(self.config.stores[name].kind)

    def _judged(self, audited: Audited, passed: TablePassResult) -> list[AuditRecord]:
        cases = self._cases(audited, passed)
        log.info("audit_compared", table=str(audited.schema), rows=passed.rows, looking_again=len(cases))
        tail = TopicTail(self.config.kafka, audited.schema.topic, passed.ends)
        try:
            recheck = Recheck(self.config, audited, tail, passed.marker)
            outcome = recheck.settle(cases)
            if outcome.incomplete:
                return self._unjudged(outcome.incomplete)
            excuses = KnownDifferences(self.config, audited)
            outcome = excuses.taken(outcome)
            repaired = 0
            if self.options.repair and outcome.wrong:
                outcome, repaired = self._repaired(audited, passed, recheck, excuses, outcome)
            if outcome.incomplete:
                return self._unjudged(outcome.incomplete)
            return [
                self._record(audited, side, passed, outcome, excuses, len(cases), repaired)
                for side in (list(audited.scans) if self.stores else [TOPIC])
            ]
        finally:
            tail.close()

    def _cases(self, audited: Audited, passed: TablePassResult) -> dict[str, RowCase]:
        records = fetch_records(
            self.config.kafka, audited.schema.topic, {each.place for each in passed.suspects if each.place >= 0}
        )
        cases: dict[str, RowCase] = {}
        for suspect in passed.suspects:
            record = records.get(suspect.place)
            key = suspect.key or (record.key if record is not None else b"")
            if not key and suspect.place >= 0:
                raise ChangedMeanwhileError("Kafka compacted records of its topic during the audit")
            name = key.decode(errors="replace") if suspect.is_id else id_of(key)
            case = cases.setdefault(name, RowCase(name, None))
            case.key = case.key if suspect.is_id else key
            case.disordered |= suspect.disordered
            if record is not None and not case.records:
                case.records.append(record)
        return cases

    def _repaired(
        self,
        audited: Audited,
        passed: TablePassResult,
        recheck: Recheck,
        excuses: KnownDifferences,
        outcome: RecheckOutcome,
    ) -> tuple[RecheckOutcome, int]:
        """Repair and compare again until nothing differs, at most `_MOST_REPAIRS` times.

        Returns the remaining differences and the number of rows that are correct now.
        """
        before = len(outcome.wrong)
        for _ in range(_MOST_REPAIRS):
            repair_topic(self.config, audited, outcome.wrong)
            for name in audited.scans:
                self._writing(name).repair(self.config, self.spark, audited, name, outcome.wrong, passed.marker)
            outcome = excuses.taken(recheck.settle({name: case for name, (case, _) in outcome.wrong.items()}))
            log.info("audit_repaired", table=str(audited.schema), rows=before, left=len(outcome.wrong))
            if not outcome.wrong:
                break
        return outcome, before - len(outcome.wrong) - outcome.moving

    def _reason(self, side: str, outcome: RecheckOutcome, wrong: Wrong) -> str:
        if outcome.moving and not wrong:
            return f"{outcome.moving} rows kept changing during the audit"
        if not (wrong and self.options.repair):
            return ""
        return UNREPAIRED if side == TOPIC else self._writing(side).unrepaired.format(store=side)

    def _record(
        self,
        audited: Audited,
        side: str,
        passed: TablePassResult,
        outcome: RecheckOutcome,
        excuses: KnownDifferences,
        looked_again: int,
        repaired: int,
    ) -> AuditRecord:
        wrong = {name: each for name, each in outcome.wrong.items() if side in each[1].kinds or TOPIC in each[1].kinds}
        unchecked = max(0, passed.differing.get(side, 0) - sum(each.side == side for each in passed.suspects))
        return AuditRecord(
            store=side,
            table=str(audited.schema),
            topic=audited.schema.topic,
            verdict=_verdict(is_drift=bool(wrong or unchecked), moving=outcome.moving, parked=excuses.parked(side)),
            reason=self._reason(side, outcome, wrong),
            lsn=str(LSN(max(outcome.lsn, passed.lsn))),
            started_ms=int(self.started * 1000),
            seconds=round(time.time() - self.started, 3),
            source_rows=passed.rows.get("source", 0),
            store_rows=passed.rows.get(side, 0),
            looked_again=looked_again,
            moving=outcome.moving,
            parked=excuses.parked(side),
            evicted=excuses.evicted.get(side, 0),
            differing=len(wrong) + unchecked,
            unchecked=unchecked,
            repaired=repaired,
            differences=self._differences(audited, side, passed, wrong),
        ).stamped()

    def _differences(self, audited: Audited, side: str, passed: TablePassResult, wrong: Wrong) -> list[Difference]:
        table = read_source_rows(self.config, self.oid, []).table
        schemas = read_schemas_of(self.config).get(audited.schema.topic)
        content = None if table is None else content_of(table, schemas, audited.spelled)
        found: list[Difference] = []
        for name, (case, verdict) in sorted(wrong.items())[:SHOWN_DIFFERENCES]:
            kind, at = (verdict.kinds[TOPIC], TOPIC) if TOPIC in verdict.kinds else (verdict.kinds[side], "store")
            states = case.states(passed.marker)
            held = verdict.held.get(side)
            row = held.row if held is not None and at == "store" else states[-1].row if states else None
            fields: list[str] = []
            if content is not None and verdict.row is not None and row is not None and len(found) < _FIELDS_TOLD:
                fields = content.differing_fields(self._expected(audited, side, verdict.row), row)
            found.append(
                Difference(
                    id=name,
                    kind=kind.value,
                    wrong=at,
                    fields=fields,
                    topic_version=str(states[-1].version) if states else "",
                    store_version=str(held.version) if held is not None else "",
                )
            )
        return found

    def _expected(self, audited: Audited, side: str, row: bytes) -> bytes:
        shape = audited.expected.get(side)
        return row if shape is None else shape(row) or row

    def _unjudged(self, reason: str, *, verdict: str = "incomplete") -> list[AuditRecord]:
        state = self.states.tables[self.oid]
        return [
            AuditRecord(
                store=side,
                table=f"{state.schema}.{state.table}",
                topic=state.topic,
                verdict="undecided" if verdict == "undecided" else "incomplete",
                reason=reason,
                lsn=str(LSN(0)),
                started_ms=int(self.started * 1000),
                seconds=round(time.time() - self.started, 3),
            ).stamped()
            for side in (list(self.stores) or [TOPIC])
        ]


def _verdict(*, is_drift: bool, moving: int, parked: int) -> Verdict:
    if is_drift:
        return "drift"
    return "undecided" if moving else "equal except parked" if parked else "equal"


def lazy_session(config: Config, stores: Sequence[str] = ()) -> tuple[SessionSource, ExitStack]:
    """Return a function that starts the Spark session at its first call, and the stack that stops the session.

    `stores`: those that will be audited. The session's settings depend on their kinds.
    """
    started: list[SparkSession] = []
    closing_it = ExitStack()

    def session() -> SparkSession:
        if not started:
            tuned = replace(config.spark, options=SparkOptions({**_tuning(config, stores), **config.spark.options}))
            started.append(spark_session(tuned, "tailrace audit"))
            closing_it.callback(started[0].stop)
            _start_workers(started[0])
        return started[0]

    return session, closing_it


def _start_workers(spark: SparkSession) -> None:
    """Start the Python workers now, so that the source's snapshot is not held while they start."""
    context = spark.sparkContext
    count = context.defaultParallelism
    context.parallelize(range(count), count).foreach(_nothing)


def _nothing(_: int) -> None:
    """Do nothing. It runs in the worker."""


def _tuning(config: Config, stores: Sequence[str]) -> dict[str, str]:
    """Return Spark options for an audit in which Python does the work; none if Spark itself processes rows.

    Workers import only the modules that the tasks need. Java's second compiler (C2) is off, because it would use half
    of a processor for the first minute.
    """
    settings = [config.stores[name] for name in stores if name in config.stores]
    if any(writing_of(each.kind).in_spark or each.shape for each in settings):
        return {}
    modules = [*_TASK_MODULES, *sorted({scan_module(each.kind) for each in settings if is_auditable(each.kind)})]
    return {
        f"spark.executorEnv.{_MODULES}": " ".join(modules),
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }


def exit_code(records: Sequence[AuditRecord]) -> int:
    """Return 0 if every table is equal in every store, else 1."""
    if not records:
        raise TransientError("No table was audited: the stores get none of them, or none of them has a primary key.")
    return 0 if all(record.verdict == "equal" for record in records) else 1
