"""Stored generated columns are in the events from Postgres 18 on; virtual ones and older servers' are not."""

from __future__ import annotations

from pathlib import Path

from tests.harness.comparison.comparer import assert_same, source_reader
from tests.harness.kafka.records import last_rows
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.pipeline.table_states import marks, rows_after, schema_versions, wait_for_look
from tests.harness.postgres.database import Database
from tests.harness.processes.process import Process, StartProcess


def write_and_change(pipeline: Pipeline, capture: Process) -> None:
    """Insert, update, move and delete rows, with a value left out by TOAST, and kill capture."""
    database = pipeline.database
    database.execute("INSERT INTO t (id, a, doc) SELECT i, i, repeat('x', 5000) FROM generate_series(1, 20) i")
    database.execute("UPDATE t SET a = a + 1 WHERE id < 10")
    capture.kill()
    database.execute("UPDATE t SET id = id + 100 WHERE id < 5")
    database.execute("DELETE FROM t WHERE id = 7")
    database.execute("INSERT INTO p (id, a) VALUES (1, 1), (200, 2)")
    database.execute("UPDATE p SET id = id + 100 WHERE id = 1")


def assert_same_without(pipeline: Pipeline, table: str, *columns: str) -> None:
    (described,) = pipeline.database.describe(table)
    records = pipeline.records(table)
    assert_same(
        [described.without(*columns)],
        source_reader(pipeline.database.dsn),
        lambda each: last_rows(each, records),
        deadline_seconds=0,
    )


def test_stored_ones_are_streamed_and_virtual_ones_left_out(make_pipeline: MakePipeline) -> None:
    """On Postgres 18 the stored value is in every event, and a virtual one in none."""
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int, stored int GENERATED ALWAYS AS (a * 2) STORED,"
        " virtual int GENERATED ALWAYS AS (a * 3) VIRTUAL, doc text,"
        " large text GENERATED ALWAYS AS (doc || id) STORED)"
    )
    database.execute("ALTER TABLE t ALTER COLUMN doc SET STORAGE EXTERNAL, ALTER COLUMN large SET STORAGE EXTERNAL")
    database.execute(
        "CREATE TABLE p (stored int GENERATED ALWAYS AS (a * 2) STORED, id int PRIMARY KEY, a int)"
        " PARTITION BY RANGE (id)"
    )
    database.execute("CREATE TABLE p_low PARTITION OF p FOR VALUES FROM (0) TO (100)")
    database.execute("CREATE TABLE p_high PARTITION OF p FOR VALUES FROM (100) TO (300)")
    write_and_change(pipeline, pipeline.start())
    capture = pipeline.start()
    pipeline.assert_same("p", while_running=capture)
    assert_same_without(pipeline, "t", "virtual")
    assert schema_versions(pipeline, "t") == [["id", "a", "stored", "doc", "large"]]
    wait_for_look(pipeline, capture)
    assert marks(pipeline) == {}


def test_postgres_14_leaves_them_out(
    old_database: Database, kafka_bootstrap: str, prefix: str, tmp_path: Path, tailrace: StartProcess
) -> None:
    """On Postgres 14 events and schemas have no generated column, and it gives no reason for a snapshot.

    One that becomes an ordinary column enters the stream, and is missing from older rows until they are copied.
    """
    database = old_database
    pipeline = Pipeline(database=database, bootstrap=kafka_bootstrap, prefix=prefix, folder=tmp_path, start=tailrace)
    pipeline.configure()
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int, stored int GENERATED ALWAYS AS (a * 2) STORED, doc text)"
    )
    database.execute("ALTER TABLE t ALTER COLUMN doc SET STORAGE EXTERNAL")
    database.execute(
        "CREATE TABLE p (stored int GENERATED ALWAYS AS (a * 2) STORED, id int PRIMARY KEY, a int)"
        " PARTITION BY RANGE (id)"
    )
    database.execute("CREATE TABLE p_low PARTITION OF p FOR VALUES FROM (0) TO (100)")
    database.execute("CREATE TABLE p_high PARTITION OF p FOR VALUES FROM (100) TO (300)")
    write_and_change(pipeline, pipeline.start())
    capture = pipeline.start()
    pipeline.fence(while_running=capture)
    assert_same_without(pipeline, "t", "stored")
    assert_same_without(pipeline, "p", "stored")
    assert schema_versions(pipeline, "t") == [["id", "a", "doc"]]

    database.execute("ALTER TABLE t ADD COLUMN more int GENERATED ALWAYS AS (a * 4) STORED")
    database.execute("CREATE TABLE p_top PARTITION OF p FOR VALUES FROM (300) TO (400)")
    wait_for_look(pipeline, capture)
    assert marks(pipeline) == {}
    database.execute("ALTER TABLE t ALTER COLUMN stored DROP EXPRESSION")
    database.execute(
        "BEGIN; CREATE TABLE at_once (LIKE p INCLUDING ALL); INSERT INTO at_once (id, a) VALUES (400, 1);"
        " ALTER TABLE p ATTACH PARTITION at_once FOR VALUES FROM (400) TO (500); COMMIT"
    )
    database.execute("INSERT INTO t (id, a, stored) VALUES (500, 1, 7)")
    wait_for_look(pipeline, capture)
    assert marks(pipeline) == {"t": "column stored is generated no longer", "p": "a partition was attached"}
    assert rows_after(pipeline, "t")[-1] == {"id": 500, "a": 1, "stored": 7, "doc": None}
