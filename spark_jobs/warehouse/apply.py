"""Applies a batch to the warehouse: for each table first to the history, then to the current table.

A version is applied once it is in the history; the current table follows the history. A driver that dies in between
leaves a position that is too low. The next driver runs the same batch again, and its statements find in the history
what was already written (`sinks/iceberg/statements.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cdc.backoff import Backoff
from cdc.errors import TransientError
from cdc.logs import get_logger
from cdc.stores.contract import Generation, TableSchema
from sinks.iceberg import naming, statements
from sinks.iceberg.schemas import WarehouseColumn, key_columns
from sinks.iceberg.statements import Marker, Target
from sinks.iceberg.store import IcebergStore
from sinks.iceberg.tables import types_of
from spark_jobs.shape.store_tables import StoreTables
from spark_jobs.shape.typed_rows import events_of, quoted
from spark_jobs.tasks.apply_tasks import Count
from spark_jobs.tasks.parking import ParkedRow
from spark_jobs.tasks.task_results import Answers
from spark_jobs.warehouse.batch import (
    FIT,
    PLACE,
    UNREADABLE,
    closings,
    history_rows,
    identity,
    key_ranges,
    last_of_each_key,
    one_of_each_version,
    typed,
    versions,
)

if TYPE_CHECKING:
    from pyiceberg.table import Table

log = get_logger("warehouse")

# Another commit came first, of a compaction or of a replaced driver. The statement is run again on the new table
# state.
CONFLICTS: Final = ("ValidationException", "CommitFailedException", "CommitStateUnknownException")
_TRIES: Final = 8
_FIRST_PAUSE_SECONDS: Final = 0.2
_LONGEST_PAUSE_SECONDS: Final = 5.0
_WORTH_COMPILING: Final = 20_000
# Spark only compares a row of the table, but parses and writes a row of the batch.
_ROWS_PER_EVENT: Final = 25
_ROWS_PER_TASK: Final = 20_000
_TASKS: Final = "spark.sql.shuffle.partitions"
_FEW_KEYS: Final = 20_000
_WORTH_NARROWING: Final = 200_000
_BOUNDED: Final = frozenset({"int", "bigint"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """The part of a batch that belongs to one table."""

    topic: str
    events: int
    rows: int
    least_position: int
    markers: list[Marker]


class Parks(Protocol):
    """Accepts parked rows: rows with values that their typed columns cannot hold."""

    def park(self, rows: Iterable[ParkedRow]) -> None: ...


class WarehouseBatches:
    """Applies batches to one generation of the warehouse. One thread at a time may use it."""

    def __init__(
        self,
        store: IcebergStore,
        generation: Generation,
        store_tables: StoreTables,
        parking: Parks,
        *,
        with_history: bool = True,
    ) -> None:
        self._store = store
        self._generation = generation
        self._store_tables = store_tables
        self._tables = store_tables.schemas
        self._shapes = store_tables.shapes
        self._parking = parking
        self._with_history = with_history

    def without_history(self) -> WarehouseBatches:
        """Return a copy that does not write the history, for a generation that is built while another one writes it."""
        return WarehouseBatches(self._store, self._generation, self._store_tables, self._parking, with_history=False)

    def truncate(self, markers: Mapping[str, bytes]) -> dict[str, int]:  # noqa: ARG002 - `apply` returns no markers
        """Do nothing: `apply` deletes truncated rows itself, so it never returns markers."""
        return {}

    def target(self, table: TableSchema, least_position: int = 0) -> tuple[Target, list[WarehouseColumn]]:
        """Return the warehouse tables to write for this table, and their columns."""
        columns = self._store.tables.columns(table)
        target = Target(
            current=self._store.table_name(self._generation, table),
            history=naming.history_table(table),
            columns=[column.name for column in columns],
            key=[column.name for column in key_columns(table, columns)],
            least_position=least_position,
        )
        return target, columns

    def apply(self, records: DataFrame) -> Answers:
        """Apply all `records` (columns of `read_topic_frame`). Returns when everything is committed."""
        self._store.wait_while_held()
        counts: dict[str, Count] = {}
        with _kept(events_of(records)) as events:
            for share in _shares(events):
                table = self._tables[share.topic]
                counts[share.topic] = self._apply_table(table, events, share)
        return Answers(counts, {})

    def _apply_table(self, table: TableSchema, events: DataFrame, share: _Share) -> Count:
        count = Count(events=share.events)
        target, columns = self.target(table, share.least_position)
        current = self._store.tables.load(target.current)
        if current is None:
            raise TransientError(f"The warehouse's table {'.'.join(target.current)} is gone.")
        wanted = {column.name: column.type for column in columns}
        _tune(events.sparkSession, share, _records(current))
        if share.rows:
            mine = versions(events.where(f.col("topic") == share.topic))
            shape = self._shapes.get(share.topic)
            with _kept(typed(mine, columns, wanted, shape)) as rows:
                target = self._counted(rows, target, columns, count, share.rows)
                if count.written + count.deleted <= _FEW_KEYS and _records(current) >= _WORTH_NARROWING:
                    target = _narrowed(rows, target, wanted)
                if count.parked:
                    self.park(table, rows)
                by = identity(target.key, wanted)
                fit = rows.where(FIT) if by == [naming.KEY_TEXT] else one_of_each_version(rows.where(FIT), by)
                if self._with_history:
                    self._to_history(fit, target, share.markers, by)
                found = types_of(current, columns)
                rows_now = fit if found == wanted else typed(mine, columns, found, shape).where(FIT)
                self._to_current(rows_now, target if found == wanted else replace(target, hashes=()), by)
        if share.markers:
            self._sweep(events, target, share)
        return count

    def _to_history(self, fit: DataFrame, target: Target, markers: Sequence[Marker], by: Sequence[str]) -> None:
        history_rows(fit, markers, by).createOrReplaceTempView("tailrace_versions")
        closings(fit, target.key, markers).createOrReplaceTempView("tailrace_closings")
        self._run(fit, statements.merge_history(target, "tailrace_versions", "tailrace_closings"))

    def _to_current(self, rows: DataFrame, target: Target, by: Sequence[str]) -> None:
        """Merge `rows` into the current table.

        The rows have the table's present types. Those differ from the wanted types until the next bootstrap.
        """
        last_of_each_key(rows, by).createOrReplaceTempView("tailrace_rows")
        self._run(rows, statements.merge_current(target, "tailrace_rows", guarded=self._with_history))

    def _sweep(self, events: DataFrame, target: Target, share: _Share) -> None:
        if self._with_history:
            self._run(events, statements.sweep_history(target, share.markers))
            newest_marker = max(share.markers)
            stamp = f"{newest_marker.position:016x}.{newest_marker.seq:08x}"
            self._store.note_markers({share.topic: stamp})
        self._run(events, statements.sweep_current(target, share.markers))
        log.info("truncate_applied", table=".".join(target.current))

    def _run(self, frame: DataFrame, statement: str) -> None:
        self._store.confirm_owner(self._generation)
        run_statement(frame, statement)

    def _counted(
        self, rows: DataFrame, target: Target, columns: Sequence[WarehouseColumn], count: Count, records: int
    ) -> Target:
        """Count the rows into `count` and return the target with the range of its keys. This evaluates the frame.

        `records` is the number of records that the frame must stand for.
        """
        kinds = {column.name: column.type for column in columns}
        first = quoted(target.key[0])
        row = rows.selectExpr(
            f"count_if({FIT} AND {naming.OP} <> 'd') AS written",
            f"count_if({FIT} AND {naming.OP} = 'd') AS deleted",
            f"count_if(NOT ({FIT})) AS parked",
            "count(*) AS rows",
            f"coalesce(sum({naming.RECORDS}), 0) AS records",
            f"min({first}) AS least",
            f"max({first}) AS most",
        ).first()
        if row is None:
            return target
        count.written, count.deleted, count.parked = row["written"], row["deleted"], row["parked"]
        require_all(target, records, row["records"])
        require_all(target, row["rows"], count.written + count.deleted + count.parked)
        if kinds[target.key[0]] not in _BOUNDED or row["least"] is None:
            return target
        return replace(target, ranges=((row["least"], row["most"]),))

    def park(self, table: TableSchema, rows: DataFrame) -> None:
        """Park the rows that do not fit their typed columns."""
        self._parking.park(parked_rows(self._store.name, table, rows))


def _narrowed(rows: DataFrame, target: Target, types: Mapping[str, str]) -> Target:
    """Restrict the merge to the hashes and the ranges of the batch's keys.

    To join a few keys with a large table, Spark would otherwise shuffle and sort the whole table. It would also read
    the whole table for one old key among new ones.
    """
    if any(types[name] in ("float", "double") for name in target.key):  # 0 and -0 are equal, but have different hashes
        return target
    first = f"{quoted(target.key[0])} AS first" if target.ranges else "NULL AS first"
    found = rows.where(FIT).selectExpr(f"{statements.key_hash(target.key)} AS hash", first).distinct()
    keys = found.collect()
    ranges = key_ranges([row["first"] for row in keys]) if target.ranges else ()
    return replace(target, hashes=tuple({row["hash"] for row in keys}), ranges=ranges)


def _records(table: Table) -> int:
    snapshot = table.current_snapshot()
    found = snapshot.summary["total-records"] if snapshot is not None and snapshot.summary is not None else None
    return int(found or 0)


def _tune(session: SparkSession, share: _Share, records: int) -> None:
    """Set Spark's code generation and number of tasks for the size of this batch.

    For a few rows, compiling the generated Java code takes longer than it saves. Each writing task creates its own
    files, so a small batch uses one task.
    """
    generate = max(share.events, records // _ROWS_PER_EVENT) >= _WORTH_COMPILING
    session.conf.set("spark.sql.codegen.wholeStage", "true" if generate else "false")
    session.conf.set("spark.sql.codegen.factoryMode", "FALLBACK" if generate else "NO_CODEGEN")
    tasks = "1" if share.events <= _ROWS_PER_TASK else session.sparkContext.getConf().get(_TASKS, "4")
    session.conf.set(_TASKS, tasks)


def parked_rows(store: str, table: TableSchema, rows: DataFrame) -> Iterator[ParkedRow]:
    """Yields the rows with a value that its typed column cannot hold. The reason names the columns, never a value."""
    for row in (
        rows.where(f"NOT ({FIT})")
        .selectExpr(*(f"{name} AS {known}" for name, known in PLACE.items()))
        .toLocalIterator()
    ):
        unfit = ", ".join(row["unfit"])
        unread = UNREADABLE in row["unfit"]
        yield ParkedRow(
            store=store,
            topic=table.topic,
            partition=row["partition"],
            offset=row["offset"],
            key=row["key"].encode(),
            version=row["version"],
            reason=UNREADABLE if unread else f"a value does not fit its typed column: {unfit}",
        )


def require_all(target: Target, expected: int, found: int) -> None:
    """Raise if the number of events is not the expected one.

    Every event must be written, deleted or parked. A batch that loses an event must not count as applied.
    """
    if found != expected:
        raise TransientError(f"{'.'.join(target.current)}: Spark returned {found} of the {expected} events of a batch.")


def run_statement(frame: DataFrame, statement: str) -> None:
    """Run the statement in the frame's session, which has its temporary views. Retries after a commit conflict.

    Every statement is safe to run again.
    """
    run_in(frame.sparkSession, statement)


def run_in(spark: SparkSession, statement: str) -> None:
    """Run the statement in this session. Retries after a commit conflict."""
    retried(lambda: spark.sql(statement))


def retried(call: Callable[[], Any]) -> Any:
    """Return the result of `call`. Retries it after a commit conflict."""
    backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
    for attempt in range(_TRIES):
        try:
            return call()
        except Exception as error:
            text = str(error)
            if attempt == _TRIES - 1 or not any(name in text for name in CONFLICTS):
                raise
            log.info("conflict_retried", reason=text.splitlines()[0][:200])
            time.sleep(backoff.next_delay())
    return None


@contextmanager
def _kept(frame: DataFrame) -> Iterator[DataFrame]:
    kept = frame.persist()
    try:
        yield kept
    finally:
        kept.unpersist()


def _shares(events: DataFrame) -> list[_Share]:
    rows = events.selectExpr(
        "topic",
        "position",
        "CASE WHEN op = 't' THEN named_struct('position', position, 'seq', seq, 'at', coalesce(ts_us, written_us),"
        " 'by_copy', key LIKE '%\"by\"%') END AS marker",
    )
    grouped = rows.groupBy("topic").agg(*_aggregates())
    return [
        _Share(
            topic=row["topic"],
            events=row["events"],
            rows=row["rows"],
            least_position=row["least_position"],
            markers=sorted(
                Marker(each["position"], each["seq"], each["at"], each["by_copy"]) for each in row["markers"]
            ),
        )
        for row in sorted(grouped.collect(), key=lambda row: str(row["topic"]))
    ]


def _aggregates() -> list[Any]:
    return [
        f.count("*").alias("events"),
        f.count_if(f.col("marker").isNull()).alias("rows"),
        f.min("position").alias("least_position"),
        f.collect_set("marker").alias("markers"),
    ]
