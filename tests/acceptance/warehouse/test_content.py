"""The warehouse holds what the source holds and what it held before, compared by content, row by row."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cdc.lsn import LSN
from sinks.iceberg.store import IcebergStore
from spark_jobs.session.spark_session import warehouse_session
from spark_jobs.warehouse.query import parse_as_of, query_warehouse
from tests.acceptance.capture.test_random_changes import _SCHEMA, TABLES, Writer
from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.postgres.database import Database
from tests.harness.stores.store_pipeline import StorePipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of a deferrable key, and of values that the log leaves out, capture asks later than the change was made.
_PAST = tuple(table for table in TABLES if table != "seats")
_FULL = "".join(f"ALTER TABLE {table} REPLICA IDENTITY FULL;" for table in _PAST)
Contents = dict[str, list[tuple[Any, ...]]]

_TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE typed (
    id bigint PRIMARY KEY, i2 smallint, i4 integer, n10 numeric(10, 2), n38 numeric(38, 10), n numeric, f4 real,
    f8 double precision, b boolean, t text, v varchar(5), c char(5), bin bytea, d date, ts timestamp, tz timestamptz,
    tz3 timestamptz(3), tm time, iv interval, u uuid, j json, jb jsonb, m mood, r int4range, p point, mo money,
    bi bit(1), b3 bit(3),
    ia integer[], ta text[], da date[], na numeric(6, 2)[], fa double precision[], "Odd.Name" int, "ID" int,
    key text, version int, partition int, "offset" int, rank int, "end" int, ends int, last int, own int, closing bool,
    unfit text, raw text, "row" text, text text, op text, topic text, "position" int, seq int, "_TAILRACE_KEY" int
);
"""
# Words that statements about rows are made of, too.
_WORDS = """
UPDATE typed SET key = 'k', version = 1, partition = 2, "offset" = 3, rank = 4, "end" = 5, ends = 6, last = 7, own = 8,
 closing = true, unfit = 'u', raw = 'r', "row" = 'w', text = 't', op = 'd', topic = 'x', "position" = 9, seq = 10,
 "_TAILRACE_KEY" = 11 WHERE id < 3
"""
_ROWS = """
INSERT INTO typed VALUES
 (1, -5, 2147483647, 5, 1.0000000001, 1e30, 1.1, 0.1, true, E'a"b\\\\c\\nd\\té', 'ab', 'ab', '\\x00ff10', '2024-02-29',
  '2024-02-29 12:34:56.789012', '2024-02-29 12:34:56.7+02', '2024-02-29 12:34:56.7+00', '24:00:00', '1 day',
  'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a":  1}', '{"b": 1.10}', 'ok', '[1,5)', '(1.5,2)', -1234.56, B'1', B'101',
  '{1,NULL,3}', array['a','b,c','[[x',NULL,''], '{2024-02-29,NULL}', '{1.1,2}', '{1,-Infinity,NaN}', 7, 8),
 (2, NULL, NULL, NULL, NULL, 'NaN', 'NaN', '-Infinity', NULL, '', NULL, NULL, '', '0001-01-01', '9999-12-31 23:59:59',
  '0001-01-01 00:00:00+00', NULL, NULL, NULL, NULL, '"\\u0000"', 'null', NULL, NULL, NULL, NULL, NULL, NULL, '{}', '{}',
  NULL, NULL, NULL, NULL, NULL),
 (3, 32767, 0, -0.01, -0.5, 0, '-0', '-0', false, 'x', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
  NULL, NULL, NULL, NULL, 92233720368547758.07, B'0', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)
"""


@pytest.fixture
def stores(make_pipeline: MakePipeline, spark: SparkSession, tmp_path: Path) -> StorePipeline:
    section = {"kind": "iceberg", "path": str(tmp_path / "warehouse"), "trigger_milliseconds": 3000}
    return StorePipeline(make_pipeline(), spark, {"warehouse": section})


def test_current_and_past_states_equal_the_source(stores: StorePipeline, spark: SparkSession) -> None:
    """After random changes the current tables and the state at each fenced LSN equal the source's, also after a
    bootstrap.

    pyiceberg and Spark both read the same rows.
    """
    seed = int(os.environ.get("TAILRACE_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"TAILRACE_SEED={seed}")
    database = stores.pipeline.database
    database.execute(_SCHEMA)
    database.execute(_TYPES + _FULL)
    stores.pipeline.start()
    writer = Writer(database.connect(), random.Random(seed))
    recorded: dict[LSN, Contents] = {}
    with stores.syncing():
        database.execute(_ROWS)
        database.execute(_WORDS)
        for _ in range(3):
            for _ in range(20):
                writer.transaction()
            recorded[database.lsn()] = _contents(database, _PAST)
        stores.assert_same(*TABLES, "typed", deadline_seconds=240)
    _same_in_spark(stores, spark, "typed")
    _same_then(stores, spark, recorded)
    report = stores.bootstrap("warehouse")
    assert report.verdict.complete, str(report.verdict)
    stores.compare(*TABLES, "typed")
    with stores.syncing():
        database.execute("UPDATE typed SET t = 'after' WHERE id = 1")
        stores.assert_same("typed")
    _same_then(stores, spark, recorded)


def _contents(database: Database, tables: Sequence[str]) -> Contents:
    return {table: sorted(database.execute(f"SELECT * FROM {table}"), key=str) for table in tables}


def _same_in_spark(stores: StorePipeline, spark: SparkSession, table: str) -> None:
    with stores.opened("warehouse") as (store, generation):
        assert isinstance(store, IcebergStore)
        session = warehouse_session(spark, store.settings)
        seen = query_warehouse(session, store, f"SELECT * FROM public.{table}").frame.count()
        assert seen == store.count(generation, stores.tables()[stores.pipeline.topic(f"public.{table}")])


def _same_then(stores: StorePipeline, spark: SparkSession, recorded: dict[LSN, Contents]) -> None:
    with stores.opened("warehouse") as (store, _):
        assert isinstance(store, IcebergStore)
        session = warehouse_session(spark, store.settings)
        for lsn, tables in recorded.items():
            for table, rows in tables.items():
                answer = query_warehouse(session, store, f"SELECT * FROM public.{table}", parse_as_of(str(lsn)))
                seen = sorted((tuple(row) for row in answer.frame.collect()), key=str)
                assert seen == rows, f"{table} as of {lsn}"
                assert not answer.warnings
