"""A pipeline is removed and a new one begins under the same prefix, on a server whose LSNs are lower.

The stores still hold what the first one wrote. Versions of two pipelines cannot be compared, so nothing of the first
may be kept, or win, because its version is larger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cdc.lsn import LSN
from cdc.positions.wait import wait_for
from sinks.iceberg.store import IcebergStore
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.postgres.database import Database
from tests.harness.processes.command import run_command
from tests.harness.processes.waiting import eventually
from tests.harness.stores.clean_audit import assert_clean
from tests.harness.stores.store_pipeline import StorePipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"


def test_the_cache_is_rebuilt_for_a_new_pipeline_with_lower_lsns(
    make_pipeline: MakePipeline, spark: SparkSession, redis_url: str, replacement: Database
) -> None:
    """Sync refuses and names the bootstrap, `wait` does not count the old LSNs, and the bootstrap leaves only the rows
    of the new source. Updates and deletes after it win."""
    _begin_again(make_pipeline(), spark, {"cache": {"kind": "redis", "url": redis_url}}, replacement)


@pytest.mark.slow
def test_every_store_is_rebuilt_for_a_new_pipeline_with_lower_lsns(
    make_pipeline: MakePipeline, spark: SparkSession, every_store: dict[str, dict[str, Any]], replacement: Database
) -> None:
    """The same for one store of each kind, with the audit. The first history is set aside, whole."""
    stores = _begin_again(make_pipeline(), spark, every_store, replacement)
    with stores.syncing():
        assert_clean(stores.config, spark, *stores.names)
    with stores.opened("warehouse") as (store, _):
        assert isinstance(store, IcebergStore)
        named = [name for (name,) in store.catalog.list_namespaces() if name.startswith("public__history")]
        assert len(named) == 2
        found = {name: store.catalog.load_table((name, "t")).scan().to_arrow()["v"].to_pylist() for name in named}
    versions = [each for each in found.pop("public__history") if each is not None]  # but for that of the delete
    assert sorted(versions) == ["changed"] * 4 + ["of the second"] * 20
    assert list(found.values()) == [["of the first"] * 20]


def _begin_again(
    pipeline: Pipeline, spark: SparkSession, settings: dict[str, dict[str, Any]], replacement: Database
) -> StorePipeline:
    stores = StorePipeline(pipeline, spark, settings)
    old = pipeline.database
    old.execute(_TABLE + "; CREATE TABLE only_old (id int PRIMARY KEY)")
    for _ in range(4):
        old.execute("SELECT pg_switch_wal()")
    capture = pipeline.start()
    old.execute("INSERT INTO t SELECT n, 'of the first' FROM generate_series(1, 20) n; INSERT INTO only_old VALUES (1)")
    pipeline.fence(while_running=capture)
    for name in stores.names:
        assert stores.bootstrap(name).verdict.complete
    capture.stop()
    run_command("remove", pipeline.config, "--all", "--topics", "--yes")

    stores.replace(old.dsn, replacement.dsn)
    pipeline.database = replacement
    replacement.execute(_TABLE)
    capture = pipeline.start()
    replacement.execute("INSERT INTO t SELECT n, 'of the second' FROM generate_series(11, 30) n")
    fenced = pipeline.fence(while_running=capture)
    assert fenced < old.lsn()
    _assert_refused(stores, fenced)
    for name in stores.names:
        report = stores.bootstrap(name)
        assert (report.verdict.complete, report.switched) == (True, True), str(report.verdict)
    stores.compare("t")
    replacement.execute("UPDATE t SET v = 'changed' WHERE id < 15; DELETE FROM t WHERE id = 20")
    with stores.syncing():
        stores.assert_same("t", deadline_seconds=120)
    return stores


def _assert_refused(stores: StorePipeline, fenced: LSN) -> None:
    waited = wait_for(stores.config, stores.names, fenced, timeout_seconds=0)
    assert not waited, f"the first pipeline's LSNs count as the second's: {waited.stores}"
    with stores.syncing() as syncs:
        eventually(lambda: all(each.refused for each in syncs.values()), 60, "every sync to refuse")
    for name, sync in syncs.items():
        assert "another pipeline" in str(sync.refused)
        assert f"tailrace bootstrap {name}" in str(sync.refused)
