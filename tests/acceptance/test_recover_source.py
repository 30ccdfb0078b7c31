"""`tailrace recover` on a server that has lost the log, or was restored from an older disk.

Each ends with topics that equal the source as it is now, with versions above everything that was published before.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from cdc.config import load_config
from cdc.lsn import Version
from tests.harness.audit import assert_clean
from tests.harness.command import run_command
from tests.harness.database import Database
from tests.harness.later_copy import copy_due
from tests.harness.own_postgres import OwnPostgres
from tests.harness.pipeline import Pipeline
from tests.harness.process import Process, StartProcess
from tests.harness.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnPostgres]:
    server = OwnPostgres(tmp_path_factory.mktemp("own"), wal_keep_size="0", min_wal_size="32MB", max_wal_size="48MB")
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def pipeline(
    own: OwnPostgres,
    kafka_bootstrap: str,
    prefix: str,
    tmp_path: Path,
    tailrace: StartProcess,
    request: pytest.FixtureRequest,
) -> Iterator[Pipeline]:
    """On the module's server, with rows published; capture was stopped in good order."""
    database = Database(own.dsn, request.node.name)
    made = Pipeline(database=database, bootstrap=kafka_bootstrap, prefix=prefix, folder=tmp_path, start=tailrace)
    made.configure(source={"tables": ["public.t"]})
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("CREATE TABLE other (id int)")
    capture = made.start()
    database.execute("INSERT INTO t SELECT n, 'old' FROM generate_series(1, 20) n")
    made.assert_same("t", while_running=capture)
    _stop(capture)
    yield made
    database.drop()


def _stop(capture: Process) -> None:
    capture.terminate()
    capture.expect_exit(0)


def _reconnect(pipeline: Pipeline) -> None:
    """The server was away: the connection that is kept breaks once."""
    with pytest.raises(psycopg.OperationalError):
        pipeline.database.execute("SELECT 1")


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
    assert_clean(load_config(pipeline.config), spark)
    _stop(capture)


def test_an_invalidated_slot(pipeline: Pipeline, own: OwnPostgres, spark: SparkSession) -> None:
    """The log was thrown away, with a delete in it that nobody can read any more."""
    pipeline.database.execute("DELETE FROM t WHERE id = 3")
    own.configure({"max_slot_wal_keep_size": "1MB"})

    def lost() -> bool:
        pipeline.database.execute("INSERT INTO other SELECT generate_series(1, 1000)")
        pipeline.database.execute("SELECT pg_switch_wal()")
        pipeline.database.execute("CHECKPOINT")
        query = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s"
        return pipeline.database.execute(query, [pipeline.slot_name]) == [("lost",)]

    try:
        eventually(lost, 30, "the slot to be lost")
    finally:
        own.configure({"max_slot_wal_keep_size": "-1"})
    _recover(pipeline, spark, "is invalidated")


def test_a_disk_of_yesterday(pipeline: Pipeline, own: OwnPostgres, spark: SparkSession, tmp_path: Path) -> None:
    """Slot and all are older than what was published: rows that came since go, and lower LSNs win from now on."""
    own.keep(tmp_path / "backup")
    _reconnect(pipeline)
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO other SELECT generate_series(1, 100000)")
    pipeline.database.execute("INSERT INTO t VALUES (50, 'lost')")
    pipeline.database.execute("UPDATE t SET v = 'lost' WHERE id = 5")
    pipeline.assert_same("t", while_running=capture)
    _stop(capture)
    own.restore(tmp_path / "backup")
    _reconnect(pipeline)
    _recover(pipeline, spark, "restored from an older backup")
    assert pipeline.progress_records()[-1]["base"] > 0
