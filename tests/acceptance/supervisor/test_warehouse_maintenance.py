"""`tailrace run` maintains its warehouse while the sync continues."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sinks.iceberg.store import IcebergStore
from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.processes.process import StartProcess
from tests.harness.stores.store_pipeline import StorePipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SECONDS = 40


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_run_maintains_its_warehouse_when_it_is_due(
    make_pipeline: MakePipeline, spark: SparkSession, tailrace: StartProcess, tmp_path: Path
) -> None:
    """Every `maintain_hours` run starts `tailrace maintain`, which applies delete files and changes no row.

    Changes continue meanwhile, and the maintenance becomes due again.
    """
    section = {
        "kind": "iceberg",
        "path": str(tmp_path / "warehouse"),
        "trigger_milliseconds": 500,
        "maintain_hours": _SECONDS / 3600,
        "snapshot_retention_hours": 0,
    }
    stores = StorePipeline(make_pipeline(), spark, {"warehouse": section})
    database = stores.pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    run = tailrace("run", "--json", "--config", str(stores.pipeline.config))
    run.wait_for_line('"streaming"', 120)
    database.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 500) i")
    for number in range(1, 4):
        database.execute("UPDATE t SET n = %s WHERE mod(id, 5) = %s", [number, number])
        stores.wait("warehouse", deadline_seconds=180)

    def done() -> int:
        return sum('"part_done"' in line and "maintain-warehouse" in line for line in run.errors.splitlines())

    before = done()
    run.wait_for(lambda: done() > before, 240, "the first upkeep")
    database.execute("UPDATE t SET n = -1 WHERE id = 1; DELETE FROM t WHERE id = 2")
    after = done()
    run.wait_for(lambda: done() > after, 240, "another upkeep")
    stores.assert_same("t", deadline_seconds=120)
    run.terminate()
    run.expect_exit(0, 90)
    with stores.opened("warehouse") as (store, _):
        assert isinstance(store, IcebergStore)
        snapshots = store.catalog.load_table("public.t").metadata.snapshots
        assert any(each.summary is not None and each.summary.operation.value == "replace" for each in snapshots)
