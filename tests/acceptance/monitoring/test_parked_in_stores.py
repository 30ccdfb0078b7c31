"""Rows that capture could not publish, as stores, audits, bootstraps and the dashboard show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc.audit.audit_records import AuditRecord
from cdc.commands.observe.audit import _lines
from cdc.config import load_config
from cdc.monitoring.alerts.conditions import conditions_of
from cdc.monitoring.observer import poll_once
from cdc.monitoring.status_record import HealthLevel
from cdc.snapshot.table_status import read_status
from spark_jobs.audit.run import AuditOptions, exit_code, run_audit
from spark_jobs.tasks.parked_rows import read_parked
from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.snapshot.initial_snapshot import WITH_INITIAL_SNAPSHOT, Copying
from tests.harness.stores.store_pipeline import StorePipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LARGE = "repeat('x', 100000)"


def _audited(stores: StorePipeline, spark: SparkSession, *names: str, repair: bool = False) -> list[AuditRecord]:
    options = AuditOptions(stores=names, timeout_seconds=60, repair=repair)
    return list(run_audit(stores.config, options, lambda: spark))


def _states(stores: StorePipeline) -> dict[str, HealthLevel]:
    return {hop: health.state for hop, health in poll_once(stores.config).hops.items()}


def test_a_row_that_capture_parked_counts_everywhere_until_it_fits(
    make_pipeline: MakePipeline, spark: SparkSession, elasticsearch_url: str, redis_url: str
) -> None:
    """A parked row is absent from every store and counted by audits, bootstraps and the dashboard until it is
    published.
    """
    stores = StorePipeline(
        make_pipeline(kafka={"max_message_bytes": 20_000}),
        spark,
        {"search": {"kind": "elasticsearch", "url": elasticsearch_url}, "cache": {"kind": "redis", "url": redis_url}},
    )
    database = stores.pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    stores.pipeline.start()
    with stores.syncing():
        database.execute("INSERT INTO t SELECT i, 'small' FROM generate_series(1, 5) i")
        stores.assert_same("t")
        database.execute(f"UPDATE t SET v = {LARGE} WHERE id = 3; INSERT INTO t VALUES (6, {LARGE})")
        stores.wait()
        for name in stores.names:
            assert sorted(stores.rows(name, "t")) == ["1", "2", "4", "5"], name

        for found in (_audited(stores, spark, "search", "cache", repair=True), _audited(stores, spark)):
            assert {(each.verdict, each.parked, each.source_rows) for each in found} == {("equal except parked", 2, 6)}
            assert exit_code(found) == 1
            assert all("equal except 2 parked" in _lines(each)[0] for each in found)
            assert [each.repaired for each in found] == [0] * len(found), "nothing can repair it"

        record = poll_once(stores.config)
        assert record.topics.parked == 2
        assert {store.name: store.parked for store in record.stores} == {"search": 2, "cache": 2}
        assert {health.state for hop, health in record.hops.items() if hop not in ("source", "slot")} == {
            HealthLevel.PARKED
        }
        assert list(conditions_of(record)) == ["topics parked"], "told once, not once for each store"

        built = stores.bootstrap("cache").verdict
        assert (built.complete, built.parked, built.reasons) == (False, 2, [])

        database.execute("UPDATE t SET v = 'fits'")
        stores.assert_same("t")
        found = _audited(stores, spark, "search", "cache")
        assert [(each.verdict, each.parked) for each in found] == [("equal", 0), ("equal", 0)]
        assert set(_states(stores).values()) == {HealthLevel.OK}


def test_the_initial_snapshot_parks_rows_that_are_too_large(make_pipeline: MakePipeline, spark: SparkSession) -> None:
    """The initial snapshot parks a row in the transaction of its chunk; capture counts it, and settles it later."""
    pipeline = make_pipeline(kafka={"max_message_bytes": 20_000}, snapshot=WITH_INITIAL_SNAPSHOT)
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.database.execute(f"INSERT INTO t VALUES (1, 'small'), (2, {LARGE}), (3, {LARGE})")
    capture = pipeline.launch()
    capture.wait_for_line('"waiting_for_initial_snapshot"', 60)
    with Copying(pipeline, spark) as copying:
        assert copying.report().is_complete
    capture.wait_for_line('"streaming"', 60)
    pipeline.database.execute("UPDATE t SET v = 'fits' WHERE id = 2")
    pipeline.fence(while_running=capture)
    status = read_status(load_config(pipeline.config))
    assert status is not None
    assert [table["parked"] for table in status["tables"]] == [1]
    assert [row.key for row in read_parked(load_config(pipeline.config))] == ['{"id":3}']
    pipeline.database.execute("DELETE FROM t WHERE id = 3")
    pipeline.assert_same("t", while_running=capture)
    assert read_parked(load_config(pipeline.config)) == []
