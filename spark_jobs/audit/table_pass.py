"""One pass over one table: reads the source at one snapshot, the topic and the stores once each, and compares them.

The driver keeps the snapshot open. Reading tasks yield rows as packed groups (`side_tasks`). Spark then sends each
group to one comparing task (`group_comparison`). The result is the number of rows on each side and the rows that
differed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psycopg

from cdc.audit.catch_up import wait_for_stores, wait_for_topics
from cdc.audit.recheck import Audited, ChangedMeanwhileError, content_of, read_schemas_of
from cdc.audit.source_rows import fence
from cdc.config import Config
from cdc.errors import RefusedError, TransientError
from cdc.lsn import LSN, Version
from cdc.positions.progress import Progress
from cdc.postgres import catalog
from cdc.postgres.connection import connect, explain
from cdc.snapshot.chunk_plan import Limits, plan_chunks, read_block_bytes, read_sizes, readers
from cdc.snapshot.records import BlockRange
from cdc.snapshot.source_reader import SnapshotLostError, at_snapshot
from cdc.snapshot.table_description import DescribedTable, describe_tables
from spark_jobs.audit.group_comparison import FoundDifferences, GroupComparison, Suspect
from spark_jobs.audit.shapes import shaped_frame
from spark_jobs.audit.side_tasks import PACKED, Hashing, PackTopic, SourceReadTask, StoreReadTask
from spark_jobs.audit.topic_read_task import TopicReadTask
from spark_jobs.shape.store_tables import StoreTables
from spark_jobs.sync.topic_facts import offsets
from spark_jobs.sync.topic_frame import read_topic_frame
from spark_jobs.tasks.task_errors import spark_errors

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession

_ROWS_PER_GROUP: Final = 500_000
_MOST_GROUPS: Final = 4096
#: Differing rows beyond this number are counted but not checked again one by one.
MOST_SUSPECTS: Final = 100_000
# Rows are hashed while they are read, so a share may be large without using much memory.
_LEAST_BYTES: Final = 16 << 20
_STORE_SLICES: Final = 2
_SHARE_OFFSETS: Final = 2_000_000
# As in `tailrace capture`: rows create many objects but no reference cycles.
_GC_THRESHOLDS: Final = (100_000, 20, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePassResult:
    """The result of a pass. `rows` and `differing`: numbers of rows by side.

    `ends`: the offset up to which each partition of the topic was read. `marker`: the version of the last TRUNCATE
    before these offsets.
    """

    lsn: LSN
    ends: list[int]
    marker: Version
    rows: dict[str, int]
    differing: dict[str, int]
    suspects: list[Suspect]


@contextmanager
def exported_snapshot(config: Config) -> Iterator[tuple[psycopg.Connection[Any], str]]:
    """Open and export a snapshot of the source; other connections can use it until the block ends."""
    with at_snapshot(config.source.conninfo(), None) as connection:
        row = connection.execute("select pg_export_snapshot()").fetchone()
        assert row is not None  # noqa: S101  # a select without FROM has one row
        yield connection, row[0]


class TablePass:
    """One pass over one table. `shaped_stores`: by name, the stores that get the table in a shape of their own."""

    def __init__(
        self, spark: SparkSession, config: Config, audited: Audited, shaped_stores: Mapping[str, StoreTables]
    ) -> None:
        self._spark = spark
        self._config = config
        self._audited = audited
        self._shaped_stores = shaped_stores

    def run(self) -> TablePassResult:
        """Read and compare all sides.

        The source's snapshot comes first. The topic and the stores are read after they have reached its LSN.
        """
        config, audited = self._config, self._audited
        try:
            with exported_snapshot(config) as (connection, snapshot), ExitStack() as opened:
                with connect(config.source.conninfo(), application_name="tailrace audit") as other:
                    lsn = catalog.current_lsn(other)
                table = describe_tables(connection, config, [audited.oid]).get(audited.oid)
                if table is None:
                    raise RefusedError(f"{audited.schema} does not exist in the source, or has no primary key.")
                shares = self._plan(connection, table)
                fence(config)
                progress = wait_for_topics(config, lsn, audited.timeout_seconds)
                wait_for_stores(config, list(audited.scans), lsn, audited.timeout_seconds)
                hashing = self._hashing(table, shares)
                starts, ends = self._offsets(progress)
                records = self._records(table, snapshot, shares, hashing, list(zip(starts, ends, strict=True)), opened)
                return self._compared(records, hashing.groups, lsn, ends)
        except psycopg.Error as error:
            raise TransientError(f"Postgres: {explain(error)}") from error

    def _offsets(self, progress: Progress) -> tuple[list[int], list[int]]:
        """Return the topic's start and end offsets.

        The ends cover everything that capture has published and other programs may have written.
        """
        topic = self._audited.schema.topic
        published = list(progress.end_offsets.get(topic, ()))
        starts, ends = offsets(self._config, {topic: len(published)})
        return starts[topic], [max(each) for each in zip(ends[topic], published, strict=True)]

    def _plan(self, connection: psycopg.Connection[Any], table: DescribedTable) -> list[tuple[int, list[BlockRange]]]:
        """Divide the table into shares of similar size, `(bytes, pieces)`, about one for each allowed connection."""
        sizes = read_sizes(connection, [table])
        total = sum(size.heap_bytes + size.toast_bytes for size in sizes.values())
        count = readers(self._config.snapshot)
        limits = Limits(
            chunk_bytes=max(_LEAST_BYTES, -(-total // count)),
            chunk_blocks=1 << 32,
            block_bytes=read_block_bytes(connection),
        )
        chunks = plan_chunks("audit", [table], sizes, limits)
        return [(chunk.size_bytes, chunk.pieces) for chunk in chunks]

    def _hashing(self, table: DescribedTable, shares: Sequence[tuple[int, list[BlockRange]]]) -> Hashing:
        audited = self._audited
        content = content_of(table, read_schemas_of(self._config).get(audited.schema.topic), audited.spelled)
        parallel = self._spark.sparkContext.defaultParallelism
        rows = sum(size for size, _ in shares) // 100
        groups = max(parallel, min(_MOST_GROUPS, rows // _ROWS_PER_GROUP))
        return Hashing(content, bool(audited.scans), len(table.shape.key) == 1, groups)

    def _records(
        self,
        table: DescribedTable,
        snapshot: str,
        shares: Sequence[tuple[int, list[BlockRange]]],
        hashing: Hashing,
        spans: Sequence[tuple[int, int]],
        opened: ExitStack,
    ) -> RDD[Any]:
        """Return the RDD that reads all sides. `spans`: start and end offset of each partition of the topic."""
        config, audited = self._config, self._audited
        calls: list[Callable[[], Iterable[Any]]] = [
            SourceReadTask(
                config=config,
                snapshot=snapshot,
                table=table,
                pieces=tuple(pieces),
                hashing=hashing,
                rows_per_second=config.snapshot.rows_per_second / readers(config.snapshot),
            )
            for _, pieces in shares
        ]
        for name, scan in audited.scans.items():
            slices = opened.enter_context(scan.slices(audited.schema_in(name), _STORE_SLICES))
            calls += [StoreReadTask(store=name, read=read, hashing=hashing) for read in slices]
        if not self._shaped_stores:
            calls += self._topic_shares(hashing, spans)
        context = self._spark.sparkContext
        # The calls hold passwords, so they are part of the function: Spark writes an RDD's data to a file.
        read: RDD[Any] = context.parallelize(range(len(calls)), max(1, len(calls))).flatMap(partial(_call, calls))
        if not self._shaped_stores or not any(end > start for start, end in spans):
            return read
        return read.union(self._shaped_topic(hashing, spans).rdd.map(_as_record))

    def _topic_shares(self, hashing: Hashing, spans: Sequence[tuple[int, int]]) -> list[TopicReadTask]:
        """Return at least one share per partition; a large partition is divided.

        Dividing is safe, because the comparison takes the last record of a key whichever share it is from.
        """
        return [
            TopicReadTask(
                options=self._config.kafka.client_options(),
                python_options=self._config.kafka.python_options(),
                topic=self._audited.schema.topic,
                partition=partition,
                start=first,
                end=min(end, first + _SHARE_OFFSETS),
                hashing=hashing,
            )
            for partition, (start, end) in enumerate(spans)
            for first in range(start, end, _SHARE_OFFSETS)
        ]

    def _shaped_topic(self, hashing: Hashing, spans: Sequence[tuple[int, int]]) -> DataFrame:
        """Read the topic in a shape's session, because expressions need that session's settings."""
        topic, shaped_stores = self._audited.schema.topic, self._shaped_stores
        session = next(store_tables.spark for store_tables in shaped_stores.values())
        starts, ends = [start for start, _ in spans], [end for _, end in spans]
        frame = read_topic_frame(session, self._config, {topic: starts}, {topic: ends})
        shapes = {store: store_tables.shapes[topic].row for store, store_tables in shaped_stores.items()}
        prepared = with_markers(shaped_frame(frame, shaped_stores, topic))
        return prepared.mapInArrow(PackTopic(hashing=hashing, shapes=shapes), PACKED)  # type: ignore[arg-type]

    def _compared(self, records: RDD[Any], groups: int, lsn: LSN, ends: list[int]) -> TablePassResult:
        stores = list(self._audited.scans)
        comparing = GroupComparison(stores, frozenset(self._shaped_stores), -(-MOST_SUSPECTS // groups))
        self._spark.sparkContext.setJobDescription(f"audit of {self._audited.schema}")
        with spark_errors("The audit's Spark job failed"):
            found: list[FoundDifferences] = records.partitionBy(groups, int).mapPartitions(comparing).collect()
        _raise_failure([failure for each in found for failure in each.failures])
        marker = max(each.marker for each in found)
        return TablePassResult(
            lsn=lsn,
            ends=ends,
            marker=Version.parse(marker) if marker else Version(0, 0),
            rows=_sum(each.rows for each in found),
            differing=_sum(each.differing for each in found),
            suspects=[suspect for each in found for suspect in each.suspects],
        )


_IS_MARKER: Final = (
    "coalesce(startswith(cast(key AS string), '{\"__truncate\":') AND value IS NOT NULL AND "
    'endswith(substring_index(cast(value AS string), \'","ts_ms":\', 2), \',"op":"t\'), false) AS is_marker'
)


def with_markers(frame: DataFrame) -> DataFrame:
    """Add the column `is_marker`: whether the record is the marker of a TRUNCATE."""
    return frame.selectExpr("*", _IS_MARKER)


def _call(calls: Sequence[Callable[[], Iterable[Any]]], number: int) -> Iterable[Any]:
    """Run one reading task, in the worker."""
    gc.set_threshold(*_GC_THRESHOLDS)
    return calls[number]()


def _as_record(row: Any) -> tuple[int, tuple[str, bytes]]:
    return row[0], (row[1], bytes(row[2]))


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for side, count in each.items():
            total[side] = total.get(side, 0) + count
    return total


def _raise_failure(failures: Sequence[Exception]) -> None:
    for failure in failures:
        if isinstance(failure, SnapshotLostError):
            raise ChangedMeanwhileError(str(failure))
    for failure in sorted(failures, key=lambda each: not isinstance(each, RefusedError)):
        raise failure
