"""Both stores hold what the source holds, compared by content, row by row."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.capture.test_content import _WRONG_CLOCK
from tests.acceptance.capture.test_random_changes import _SCHEMA, TABLES, Writer
from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.postgres.database import Database
from tests.harness.processes.process import StartProcess
from tests.harness.stores.clean_audit import assert_clean
from tests.harness.stores.store_pipeline import StorePipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def stores(make_pipeline: MakePipeline, spark: SparkSession, elasticsearch_url: str, redis_url: str) -> StorePipeline:
    return StorePipeline(
        make_pipeline(),
        spark,
        {
            "search": {"kind": "elasticsearch", "url": elasticsearch_url},
            "cache": {"kind": "redis", "url": redis_url},
        },
    )


def test_random_changes_end_up_in_both_stores(stores: StorePipeline, spark: SparkSession) -> None:
    """After random deletes, key changes, TRUNCATE and TOAST the stores are equal, also after a bootstrap, and an
    audit agrees.
    """
    seed = int(os.environ.get("TAILRACE_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"TAILRACE_SEED={seed}")
    database = stores.pipeline.database
    database.execute(_SCHEMA)
    stores.pipeline.start()
    writer = Writer(database.connect(), random.Random(seed))
    with stores.syncing():
        for _ in range(150):
            writer.transaction()
        stores.assert_same(*TABLES, deadline_seconds=120)
        assert_clean(stores.config, spark, *stores.names)
    for name in stores.names:
        report = stores.bootstrap(name)
        assert report.verdict.complete, str(report.verdict)
    stores.compare(*TABLES)


def test_tables_and_columns_that_come_later_are_picked_up(stores: StorePipeline) -> None:
    """Sync picks up a new table and a new column with its values without a restart."""
    database = stores.pipeline.database
    database.execute("CREATE TABLE a (id int PRIMARY KEY, n int)")
    capture = stores.pipeline.start()
    with stores.syncing():
        database.execute("INSERT INTO a VALUES (1, 1)")
        stores.assert_same("a")
        database.execute("CREATE TABLE b (id int PRIMARY KEY, v text)")
        capture.wait_for_line("table_added", 60)  # rows that are there before that need a copy
        database.execute("ALTER TABLE a ADD COLUMN late text")
        database.execute("INSERT INTO b SELECT i, 'v' FROM generate_series(1, 100) i")
        database.execute("INSERT INTO a VALUES (2, 2, 'later')")
        database.execute("UPDATE a SET late = 'now' WHERE id = 1")
        stores.assert_same("a", "b")


_DAY_SECONDS = 86_400


def test_a_wrong_clock_changes_neither_order_nor_content(
    stores: StorePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the clock of sync and bootstrap a day ahead or behind, each change replaces the earlier one, and deletes
    stay.
    """
    database = stores.pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    stores.pipeline.start()
    right, right_ns = time.time, time.time_ns
    for number, shift in enumerate((_DAY_SECONDS, -_DAY_SECONDS, 0)):
        monkeypatch.setattr(time, "time", lambda shift=shift: right() + shift)
        monkeypatch.setattr(time, "time_ns", lambda shift=shift: right_ns() + shift * 1_000_000_000)
        with stores.syncing():
            _write(database, number)
            stores.assert_same("t")
        if shift:
            for name in stores.names:
                report = stores.bootstrap(name)
                assert report.verdict.complete, str(report.verdict)
            stores.compare("t")


def _write(database: Database, number: int) -> None:
    database.execute(
        "INSERT INTO t SELECT i, %s FROM generate_series(1, 50) i ON CONFLICT (id) DO UPDATE SET v = excluded.v",
        [f"round {number}"],
    )
    database.execute("UPDATE t SET v = v || ' again' WHERE id <= 20")
    database.execute("DELETE FROM t WHERE id %% 10 = %s", [number])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_processes_with_a_wrong_clock(
    make_pipeline: MakePipeline, tailrace: StartProcess, elasticsearch_url: str, redis_url: str, tmp_path: Path
) -> None:
    """The `sync` and `bootstrap` processes and their Spark workers give the same result under a wrong clock, for a
    warehouse too.
    """
    pipeline = make_pipeline()
    sections = {
        "search": {"kind": "elasticsearch", "url": elasticsearch_url},
        "cache": {"kind": "redis", "url": redis_url},
        "warehouse": {"kind": "iceberg", "path": str(tmp_path / "warehouse")},
    }
    stores = StorePipeline(pipeline, None, sections)  # type: ignore[arg-type]  # the sessions are the processes' own
    config = ("--config", str(pipeline.config))
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.start()
    for number, shift in enumerate((_DAY_SECONDS, -_DAY_SECONDS)):
        clock = tmp_path / f"clock{number}"
        clock.mkdir()
        (clock / "sitecustomize.py").write_text(_WRONG_CLOCK.format(shift=shift))
        env = {"PYTHONPATH": str(clock)}
        sync = tailrace("sync", *config, env=env)
        _write(pipeline.database, number)
        stores.assert_same("t", deadline_seconds=240)
        sync.terminate()
        sync.expect_exit(0, 90)
        for name in stores.names:
            tailrace("bootstrap", name, *config, env=env).expect_exit(0, 240)
        stores.compare("t")
