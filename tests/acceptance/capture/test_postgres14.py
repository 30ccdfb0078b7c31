"""Capture works on the oldest Postgres that Tailrace supports, on a dedicated server."""

from __future__ import annotations

from pathlib import Path

from cdc.snapshot.chunk_attempt import AttemptOutcome
from cdc.snapshot.initial_chunk import run_chunk
from tests.harness.pipeline.pipeline import Pipeline
from tests.harness.postgres.database import Database
from tests.harness.processes.process import StartProcess
from tests.harness.snapshot.initial_snapshot import WITH_INITIAL_SNAPSHOT, prepared, wait_for_hold


def test_capture_works_on_postgres_14(
    old_database: Database, kafka_bootstrap: str, prefix: str, tmp_path: Path, tailrace: StartProcess
) -> None:
    """Rows, key changes, values left out by TOAST, TRUNCATE and a restart: the topic equals the table."""
    pipeline = Pipeline(
        database=old_database, bootstrap=kafka_bootstrap, prefix=prefix, folder=tmp_path, start=tailrace
    )
    pipeline.configure()
    old_database.execute("CREATE TABLE t (id int PRIMARY KEY, v text, doc text)")
    old_database.execute("ALTER TABLE t ALTER COLUMN doc SET STORAGE EXTERNAL")
    capture = pipeline.start()
    old_database.execute("INSERT INTO t SELECT i, 'first', repeat('x', 5000) FROM generate_series(1, 100) i")
    old_database.execute("TRUNCATE t")
    old_database.execute("INSERT INTO t SELECT i, 'second', repeat('y', 5000) FROM generate_series(1, 100) i")
    old_database.execute("UPDATE t SET v = 'third' WHERE id <= 50")
    capture.kill()
    old_database.execute("UPDATE t SET id = id + 1000 WHERE id <= 10")
    old_database.execute("DELETE FROM t WHERE id > 90 AND id <= 100")
    pipeline.start()
    pipeline.assert_same("t")


def test_the_initial_snapshot_works_on_postgres_14(
    old_database: Database, kafka_bootstrap: str, prefix: str, tmp_path: Path, tailrace: StartProcess
) -> None:
    """The initial snapshot reads Postgres 14 by blocks during writes, and capture streams from there."""
    pipeline = Pipeline(
        database=old_database, bootstrap=kafka_bootstrap, prefix=prefix, folder=tmp_path, start=tailrace
    )
    pipeline.configure(snapshot=WITH_INITIAL_SNAPSHOT)
    old_database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    old_database.execute("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 20000) i")
    capture = wait_for_hold(pipeline)
    copy = prepared(pipeline)
    assert len(copy.chunks) > 2
    for chunk in copy.chunks:
        old_database.execute("UPDATE t SET v = 'changed' WHERE id %% 1000 = %s", [chunk.number])
        old_database.execute("DELETE FROM t WHERE id %% 1000 = %s", [500 + chunk.number])
        assert run_chunk(copy.task(chunk)).ending is AttemptOutcome.DONE
    records = pipeline.assert_same("t", while_running=capture)
    assert sum(record.op == "r" for record in records["t"]) == 20_000
