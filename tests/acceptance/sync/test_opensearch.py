"""OpenSearch holds what the source holds: synced, built again from the topics, and audited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.stores.clean_audit import assert_clean
from tests.harness.stores.store_pipeline import StorePipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_sync_bootstrap_and_audit(make_pipeline: MakePipeline, spark: SparkSession, opensearch_url: str) -> None:
    """Inserts, updates, deletes and a TRUNCATE arrive; an audit finds no difference, also after a bootstrap."""
    stores = StorePipeline(make_pipeline(), spark, {"search": {"kind": "opensearch", "url": opensearch_url}})
    database = stores.pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY)")
    stores.pipeline.start()
    with stores.syncing():
        database.execute("INSERT INTO t SELECT i, 'row' FROM generate_series(1, 3000) i; INSERT INTO u VALUES (1)")
        database.execute("UPDATE t SET v = 'new' WHERE id > 2500; DELETE FROM t WHERE id <= 500")
        database.execute("TRUNCATE u; INSERT INTO u VALUES (2)")
        stores.assert_same("t", "u", deadline_seconds=120)
        assert_clean(stores.config, spark, "search")
        report = stores.bootstrap("search")
        assert report.verdict.complete, str(report.verdict)
        stores.assert_same("t", "u", deadline_seconds=120)
        assert_clean(stores.config, spark, "search")
