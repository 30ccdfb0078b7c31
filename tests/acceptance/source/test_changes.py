"""`spark.readStream.format("tailrace")`: the changes of a table, each once, across restarts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_jobs.source.data_source import TailraceDataSource
from tests.harness.kafka.topics import create_topic, delete_topic
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.processes.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: `id`, `v`, `_op`, `_version` and `_key` of a row.
Row = tuple[Any, ...]


class Changes:
    """What a stream of a table gives, batch by batch, with a checkpoint that outlives its queries."""

    def __init__(self, pipeline: Pipeline, spark: SparkSession, folder: Path) -> None:
        #: By Spark's number: a batch that is interrupted is taken again.
        self.batches: dict[int, list[Row]] = {}
        self._pipeline = pipeline
        self._spark = spark
        self._folder = folder
        spark.dataSource.register(TailraceDataSource)

    @contextmanager
    def query(self, *columns: str, **options: object) -> Iterator[StreamingQuery]:
        """A running query."""
        chosen = {"config": str(self._pipeline.config), "table": "public.t", **options}
        stream = self._spark.readStream.format("tailrace").options(**{k: str(v) for k, v in chosen.items()}).load()
        names = columns or ("id", "v", "_op", "_version", "_key")
        query = (
            stream.select(*names)
            .writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self._folder))
            .start()
        )
        try:
            yield query
        finally:
            query.stop()

    def _take(self, frame: DataFrame, number: int) -> None:
        rows = [tuple(row) for row in frame.collect()]
        assert sorted(self.batches.get(number, rows), key=str) == sorted(rows, key=str), "a repeated batch differs"
        self.batches[number] = rows

    @property
    def rows(self) -> list[Row]:
        return [row for batch in self.batches.values() for row in batch]

    def read_all(self, **options: object) -> None:
        """Run a query until it has read everything that is published now."""
        self._pipeline.fence()
        with self.query(**options) as query:
            query.processAllAvailable()


def _published(pipeline: Pipeline) -> dict[str, list[tuple[str, str]]]:
    """The operations and versions of each key, in order: without the `d` events, whose tombstones follow them."""
    found = defaultdict(list)
    for record in pipeline.records("t"):
        if record.op not in ("d", "t"):
            found[record.key.decode()].append((record.op or "d", str(record.version)))
    return dict(found)


def _seen(rows: list[Row]) -> dict[str, list[tuple[str, str]]]:
    found = defaultdict(list)
    for _, _, op, version, key in rows:
        if op != "t":
            found[key].append((op, version))
    return dict(found)


@pytest.fixture
def pipeline(make_pipeline: MakePipeline) -> Pipeline:
    """A table `t` of a streaming pipeline."""
    made = make_pipeline()
    made.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    made.start()
    made.database.execute("INSERT INTO t SELECT n, 'first' FROM generate_series(1, 20) AS n")
    return made


def test_every_change_comes_once_across_restarts(pipeline: Pipeline, spark: SparkSession, tmp_path: Path) -> None:
    """Inserts, updates, deletes, a key change and a TRUNCATE, in order per key. A restart continues where it was."""
    changes = Changes(pipeline, spark, tmp_path / "checkpoint")
    changes.read_all()
    pipeline.database.execute("UPDATE t SET v = 'second' WHERE id <= 5")
    pipeline.database.execute("UPDATE t SET id = 100 WHERE id = 1")
    changes.read_all()
    pipeline.database.execute("DELETE FROM t WHERE id = 2")
    changes.read_all()
    changes.read_all()
    pipeline.database.execute("TRUNCATE t; INSERT INTO t VALUES (2, 'again')")
    changes.read_all()
    assert _seen(changes.rows) == _published(pipeline)
    deleted = [(id_, v) for id_, v, op, _, _ in changes.rows if op == "d"]
    assert sorted(deleted) == [(1, None), (2, None)]
    assert [(id_, v, key) for id_, v, op, _, key in changes.rows if op == "t"] == [(None, None, None)]
    truncated = next(version for _, _, op, version, _ in changes.rows if op == "t")
    assert [row[:3] for row in changes.rows if row[3] >= truncated and row[2] != "t"] == [(2, "again", "c")]


def test_a_limited_batch_continues_after_a_restart(pipeline: Pipeline, spark: SparkSession, tmp_path: Path) -> None:
    """`maxRecordsPerBatch` holds for the first batch of a restarted query too, and no record is left out."""
    changes = Changes(pipeline, spark, tmp_path / "checkpoint")
    pipeline.fence()
    with changes.query(maxRecordsPerBatch=4) as query:
        eventually(lambda: changes.rows, 120, "the first batch")
        query.stop()
    changes.read_all(maxRecordsPerBatch=4)
    changes.read_all(maxRecordsPerBatch=4)
    assert max(map(len, changes.batches.values())) <= 4
    assert _seen(changes.rows) == _published(pipeline)


def test_latest_gives_later_changes_only(pipeline: Pipeline, spark: SparkSession, tmp_path: Path) -> None:
    """`startingOffsets=latest` of a new query; the checkpoint decides from then on."""
    changes = Changes(pipeline, spark, tmp_path / "checkpoint")
    changes.read_all(startingOffsets="latest")
    assert changes.rows == []
    pipeline.database.execute("UPDATE t SET v = 'second' WHERE id = 5")
    changes.read_all(startingOffsets="latest")
    assert [row[:3] for row in changes.rows] == [(5, "second", "u")]


def test_a_batch_has_whole_transactions(pipeline: Pipeline, spark: SparkSession, tmp_path: Path) -> None:
    """The rows of one source transaction come in one batch."""
    changes = Changes(pipeline, spark, tmp_path / "checkpoint")
    with changes.query() as query:
        for number in range(30):
            pipeline.database.execute(f"UPDATE t SET v = 'round {number}'")
        pipeline.fence()
        query.processAllAvailable()
    transactions = [{version.partition(".")[0] for _, _, _, version, _ in batch} for batch in changes.batches.values()]
    assert sum(map(len, transactions)) == len(set().union(*transactions)) == 31


def test_a_new_column_is_there_after_a_restart(pipeline: Pipeline, spark: SparkSession, tmp_path: Path) -> None:
    """A running query keeps its columns: it lacks a new one, and a dropped one is NULL. A restart has the new one."""
    changes = Changes(pipeline, spark, tmp_path / "checkpoint")
    pipeline.fence()
    with changes.query("id", "v") as query:
        query.processAllAvailable()
        pipeline.database.execute("ALTER TABLE t ADD COLUMN n int")
        pipeline.database.execute("UPDATE t SET v = 'wide', n = 7 WHERE id = 3")
        pipeline.database.execute("ALTER TABLE t DROP COLUMN v")
        pipeline.database.execute("UPDATE t SET n = 8 WHERE id = 4")
        pipeline.fence()
        query.processAllAvailable()
    assert changes.rows[20:] == [(3, "wide"), (4, None)] or changes.rows[20:] == [(4, None), (3, "wide")]
    pipeline.database.execute("UPDATE t SET n = 9 WHERE id = 4")
    pipeline.fence()
    changes.batches.clear()
    with changes.query("id", "n") as query:
        query.processAllAvailable()
    assert changes.rows == [(4, 9)]


def test_lost_changes_end_the_query(pipeline: Pipeline, spark: SparkSession, tmp_path: Path) -> None:
    """A topic that was made again has other records at the checkpoint's offsets: the restarted query says so."""
    changes = Changes(pipeline, spark, tmp_path / "checkpoint")
    changes.read_all()
    name = pipeline.topic("t")
    delete_topic(pipeline.bootstrap, name)
    create_topic(pipeline.bootstrap, name, 2)
    with pytest.raises(Exception, match="are lost: the topic was deleted and made again"), changes.query() as query:
        query.processAllAvailable()
