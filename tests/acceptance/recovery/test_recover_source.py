"""`tailrace recover` on a server that has lost the log, or was restored from an older disk.

After each, the topics equal the source as it is now, with versions above every version published before.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cdc.lsn import Version
from tests.harness.pipeline.pipeline import Pipeline
from tests.harness.processes.command import run_command
from tests.harness.servers.dedicated_postgres import OwnPostgres
from tests.harness.snapshot.incremental_snapshot import copy_due
from tests.harness.stores.clean_audit import assert_clean

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture
def pipeline(own_pipeline: Pipeline) -> Pipeline:
    """A pipeline with published rows; capture was stopped with SIGTERM."""
    own_pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = own_pipeline.start()
    own_pipeline.database.execute("INSERT INTO t SELECT n, 'old' FROM generate_series(1, 20) n")
    own_pipeline.assert_same("t", while_running=capture)
    capture.stop()
    return own_pipeline


def _recover(pipeline: Pipeline, spark: SparkSession, reason: str) -> None:
    refused = pipeline.launch()
    refused.expect_exit(3, 60)
    assert reason in refused.errors, refused.transcript()
    last = pipeline.progress_records()[-1]
    before = Version(last["position"], last["seq"])
    run_command("recover", pipeline.config, "--yes")
    capture = pipeline.start()
    pipeline.database.execute("UPDATE t SET v = 'new' WHERE id = 5")
    assert copy_due(pipeline, spark).is_complete
    pipeline.assert_same("t", while_running=capture)
    newest = [record.version for record in pipeline.records("t") if record.op in ("r", "u")][-1]
    assert newest is not None
    assert newest > before
    assert_clean(pipeline.config, spark)
    capture.stop()


def test_an_invalidated_slot(pipeline: Pipeline, own: OwnPostgres, spark: SparkSession) -> None:
    """After the server removed WAL with a delete in it, recovery removes the deleted row from the topic."""
    pipeline.database.execute("DELETE FROM t WHERE id = 3")
    own.outgrow(pipeline.slot_name)
    _recover(pipeline, spark, "is invalidated")


def test_a_server_restored_from_an_older_disk(
    pipeline: Pipeline, own: OwnPostgres, spark: SparkSession, tmp_path: Path
) -> None:
    """After a restore of an older disk, rows that it lacks are removed, and changes with lower LSNs win."""
    own.keep(tmp_path / "backup")
    pipeline.database.forget_connection()
    capture = pipeline.start()
    pipeline.database.execute("SELECT pg_logical_emit_message(true, 'test.more', repeat('x', 5000000))")
    pipeline.database.execute("INSERT INTO t VALUES (50, 'lost')")
    pipeline.database.execute("UPDATE t SET v = 'lost' WHERE id = 5")
    pipeline.assert_same("t", while_running=capture)
    capture.stop()
    own.restore(tmp_path / "backup")
    pipeline.database.forget_connection()
    _recover(pipeline, spark, "restored from an older backup")
    assert pipeline.progress_records()[-1]["base"] > 0
