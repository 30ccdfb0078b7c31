"""`spark.read.format("tailrace")`: the table as it is, from its topic alone."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import pytest

from cdc.names import topic
from spark_jobs.shape.typed_rows import events_of, with_typed_rows
from spark_jobs.source.columns import source_columns
from spark_jobs.source.data_source import TailraceDataSource
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.present_state import TopicSlice, present_rows
from spark_jobs.source.table_topic import find_table, read_facts, read_published
from spark_jobs.tasks.topic_range import TopicRange
from tests.acceptance.capture.test_random_changes import _SCHEMA, TABLES, Writer
from tests.harness.kafka.topics import alter_topic, delete_topic
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.processes.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WIDE = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE wide (
    id bigint PRIMARY KEY, i2 smallint, i4 integer, o oid, n10 numeric(10, 2), n38 numeric(38, 10), n numeric, f4 real,
    f8 double precision, b boolean, t text, v varchar(5), c char(5), bin bytea, d date, ts timestamp, tz timestamptz,
    tz3 timestamptz(3), tm time, iv interval, u uuid, j json, jb jsonb, m mood, r int4range, p point, mo money,
    bi bit(1), b3 bit(3), ia integer[], ta text[], da date[], na numeric(6, 2)[], fa double precision[],
    tza timestamptz[],
    ba bytea[], pa point[], ma mood[], "Odd.Name" int, "ID" int, _op text, "row" text
);
"""
_VALUES = """
INSERT INTO wide VALUES
 (1, -5, 2147483647, 4294967295, 5, 1.0000000001, 1e30, 1.1, 0.1, true, E'a"b\\\\c\\nd\\té', 'ab', 'ab', '\\x00ff10',
  '2024-02-29', '2024-02-29 12:34:56.789012', '2024-02-29 12:34:56.7+02', '2024-02-29 12:34:56.7+00', '24:00:00',
  '1 day', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a":  1}', '{"b": 1.10}', 'ok', '[1,5)', '(1.5,2)', -1234.56,
  B'1', B'101', '{1,NULL,3}', array['a','b,c','[[x',NULL,''], '{2024-02-29,NULL}', '{1.1,2}', '{1,-Infinity,NaN}',
  '{2024-02-29 12:34:56+00,NULL}', array['\\x00ff'::bytea], array['(1,2)'::point], '{ok}', 7, 8, 'own', 'w'),
 (2, NULL, NULL, NULL, NULL, NULL, 'NaN', 'NaN', '-Infinity', NULL, '', NULL, NULL, '', '0001-01-01',
  '9999-12-31 23:59:59', '0001-01-01 00:00:00+00', NULL, NULL, NULL, NULL, '"\\u0000"', 'null', NULL, NULL, NULL, NULL,
  NULL, NULL, '{}', '{}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
 (3, 32767, 0, 0, -0.01, -0.5, 0, '-0', '-0', false, 'x', NULL, NULL, NULL, '-infinity', 'infinity',
  '0044-03-15 12:00:00+00 BC', '12024-01-01 00:00:00+00', NULL, 'infinity', NULL, NULL, NULL, NULL, NULL, NULL,
  92233720368547758.07, B'0', NULL, '{{1,2},{3,NULL}}', '[0:1]={a,b}', '{2024-02-29,infinity}', '{NaN,1}',
  '{{1,2}}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)
"""


def _read(spark: SparkSession, pipeline: Pipeline, table: str, **options: object) -> DataFrame:
    spark.dataSource.register(TailraceDataSource)
    chosen = {"config": str(pipeline.config), "table": f"public.{table}", "allowIncomplete": "true", **options}
    return spark.read.format("tailrace").options(**{name: str(each) for name, each in chosen.items()}).load()


def test_it_is_the_table_after_random_changes(make_pipeline: MakePipeline, spark: SparkSession) -> None:
    """Inserts, updates, deletes, key changes, TRUNCATE, TOAST and deferrable keys, in whichever order."""
    seed = int(os.environ.get("TAILRACE_SEED") or random.randrange(1 << 32))
    print(f"TAILRACE_SEED={seed}")
    pipeline = make_pipeline()
    pipeline.database.execute(_SCHEMA)
    pipeline.start()
    writer = Writer(pipeline.database.connect(), random.Random(seed))
    for _ in range(60):
        writer.transaction()
    records = pipeline.assert_same(*TABLES)
    for table in TABLES:
        _same_as_topic(pipeline, spark, table)
        _same_as_topic(pipeline, spark, table, maxRecordsPerTask=40)
    assert any(record.op == "d" for each in records.values() for record in each)


def _same_as_topic(pipeline: Pipeline, spark: SparkSession, table: str, **options: object) -> None:
    """The topic was compared with the source; these are its rows, value by value, as texts."""
    expected: dict[str, tuple[Any, ...]] = {}
    truncated = max((str(each.version) for each in pipeline.records(table) if each.op == "t"), default="")
    for record in pipeline.records(table):
        if record.op in (None, "d"):
            expected.pop(record.key.decode(), None)
        elif record.op != "t":
            after = tuple(_text(value) for value in record.value["after"].values())
            expected[record.key.decode()] = (*after, str(record.version), record.op)
    rows = _read(spark, pipeline, table, types="text", **options).collect()
    found = {row["_key"]: tuple(value for name, value in row.asDict().items() if name != "_key") for row in rows}
    assert found == {key: row for key, row in expected.items() if row[-2] >= truncated}
    assert len(found) == len(rows)


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return getattr(value, "text", None) or str(value).lower()


def test_the_types_are_the_warehouses(make_pipeline: MakePipeline, spark: SparkSession) -> None:
    """One wide table: types and values are those of the warehouse, and what does not fit is NULL; `string` has it."""
    pipeline = make_pipeline()
    pipeline.database.execute(_WIDE)
    pipeline.start()
    pipeline.database.execute(_VALUES)
    pipeline.fence()
    frame = _read(spark, pipeline, "wide")
    options = SourceOptions.read({"config": str(pipeline.config), "table": "public.wide"})
    table = find_table(options, read_published(options))
    records = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", pipeline.bootstrap)
        .option("subscribe", topic(pipeline.prefix, "public", "wide"))
        .option("includeHeaders", "true")
        .load()
        .selectExpr("topic", "partition", "offset", "key", "value", "headers[0].value AS stamp", "timestamp")
    )
    typed = with_typed_rows(events_of(records), table)
    expected = {row["key"]: row["row"] for row in typed.select("key", "row").collect()}
    found = {row["_key"]: row for row in frame.collect()}
    assert len(found) == 3
    types = typed.schema["row"].dataType.fields
    assert [each.dataType for each in frame.schema.fields][:-3] == [each.dataType for each in types]
    for key, row in found.items():
        for place, name in enumerate(frame.columns[:-3]):
            assert str(row[place]) == str(expected[key][place]), f"{key} {name}"
    assert [column.name for column in source_columns(table)[-6:-3]] == ["ID_", "__op", "row"]
    third = found['{"id":3}']
    assert [third[name] for name in ("d", "ts", "tz", "ia", "ta", "da", "na", "fa")] == [None] * 8
    exact = _read(spark, pipeline, "wide", types="text").where("id = '3'").collect()[0]
    assert (exact["d"], exact["ta"], exact["ia"]) == ("-infinity", "[0:1]={a,b}", "[[1,2],[3,null]]")
    chosen = (
        spark.read.format("tailrace")
        .schema("id bigint, n10 string, _op string")
        .options(config=str(pipeline.config), table="public.wide", allowIncomplete="true")
    )
    assert sorted(map(tuple, chosen.load().collect())) == [(1, "5.00", "c"), (2, None, "c"), (3, "-0.01", "c")]


def test_big_partitions_are_read_twice(make_pipeline: MakePipeline) -> None:
    """What does not fit into a task's memory is read again: only the last record of each key, once."""
    pipeline = make_pipeline(kafka={"partitions": 1})
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.start()
    pipeline.database.execute("INSERT INTO t SELECT n, 'old' FROM generate_series(1, 12000) AS n")
    pipeline.database.execute("DELETE FROM t WHERE id <= 1000")
    pipeline.database.execute("UPDATE t SET v = 'new' WHERE id <= 6000")
    pipeline.fence()
    options = SourceOptions.read({"config": str(pipeline.config), "table": "public.t"})
    table = find_table(options, read_published(options))
    end = read_facts(options, table.topic).ends[0]
    for kept_bytes in (1_000, 1 << 30):
        part = TopicSlice(TopicRange(table.topic, 0, 0, end), 0, 1, 3_600_000)
        batches = list(present_rows(options.kafka, part, source_columns(table), kept_bytes))
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert {row["id"]: row["v"] for row in rows} == {n: "new" if n <= 6000 else "old" for n in range(1001, 12001)}
        assert len(rows) == 11_000


def test_a_row_that_compaction_takes_away_is_not_left_out(make_pipeline: MakePipeline) -> None:
    """A read to an older end fails if a later change has replaced a row: it never returns fewer rows."""
    pipeline = make_pipeline(kafka={"partitions": 1})
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.start()
    pipeline.database.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    pipeline.fence()
    options = SourceOptions.read({"config": str(pipeline.config), "table": "public.t"})
    table = find_table(options, read_published(options))
    end = read_facts(options, table.topic).ends[0]
    part = TopicSlice(TopicRange(table.topic, 0, 0, end), 0, 1, 3_600_000)
    compacted = {"segment.ms": "200", "min.cleanable.dirty.ratio": "0.001", "max.compaction.lag.ms": "200"}
    alter_topic(pipeline.bootstrap, table.topic, compacted)
    pipeline.database.execute("UPDATE t SET v = 'later' WHERE id = 1")

    def is_compacted() -> bool:
        # A segment is closed by the next record that comes after its time.
        pipeline.database.execute("UPDATE t SET v = 'later still' WHERE id = 1")
        pipeline.fence()
        return [each.key for each in pipeline.records("t")][:1] != [b'{"id":1}']

    eventually(is_compacted, 120, "the topic to be compacted")
    with pytest.raises(Exception, match="was compacted during the read"):
        list(present_rows(options.kafka, part, source_columns(table)))


def test_an_incomplete_table_is_refused(make_pipeline: MakePipeline, spark: SparkSession) -> None:
    """A table that waits for a snapshot is not read as if it were whole, unless asked for."""
    pipeline = make_pipeline()
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    pipeline.start()
    pipeline.database.execute("INSERT INTO t VALUES (2)")
    pipeline.fence()
    with pytest.raises(Exception, match=r"is not a complete copy of the table: incomplete since .* tailrace snapshot"):
        _read(spark, pipeline, "t", allowIncomplete="false").collect()
    assert [row["id"] for row in _read(spark, pipeline, "t").collect()] == [2]


def test_mistakes_are_one_clear_line(make_pipeline: MakePipeline, spark: SparkSession) -> None:
    """An unknown table, with the near names; a prefix without a pipeline; a broker that is not there; a lost topic."""
    pipeline = make_pipeline()
    pipeline.database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    pipeline.start()
    pipeline.database.execute("INSERT INTO orders VALUES (1)")
    pipeline.fence()
    with pytest.raises(Exception, match=r"no table public\.order under the prefix .* Near names: public\.orders"):
        _read(spark, pipeline, "order")
    with pytest.raises(Exception, match="There is no pipeline with the prefix nobody"):
        _read(spark, pipeline, "orders", prefix="nobody")
    spark.dataSource.register(TailraceDataSource)
    absent = spark.read.format("tailrace").options(table="public.orders", bootstrap="127.0.0.1:1", prefix="p")
    with pytest.raises(Exception, match=r"Kafka at 127\.0\.0\.1:1 could not be read") as error:
        absent.option("kafka.sasl.password", "hunter2").load()
    assert "hunter2" not in str(error.value)
    assert _read(spark, pipeline, "orders").count() == 1
    delete_topic(pipeline.bootstrap, pipeline.topic("orders"))
    with pytest.raises(Exception, match=r"public\.orders could not be read"):
        _read(spark, pipeline, "orders").count()
