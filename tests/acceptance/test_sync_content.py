"""Both stores hold what the source holds, whatever was written: by content, row by row."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.test_capture_random import _SCHEMA, TABLES, Writer
from tests.harness.audit import assert_clean
from tests.harness.pipeline import MakePipeline
from tests.harness.store_sync import StorePipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def stores(make_pipeline: MakePipeline, spark: SparkSession, elasticsearch_url: str, redis_url: str) -> StorePipeline:
    return StorePipeline(
        make_pipeline(),
        spark,
        {
            "search": {"kind": "elasticsearch", "url": elasticsearch_url},
            "cache": {"kind": "redis", "url": redis_url},
        },
    )


def test_random_changes_end_up_in_both_stores(stores: StorePipeline, spark: SparkSession) -> None:
    """Deletes, key changes, TRUNCATE, TOAST: equal afterwards, and an audit says so; and again after a bootstrap from
    the topics."""
    seed = int(os.environ.get("TAILRACE_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"TAILRACE_SEED={seed}")
    database = stores.pipeline.database
    database.execute(_SCHEMA)
    stores.pipeline.start()
    writer = Writer(database.connect(), random.Random(seed))
    with stores.syncing():
        for _ in range(150):
            writer.transaction()
        stores.assert_same(*TABLES, deadline_seconds=120)
        assert_clean(stores.config, spark, *stores.names)
    for name in stores.names:
        report = stores.bootstrap(name)
        assert report.verdict.complete, str(report.verdict)
    stores.compare(*TABLES)


def test_tables_and_columns_that_come_later_are_picked_up(stores: StorePipeline) -> None:
    """No restart: a new table that the config selects, and a new column with its values."""
    database = stores.pipeline.database
    database.execute("CREATE TABLE a (id int PRIMARY KEY, n int)")
    capture = stores.pipeline.start()
    with stores.syncing():
        database.execute("INSERT INTO a VALUES (1, 1)")
        stores.assert_same("a")
        database.execute("CREATE TABLE b (id int PRIMARY KEY, v text)")
        capture.wait_for_line("table_added", 60)  # rows that are there before that need a copy
        database.execute("ALTER TABLE a ADD COLUMN late text")
        database.execute("INSERT INTO b SELECT i, 'v' FROM generate_series(1, 100) i")
        database.execute("INSERT INTO a VALUES (2, 2, 'later')")
        database.execute("UPDATE a SET late = 'now' WHERE id = 1")
        stores.assert_same("a", "b")
