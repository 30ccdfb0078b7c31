"""When the primary dies under load and its standby is promoted, capture continues without a gap or refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.harness.pipeline.pipeline import Pipeline
from tests.harness.postgres.background_writer import SCHEMA, Writer
from tests.harness.postgres.database import Database
from tests.harness.processes.command import run_command
from tests.harness.processes.process import Process, StartProcess
from tests.harness.processes.waiting import eventually
from tests.harness.servers.dedicated_postgres import OwnPostgres
from tests.harness.snapshot.incremental_snapshot import copy_due
from tests.harness.stores.clean_audit import assert_clean

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SYNCED = {"sync_replication_slots": "on"}


class Pair:
    """Two servers under one address, which always leads to the primary. They change roles at a failover."""

    def __init__(self, folder: Path) -> None:
        self.primary = OwnPostgres(folder / "one")
        self.standby = OwnPostgres(folder / "two")
        hosts = f"postgres@{self.primary.host}:{self.primary.port},{self.standby.host}:{self.standby.port}"
        self.dsn = urlsplit(self.primary.dsn)._replace(netloc=hosts, query="target_session_attrs=read-write").geturl()

    def replicate(self, **settings: str) -> None:
        self.standby.follow(self.primary, settings)

    def fail_over(self) -> None:
        """`kill -9` of the primary."""
        self.primary.kill()
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary

    def slot_is_synced(self, name: str) -> bool:
        self.primary.execute("SELECT pg_log_standby_snapshot()")  # what the sync waits for, without its 15 seconds
        query = f"SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = '{name}'"
        return self.standby.execute(query) == [(True,)]

    def close(self) -> None:
        self.primary.close()
        self.standby.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    two = Pair(tmp_path_factory.mktemp("pair"))
    try:
        yield two
    finally:
        two.close()


@pytest.fixture
def make_own_pipeline(
    pair: Pair,
    kafka_bootstrap: str,
    prefix: str,
    tmp_path: Path,
    tailrace: StartProcess,
    request: pytest.FixtureRequest,
) -> Iterator[Callable[[], Pipeline]]:
    """Pipelines on the pair of servers, once it replicates."""
    made: list[Database] = []

    def make() -> Pipeline:
        made.append(Database(pair.dsn, request.node.name))
        pipeline = Pipeline(database=made[0], bootstrap=kafka_bootstrap, prefix=prefix, folder=tmp_path, start=tailrace)
        pipeline.configure()
        pipeline.database.execute(SCHEMA)
        return pipeline

    yield make
    pair.primary.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")
    for database in made:
        database.drop()


def test_a_promoted_standby_with_the_slot_goes_on(
    pair: Pair, make_own_pipeline: Callable[[], Pipeline], tailrace: StartProcess
) -> None:
    """With a synchronised slot capture continues on the standby: no gap, no duplicate, and a log line reports it."""
    pair.replicate(**SYNCED)
    pair.primary.configure({"synchronized_standby_slots": "standby"})
    pipeline = make_own_pipeline()
    capture = pipeline.start()
    with Writer(pipeline.database, survives=True) as writer:
        eventually(lambda: pair.slot_is_synced(pipeline.slot_name), 60, "the slot on the standby")
        writer.wait_for_more(100)
        pair.fail_over()
        writer.wait_for_more(100)
        pipeline.wait_for_session(capture, 2)
        writer.wait_for_more(100)
    pipeline.database.forget_connection()
    pipeline.assert_same("items", while_running=capture)
    timelines = [record["timeline"] for record in pipeline.progress_records()]
    assert timelines[-1] > timelines[0]
    _fail_back(pair, pipeline, capture, tailrace)


def _fail_back(pair: Pair, pipeline: Pipeline, capture: Process, tailrace: StartProcess) -> None:
    """A second failover, with capture down meanwhile: `check` reports that capture may continue, and it does."""
    pair.replicate(**SYNCED)
    eventually(lambda: pair.slot_is_synced(pipeline.slot_name), 60, "the slot on the standby")
    capture.terminate()
    capture.expect_exit(0)
    pipeline.database.execute("DELETE FROM items WHERE id < 100")
    pair.standby.wait_to_have(str(pipeline.database.lsn()))
    pair.fail_over()
    check = tailrace("check", "--config", str(pipeline.config), "--json")
    check.wait()
    assert "it was promoted, and it has every change that capture has published" in check.output, check.transcript()
    pipeline.database.forget_connection()
    capture = pipeline.start()
    pipeline.assert_same("items", while_running=capture)


def test_a_promoted_standby_without_the_slot_is_refused(pair: Pair, make_own_pipeline: Callable[[], Pipeline]) -> None:
    """Without the slot the changes in between are unknown: capture exits with code 3 and makes no new slot."""
    pair.replicate()
    pipeline = make_own_pipeline()
    capture = pipeline.start()
    with Writer(pipeline.database, survives=True) as writer:
        writer.wait_for_more(50)
        pair.fail_over()
        capture.expect_exit(3, 60)
    assert f"Slot {pipeline.slot_name} is gone" in capture.errors, capture.transcript()
    assert pair.primary.execute("SELECT 1 FROM pg_replication_slots") == []


def test_a_promoted_standby_that_lacks_published_changes_is_refused(
    pair: Pair, make_own_pipeline: Callable[[], Pipeline]
) -> None:
    """Capture refuses a standby that lacks changes already published, since new changes would contradict the topics."""
    pair.replicate(**SYNCED)
    pipeline = make_own_pipeline()
    capture = pipeline.start()
    eventually(lambda: pair.slot_is_synced(pipeline.slot_name), 60, "the slot on the standby")
    pair.standby.stop()
    pipeline.database.execute("INSERT INTO items VALUES (1, 0, 'published, then lost')")
    pipeline.assert_same("items", while_running=capture)
    pair.primary.kill()
    pair.standby.start()
    pair.fail_over()
    capture.expect_exit(3, 60)
    assert "lacks changes that capture has published" in capture.errors, capture.transcript()
    assert "timeline" in capture.errors
    again = pipeline.launch()
    again.expect_exit(3)


@pytest.mark.slow
def test_a_promoted_standby_that_lacks_published_changes_is_recovered(
    pair: Pair, make_own_pipeline: Callable[[], Pipeline], spark: SparkSession
) -> None:
    """`tailrace recover` removes published rows that are lost from the topics, and the new primary's writes win."""
    pair.replicate()
    pipeline = make_own_pipeline()
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO items VALUES (1, 0, 'kept'), (2, 0, 'kept')")
    pipeline.assert_same("items", while_running=capture)
    pair.standby.wait_to_have(str(pipeline.database.lsn()))
    pair.standby.stop()
    pipeline.database.execute("INSERT INTO items VALUES (3, 0, 'published, then lost')")
    pipeline.database.execute("UPDATE items SET grp = 1 WHERE id = 1")
    pipeline.assert_same("items", while_running=capture)
    pair.primary.kill()
    pair.standby.start()
    pair.fail_over()
    capture.expect_exit(3, 60)
    run_command("recover", pipeline.config, "--yes")
    capture = pipeline.start()
    pipeline.database.forget_connection()  # it was to the old primary
    pipeline.database.execute("UPDATE items SET grp = 7 WHERE id = 2")
    assert copy_due(pipeline, spark).is_complete
    pipeline.assert_same("items", while_running=capture)
    assert_clean(pipeline.config, spark)
    capture.stop()
