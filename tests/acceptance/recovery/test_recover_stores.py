"""After `tailrace recover` the stores follow without intervention, and new changes win at any LSN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cdc.positions.wait import wait_for
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.postgres.database import Database
from tests.harness.processes.command import run_command
from tests.harness.snapshot.incremental_snapshot import copy_due
from tests.harness.stores.clean_audit import assert_clean
from tests.harness.stores.store_pipeline import StorePipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"


@pytest.mark.slow
def test_another_server_whose_lsns_start_lower(
    make_pipeline: MakePipeline, spark: SparkSession, every_store: dict[str, dict[str, Any]], replacement: Database
) -> None:
    """After a restore onto a server with lower LSNs, missing rows are removed and its rows and later writes win.

    `wait` does not take the old server's LSNs for the new one's.
    """
    pipeline = make_pipeline()
    stores = StorePipeline(pipeline, spark, every_store)
    old = pipeline.database
    old.execute(_TABLE)
    for _ in range(4):
        old.execute("SELECT pg_switch_wal()")
    capture = pipeline.start()
    old.execute("INSERT INTO t SELECT n, 'old' FROM generate_series(1, 50) n")
    replacement.execute(_TABLE)
    replacement.execute("INSERT INTO t SELECT n, 'backup' FROM generate_series(1, 40) n")
    assert replacement.lsn() < old.lsn()
    with stores.syncing():
        stores.wait_until_served(180)
        stores.assert_same("t")
        capture.stop()
        stores.replace(old.dsn, replacement.dsn)
        pipeline.database = replacement
        refused = pipeline.launch()
        refused.expect_exit(3)
        assert "another database cluster" in refused.errors
        run_command("recover", pipeline.config, "--yes")
        assert not wait_for(stores.config, stores.names, replacement.lsn(), timeout_seconds=0)
        capture = pipeline.start()
        replacement.execute("UPDATE t SET v = 'new' WHERE id = 7")
        report = copy_due(pipeline, spark)
        assert report.is_complete, report.incomplete
        stores.assert_same("t")
        replacement.execute("UPDATE t SET v = 'newer' WHERE id < 10")
        replacement.execute("DELETE FROM t WHERE id = 11")
        stores.assert_same("t")
        assert pipeline.progress_records()[-1]["base"] > 0
        assert stores.bootstrap("search").verdict.complete
        stores.assert_same("t")
        assert_clean(stores.config, spark, *stores.names)
    pipeline.assert_same("t", while_running=capture)


def test_a_topic_that_was_created_again_is_read_from_its_beginning(
    make_pipeline: MakePipeline, spark: SparkSession, redis_url: str
) -> None:
    """When recovery creates every topic again, the store keeps serving and loses the rows that were deleted
    meanwhile.
    """
    _repartition(make_pipeline(), spark, {"cache": {"kind": "redis", "url": redis_url}})


@pytest.mark.slow
def test_every_store_follows_topics_that_were_created_again(
    make_pipeline: MakePipeline, spark: SparkSession, every_store: dict[str, dict[str, Any]]
) -> None:
    """A store of each kind follows topics that recovery created again."""
    _repartition(make_pipeline(), spark, every_store)


def _repartition(pipeline: Pipeline, spark: SparkSession, settings: dict[str, dict[str, Any]]) -> None:
    stores = StorePipeline(pipeline, spark, settings)
    pipeline.database.execute(_TABLE)
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO t SELECT n, 'old' FROM generate_series(1, 50) n")
    with stores.syncing():
        stores.wait_until_served(180)
        stores.assert_same("t")
        capture.stop()
        stores.replace("partitions = 2", "partitions = 5")
        pipeline.database.execute("DELETE FROM t WHERE id = 3")
        pipeline.launch().expect_exit(3)
        run_command("recover", pipeline.config, "--yes")
        capture = pipeline.start()
        pipeline.database.execute("UPDATE t SET v = 'new' WHERE id = 7")
        assert copy_due(pipeline, spark).is_complete
        stores.assert_same("t")
        assert_clean(stores.config, spark, *stores.names)
    capture.stop()
