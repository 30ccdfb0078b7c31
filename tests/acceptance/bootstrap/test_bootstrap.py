"""A bootstrap builds a store from the topics alone, in a new generation; readers switch to it when it is complete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cdc.positions.store_notes import Notes
from cdc.stores.registry import open_store
from spark_jobs.bootstrap.bootstrap import BuildOptions, plan_bootstrap, run_bootstrap, switch_generation
from spark_jobs.writing.contract import LoadProgress
from tests.acceptance.bootstrap.test_compaction import _compact
from tests.harness.kafka.raw_records import read_raw
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.postgres.database import Database
from tests.harness.processes.process import StartProcess
from tests.harness.processes.waiting import eventually
from tests.harness.servers.dedicated_postgres import OwnPostgres
from tests.harness.stores.store_pipeline import StorePipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakeStores = Callable[..., StorePipeline]


@pytest.fixture
def make_stores(make_pipeline: MakePipeline, spark: SparkSession, elasticsearch_url: str, redis_url: str) -> MakeStores:
    def make(**settings: Any) -> StorePipeline:
        pipeline = make_pipeline(**settings)
        pipeline.database.execute("CREATE TABLE t (key text PRIMARY KEY, value int)")
        return StorePipeline(pipeline, spark, _both(elasticsearch_url, redis_url))

    return make


def test_the_source_is_not_needed(make_stores: MakeStores) -> None:
    """With capture stopped and the source unreachable, a bootstrap is complete as of an LSN, deletes and TRUNCATE
    included.
    """
    stores = make_stores()
    pipeline = stores.pipeline
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO t SELECT 'dead ' || i, i FROM generate_series(1, 300) i; TRUNCATE t")
    pipeline.database.execute("INSERT INTO t SELECT 'row ' || i, i FROM generate_series(1, 300) i")
    pipeline.database.execute("DELETE FROM t WHERE value > 250; UPDATE t SET value = 0 WHERE value < 10")
    lsn = pipeline.fence(while_running=capture)
    capture.kill()
    text = pipeline.config.read_text()
    pipeline.config.write_text(text.replace(pipeline.database.dsn, "postgresql://nobody@127.0.0.1:1/nothing"))
    for name in stores.names:
        assert plan_bootstrap(stores.config, name).reasons == []
        report = stores.bootstrap(name)
        assert report.verdict.complete, str(report.verdict)
        assert (report.verdict.rows, report.switched) == (250, True)
        assert report.verdict.lsn >= lsn
    stores.compare("t")


@pytest.mark.slow
def test_the_source_may_be_switched_off(
    kafka_bootstrap: str,
    prefix: str,
    tmp_path: Path,
    tailrace: StartProcess,
    spark: SparkSession,
    elasticsearch_url: str,
    redis_url: str,
) -> None:
    """Both stores are built while the database server is stopped, and equal the source when it runs again.

    The progress of the build is recorded where the dashboard reads it.
    """
    server = OwnPostgres(tmp_path / "server")
    try:
        pipeline = Pipeline(
            database=Database(server.dsn, "off"),
            bootstrap=kafka_bootstrap,
            prefix=prefix,
            folder=tmp_path,
            start=tailrace,
        )
        pipeline.configure()
        stores = StorePipeline(pipeline, spark, _both(elasticsearch_url, redis_url))
        pipeline.database.execute("CREATE TABLE t (key text PRIMARY KEY, value int)")
        capture = pipeline.start()
        pipeline.database.execute("INSERT INTO t SELECT 'row ' || i, i FROM generate_series(1, 500) i")
        pipeline.database.execute("DELETE FROM t WHERE value > 400; UPDATE t SET value = 0 WHERE value < 10")
        pipeline.fence(while_running=capture)
        capture.kill()
        server.stop()
        for name in stores.names:
            report = stores.bootstrap(name)
            assert (report.verdict.complete, report.verdict.rows, report.switched) == (True, 400, True)
        notes = Notes()
        for record in read_raw(kafka_bootstrap, f"{prefix}.__stores"):
            notes.take(record.key, record.value)
        assert {name: build.done for name, build in notes.builds.items()} == dict.fromkeys(stores.names, True)
        assert all(build.total_records >= 500 for build in notes.builds.values())
        server.start()
        stores.compare("t")
        pipeline.database.drop()
    finally:
        server.close()


def _both(elasticsearch_url: str, redis_url: str) -> dict[str, dict[str, str]]:
    return {
        "search": {"kind": "elasticsearch", "url": elasticsearch_url},
        "cache": {"kind": "redis", "url": redis_url},
    }


def test_a_running_sync_goes_on_and_follows_the_switch(make_stores: MakeStores) -> None:
    """A running sync writes to the old generation until the switch and to the new one after it; the old one is
    removed.
    """
    stores = make_stores()
    database = stores.pipeline.database
    stores.pipeline.start()
    with stores.syncing():
        database.execute("INSERT INTO t SELECT 'row ' || i, i FROM generate_series(1, 100) i")
        stores.assert_same("t")
        for name in stores.names:
            assert stores.bootstrap(name).generation == 2
            database.execute("UPDATE t SET value = value + 1 WHERE value % 2 = 0")
        stores.assert_same("t")
    for name in stores.names:
        with stores.opened(name) as (store, serving):
            assert serving.number == 2
            assert [each.number for each in store.list_generations()] == [2]


def test_two_generations_can_be_kept_up_to_date(make_stores: MakeStores) -> None:
    """A generation built without the switch is synced as well as the serving one; readers switch only when told to."""
    stores = make_stores()
    database = stores.pipeline.database
    stores.pipeline.start()
    database.execute("INSERT INTO t VALUES ('a', 1)")
    with stores.syncing("search"):
        stores.assert_same("t", stores=["search"])
        report = stores.bootstrap("search", switch=False)
        assert not report.switched
        with stores.syncing("search", generation=report.generation):
            database.execute("INSERT INTO t VALUES ('b', 2)")
            stores.assert_same("t", stores=["search"])
            (table,) = stores.tables().values()
            with stores.opened("search") as (store, serving):
                assert serving.number == 1
                new = next(each for each in store.list_generations() if each.number == report.generation)
                eventually(lambda: store.count(new, table) == 2, 60, "the new generation to have both rows")
        switch_generation(stores.config, "search", report.generation)
        database.execute("INSERT INTO t VALUES ('c', 3)")
        stores.assert_same("t", stores=["search"])


def test_a_failed_bootstrap_leaves_the_serving_generation_alone(make_stores: MakeStores, spark: SparkSession) -> None:
    """After a failure half-way, readers still see the old rows; the next bootstrap completes and removes the
    leftovers.
    """
    stores = make_stores()
    database = stores.pipeline.database
    stores.pipeline.start()
    database.execute("INSERT INTO t SELECT 'row ' || i, i FROM generate_series(1, 100) i")
    with stores.syncing("search"):
        stores.assert_same("t", stores=["search"])

        class PowerCutError(BaseException):
            pass

        def cut(_progress: LoadProgress) -> None:
            raise PowerCutError

        with pytest.raises(PowerCutError):
            run_bootstrap(stores.config, "search", BuildOptions(), cut, spark)
        with stores.opened("search") as (store, serving):
            assert serving.number == 1
            assert [each.number for each in store.list_generations()] == [1, 2]
        stores.assert_same("t", stores=["search"])
        report = stores.bootstrap("search")
        assert report.verdict.complete
        stores.assert_same("t", stores=["search"])
    with stores.opened("search") as (store, serving):
        assert [each.number for each in store.list_generations()] == [serving.number] == [report.generation]


def test_a_bootstrap_slower_than_delete_retention_is_not_complete(make_stores: MakeStores, spark: SparkSession) -> None:
    """A bootstrap that takes longer than delete retention reports that it is incomplete, and readers do not switch."""
    stores = make_stores(kafka={"delete_retention_hours": 0.001})
    stores.pipeline.start()
    stores.pipeline.database.execute("INSERT INTO t VALUES ('a', 1)")
    stores.pipeline.fence()
    config = stores.config
    late: list[bool] = []

    def dawdle(_progress: LoadProgress) -> None:
        if not late:
            late.append(True)
            _pause(4)

    report = run_bootstrap(config, "cache", BuildOptions(), dawdle, spark)
    assert not report.verdict.complete
    assert not report.switched
    assert "deletes are kept" in str(report.verdict)
    store = open_store("cache", config.stores["cache"], config.kafka.prefix)
    try:
        assert store.serving() is None
    finally:
        store.close()


@pytest.mark.slow
def test_deleted_rows_do_not_return_after_compaction(make_stores: MakeStores) -> None:
    """Rows that were deleted or truncated stay absent when the topic has only the last record of each key."""
    stores = make_stores(kafka={"partitions": 2})
    database = stores.pipeline.database
    stores.pipeline.start()
    database.execute("INSERT INTO t SELECT 'row ' || i, i FROM generate_series(1, 20) i; TRUNCATE t")
    database.execute("INSERT INTO t SELECT 'row ' || i, i FROM generate_series(5, 9) i; DELETE FROM t WHERE value = 7")
    _compact(stores.pipeline, "t")
    for name in stores.names:
        assert stores.bootstrap(name).verdict.complete
    with stores.syncing():
        stores.assert_same("t")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_bootstrap_process_can_be_run_again(make_stores: MakeStores, tailrace: StartProcess) -> None:
    """A bootstrap killed with `kill -9` while it loads can be run again and completes."""
    stores = make_stores()
    database = stores.pipeline.database
    stores.pipeline.start()
    database.execute("INSERT INTO t SELECT 'row ' || i, i FROM generate_series(1, 20000) i")
    with stores.syncing("search"):
        stores.assert_same("t", stores=["search"])
    first = tailrace("bootstrap", "search", "--config", str(stores.pipeline.config))
    first.wait_for_line("generation_created", 240)
    first.kill()
    stores.compare("t", stores=["search"])
    again = tailrace("bootstrap", "search", "--json", "--config", str(stores.pipeline.config))
    again.expect_exit(0, 240)
    assert '"complete": true' in again.output
    stores.compare("t", stores=["search"])


def _pause(seconds: float) -> None:
    with pytest.raises(AssertionError):
        eventually(lambda: False, seconds, "the time to pass")
