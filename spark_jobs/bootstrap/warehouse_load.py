"""Bulk load of a warehouse's generation: appends the topics' rows once, then merges changes until the switch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as f

from cdc.lsn import Version
from sinks.iceberg import naming, statements
from sinks.iceberg.schemas import CURRENT_OWN, WarehouseColumn
from sinks.iceberg.statements import Marker
from spark_jobs.bootstrap.bulk_load import BulkLoad
from spark_jobs.shape.typed_rows import events_of, quoted, typed_events
from spark_jobs.sync.topic_frame import read_topic_frame
from spark_jobs.tasks.apply_tasks import Count
from spark_jobs.tasks.task_errors import spark_errors
from spark_jobs.tasks.task_results import Answers
from spark_jobs.warehouse.apply import WarehouseBatches, require_all, run_statement
from spark_jobs.warehouse.batch import FIT, loaded, newest, typed
from spark_jobs.writing.contract import Loaded, Offsets

_TASK_OFFSETS = 200_000
_THERE = f"{naming.OP} <> 'd'"


class WarehouseBulkLoad(BulkLoad[WarehouseBatches]):
    """Loads offset ranges into the Iceberg tables of one generation."""

    def _run(
        self,
        applying: WarehouseBatches,
        start: Offsets,
        end: Offsets,
        markers: Mapping[str, bytes],  # noqa: ARG002 - a load applies its markers before it returns
        events: int,  # noqa: ARG002 - each topic is read separately
        count: bool,
    ) -> Loaded:
        # If a topic is empty, adaptive execution may change the running plan and lose the observed counts.
        self._spark.conf.set("spark.sql.adaptive.enabled", "false")
        with spark_errors("The Spark job of the load failed"):
            if not count:
                return Loaded(answers=applying.without_history().apply(self._records(start, end)), rows={})
            loaded = {topic: self._append(applying, topic, start[topic], end[topic]) for topic in end}
        counts = {topic: each for topic, (each, _) in loaded.items()}
        return Loaded(answers=Answers(counts, {}), rows={topic: rows for topic, (_, rows) in loaded.items()})

    def _records(self, start: Offsets, end: Offsets) -> DataFrame:
        records = sum(sum(end[topic]) - sum(start[topic]) for topic in end)
        partitions = str(max(1, records // _TASK_OFFSETS))
        return read_topic_frame(self._spark, self._config, start, end, minPartitions=partitions)

    def _append(
        self, applying: WarehouseBatches, topic: str, start: Sequence[int], end: Sequence[int]
    ) -> tuple[Count, int]:
        """Append a topic's rows to a table that is empty and not served yet.

        Returns the counts, and the number of live rows that the topic has, parked ones included.
        """
        table = self._store_tables.schemas[topic]
        target, columns = applying.target(table)
        seen, kept = Observation(), Observation()
        rows = self._rows(topic, columns, start, end, seen)
        counted = rows.observe(
            kept,
            f.count_if(f.expr(f"{_THERE} AND {FIT}")).alias("fit"),
            f.count_if(f.expr(f"{_THERE} AND NOT ({FIT})")).alias("unfit"),
            f.count_if(f.expr(f"NOT ({_THERE})")).alias("gone"),
            f.count("*").alias("keys"),
            f.coalesce(f.sum(naming.RECORDS), f.lit(0)).alias("records"),
        )
        names = [*(column.name for column in columns), *CURRENT_OWN]
        fit = counted.where(f"{_THERE} AND {FIT}").select(*(f.col(quoted(name)) for name in names))
        fit.writeTo(statements.full_name(target.current)).append()
        count = Count(events=seen.get["events"], written=kept.get["fit"], parked=kept.get["unfit"])
        require_all(target, count.events, seen.get["markers"] + kept.get["records"])
        require_all(target, kept.get["keys"], count.written + count.parked + kept.get["gone"])
        if count.parked:
            applying.park(table, rows.where(_THERE))
        live = count.written
        if seen.get["marker"] is not None:
            found = Version.parse(seen.get["marker"])
            line = Marker(found.position, found.seq, 0)
            dead = self._spark.table(statements.full_name(target.current)).where(statements.is_older(line)).count()
            run_statement(fit, statements.sweep_current(target, [line]))
            live -= dead
        return count, live + count.parked

    def _rows(
        self,
        topic: str,
        columns: Sequence[WarehouseColumn],
        start: Sequence[int],
        end: Sequence[int],
        seen: Observation,
    ) -> DataFrame:
        """Return the last version of each row, deleted rows included.

        Events are parsed before the shuffle by key, because typed columns are much smaller than the event's text. Only
        a shape with expressions needs the text after the shuffle.
        """
        shape = self._store_tables.shapes.get(topic)
        records = self._records({topic: start}, {topic: end})
        wanted = {column.name: column.type for column in columns}
        as_text = shape is not None and shape.row.evaluated
        read = events_of(records) if as_text else typed_events(records, {each.source: each.type for each in columns})
        marker = f.when(f.col("op") == "t", f.col("version"))
        events = read.observe(
            seen,
            f.count("*").alias("events"),
            f.count_if(f.col("op") == "t").alias("markers"),
            f.max(marker).alias("marker"),
        )
        spread = newest(events.repartition(max(2, (sum(end) - sum(start)) // _TASK_OFFSETS), "key"))
        return typed(spread, columns, wanted, shape) if as_text else loaded(spread, columns)
