"""Large values reach every store whole, by the stream and by a bootstrap."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_jobs.tasks.parked_rows import read_parked
from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.stores.clean_audit import assert_clean
from tests.harness.stores.store_pipeline import StorePipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Jackson, which reads JSON in the JVM, refuses a longer string unless it is told otherwise.
_JACKSON_LIMIT = 20_000_000
_TOASTED = 1_000_000


@pytest.fixture
def stores(
    make_pipeline: MakePipeline, spark: SparkSession, elasticsearch_url: str, redis_url: str, tmp_path: Path
) -> StorePipeline:
    return StorePipeline(
        make_pipeline(kafka={"max_message_bytes": 32_000_000}),
        spark,
        {
            "search": {"kind": "elasticsearch", "url": elasticsearch_url},
            "cache": {"kind": "redis", "url": redis_url},
            "warehouse": {"kind": "iceberg", "path": str(tmp_path / "warehouse"), "trigger_milliseconds": 200},
        },
    )


def test_large_values_are_kept_by_every_store(stores: StorePipeline, spark: SparkSession) -> None:
    """A text of more than 20 million characters, and an update that leaves a text of 1 MB alone, which Postgres then
    does not log: both texts are in all stores, nothing is parked, an audit agrees, and a bootstrap of each store from
    the topics gives the same rows."""
    database = stores.pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, body text)")
    database.execute("ALTER TABLE t ALTER COLUMN body SET STORAGE EXTERNAL")
    stores.pipeline.start()
    with stores.syncing():
        database.execute("INSERT INTO t VALUES (1, 1, repeat('toast', %s))", [_TOASTED // 5])
        database.execute("INSERT INTO t VALUES (2, 1, repeat('x', %s)), (3, 1, 'small')", [_JACKSON_LIMIT + 1])
        stores.assert_same("t", deadline_seconds=120)
        database.execute("UPDATE t SET n = 2 WHERE id IN (1, 3)")
        stores.assert_same("t", deadline_seconds=120)
        assert_clean(stores.config, spark, *stores.names)
    for name in stores.names:
        report = stores.bootstrap(name)
        assert (report.verdict.complete, report.verdict.rows) == (True, 3), str(report.verdict)
    stores.compare("t")
    assert list(read_parked(stores.config)) == []
