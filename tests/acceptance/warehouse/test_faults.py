"""The warehouse with killed drivers, two drivers, maintenance during sync and values that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cdc.errors import RefusedError
from cdc.stores.contract import Position
from sinks.iceberg.store import IcebergStore
from spark_jobs.session.spark_session import warehouse_session
from spark_jobs.sync.retry import retry
from spark_jobs.tasks.parked_rows import Parked, read_parked
from spark_jobs.warehouse.maintain import maintain_warehouse
from spark_jobs.warehouse.query import query_warehouse
from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.processes.process import StartProcess
from tests.harness.processes.waiting import eventually
from tests.harness.stores.store_pipeline import StorePipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DOUBLED = (
    "SELECT id, count(*) FROM public__history.t WHERE _tailrace_open GROUP BY id HAVING count(*) > 1"
    " UNION ALL SELECT id, count(*) FROM public__history.t GROUP BY id, _tailrace_position, _tailrace_seq"
    " HAVING count(*) > 1 UNION ALL SELECT id, count(*) FROM public.t GROUP BY id HAVING count(*) > 1"
)


@pytest.fixture
def stores(make_pipeline: MakePipeline, spark: SparkSession, tmp_path: Path) -> StorePipeline:
    section = {"kind": "iceberg", "path": str(tmp_path / "warehouse"), "trigger_milliseconds": 200}
    return StorePipeline(make_pipeline(), spark, {"warehouse": section})


def test_two_drivers_upkeep_and_values_that_do_not_fit(stores: StorePipeline, spark: SparkSession) -> None:
    """Of two drivers the first stops. Compaction and expiry beside the sync leave every row as it is, and no version
    twice; a value that no typed column can hold parks its row, by name and without the value, and nothing else; a
    column that comes, one that goes and one that is widened are followed in place. Parked rows are tried again: what is
    gone or fits by now is settled, and the position stays where it is."""
    database = stores.pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, d date, gone text)")
    stores.pipeline.start()
    with stores.syncing() as first:
        database.execute("INSERT INTO t SELECT i, i, '2024-01-01', 'x' FROM generate_series(1, 50) i")
        stores.assert_same("t")
        with stores.syncing():
            eventually(lambda: first["warehouse"].refused is not None, 60, "the first driver to stop")
            assert isinstance(first["warehouse"].refused, RefusedError)
            database.execute("INSERT INTO t VALUES (90, 1, 'infinity', 'secret')")
            database.execute(
                "BEGIN; UPDATE t SET n = n + 1 WHERE id < 90; ALTER TABLE t ADD COLUMN late text;"
                "ALTER TABLE t DROP COLUMN gone; ALTER TABLE t ALTER COLUMN n TYPE bigint;"
                "UPDATE t SET late = 'y', n = 5000000000 WHERE id = 1; COMMIT"
            )
            with stores.opened("warehouse") as (store, _):
                assert isinstance(store, IcebergStore)
                session = warehouse_session(spark, store.settings)
                for number in range(3):
                    database.execute("UPDATE t SET n = %s WHERE id > 40 AND id < 90", [number])
                    assert [each.problem for each in maintain_warehouse(session, store, lambda _: None)] == [None, None]
                database.execute("DELETE FROM t WHERE id = 90")
                database.execute("INSERT INTO t VALUES (91, 1, NULL)")
                database.execute("UPDATE t SET d = 'infinity' WHERE id = 91")
                stores.wait("warehouse", deadline_seconds=120)
                assert query_warehouse(session, store, _DOUBLED).frame.collect() == []
    reason = "a value does not fit its typed column: d"
    parked = _parked(stores)
    assert [(each.key, each.reason) for each in parked] == [('{"id":90}', reason), ('{"id":91}', reason)]
    before = _position(stores)
    assert [(each.settled, each.reason) for each in retry(stores.config, "warehouse", parked)] == [
        (True, ""),
        (False, reason),
    ]
    assert [each.key for each in _parked(stores)] == ['{"id":91}'], "the one that is gone is settled"
    assert _position(stores) == before
    # As if the table had had a narrower type when the row came: now it fits.
    database.execute("UPDATE t SET d = '2024-02-02' WHERE id = 91")
    with stores.syncing():
        stores.wait("warehouse")
    with stores.opened("warehouse") as (store, _):
        assert isinstance(store, IcebergStore)
        session = warehouse_session(spark, store.settings)
        for table in ("public.t", "public__history.t"):
            session.sql(f"DELETE FROM tailrace.{table} WHERE id = 91")
        assert [each.settled for each in retry(stores.config, "warehouse", _parked(stores))] == [True]
        assert _parked(stores) == []
        assert query_warehouse(session, store, _DOUBLED).frame.collect() == []
    stores.compare("t")


def _parked(stores: StorePipeline) -> list[Parked]:
    return [each for each in read_parked(stores.config) if each.store == "warehouse"]


def _position(stores: StorePipeline) -> Position | None:
    with stores.opened("warehouse") as (store, generation):
        return store.position(generation)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_drivers_and_bootstraps_change_nothing(
    stores: StorePipeline, tailrace: StartProcess, spark: SparkSession
) -> None:
    """After `kill -9` of a sync and of a bootstrap everything arrives once, and readers always see whole tables.

    `query_warehouse` and `maintain_warehouse` work as commands.
    """
    database = stores.pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    stores.pipeline.start()
    config = str(stores.pipeline.config)
    database.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 5000) i")
    for number in range(2):
        sync = tailrace("sync", "warehouse", "--config", config)
        sync.wait_for_line("syncing", 120)
        database.execute("UPDATE t SET n = n + 1 WHERE mod(id, 3) = %s", [number])
        database.execute("DELETE FROM t WHERE mod(id, 1000) = %s", [number])
        if number:
            sync.wait_for_line("batch_applied", 120)
        sync.kill()
    with stores.syncing():
        stores.assert_same("t", deadline_seconds=180)
    bootstrap = tailrace("bootstrap", "warehouse", "--config", config)
    bootstrap.wait_for_line("generation_created", 120)
    bootstrap.kill()
    stores.compare("t")
    assert stores.bootstrap("warehouse").verdict.complete
    stores.compare("t")
    asked = tailrace("query", "SELECT count(*) AS rows FROM public.t", "--json", "--config", config)
    asked.expect_exit(0, 120)
    assert json.loads(asked.output)["rows"] == [{"rows": database.execute("SELECT count(*) FROM t")[0][0]}]
    tailrace("maintain", "--config", config).expect_exit(0, 180)
    stores.compare("t")
    with stores.opened("warehouse") as (store, _):
        assert isinstance(store, IcebergStore)
        assert query_warehouse(warehouse_session(spark, store.settings), store, _DOUBLED).frame.collect() == []
