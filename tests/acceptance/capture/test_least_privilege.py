"""The documented least-privilege role is enough for capture, and `tailrace check` reports it and anything that broke
since.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cdc.check import Finding, Level, inspect
from cdc.config import load_config
from tests.harness.kafka.topics import grow_topic
from tests.harness.pipeline.check_runs import as_role, assert_found, assert_no_fail, forget_role, role
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.postgres.database import Database

SETUP = """
CREATE TABLE orders (id int PRIMARY KEY, note text, doc text);
ALTER TABLE orders ALTER COLUMN doc SET STORAGE EXTERNAL;
"""


@pytest.fixture
def reader(database: Database, postgres_url: str) -> Iterator[str]:
    """A role with LOGIN REPLICATION and no other right."""
    with role(postgres_url, "LOGIN", "REPLICATION") as name:
        yield name
        forget_role(database.dsn, name)


def _inspect(pipeline: Pipeline) -> list[Finding]:
    return inspect(load_config(pipeline.config))


def _as_documented(pipeline: Pipeline, reader: str) -> None:
    """Set up the source as docs/guides/source-setup.md says: the owner grants SELECT and makes the publication."""
    pipeline.database.execute(SETUP)
    pipeline.database.execute(f"GRANT SELECT ON orders TO {reader}")
    pipeline.database.execute(
        "CREATE PUBLICATION tailrace FOR TABLE ONLY orders"
        " WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = false)"
    )


def test_login_replication_and_select_are_enough(make_pipeline: MakePipeline, database: Database, reader: str) -> None:
    """With these rights check passes before, during and after capture, which re-selects, truncates and restarts."""
    pipeline = make_pipeline(source={"dsn": as_role(database.dsn, reader), "tables": ["public.orders"]})
    _as_documented(pipeline, reader)
    assert_no_fail(_inspect(pipeline))
    capture = pipeline.start()
    database.execute("INSERT INTO orders SELECT i, 'n', repeat('x', 5000) FROM generate_series(1, 20) i")
    database.execute("UPDATE orders SET note = 'changed' WHERE id <= 10")  # doc is left out: re-selected
    pipeline.assert_same("orders", while_running=capture)
    found = _inspect(pipeline)
    assert_no_fail(found)
    assert_found(found, Level.OK, f"slot {pipeline.slot_name}", "it is active")
    assert_found(found, Level.OK, "topics", "agree with the progress record")
    capture.terminate()
    capture.expect_exit(0)
    database.execute("TRUNCATE orders")
    database.execute("INSERT INTO orders VALUES (1, 'after', 'short')")
    found = _inspect(pipeline)
    assert_no_fail(found)
    assert_found(found, Level.OK, f"slot {pipeline.slot_name}", "fits the progress record")
    pipeline.start()
    pipeline.assert_same("orders")


def test_row_level_security_that_would_hide_rows_is_refused(
    make_pipeline: MakePipeline, database: Database, reader: str
) -> None:
    """A policy added while capture is down makes the re-select fail instead of reading too few rows."""
    pipeline = make_pipeline(source={"dsn": as_role(database.dsn, reader), "tables": ["public.orders"]})
    _as_documented(pipeline, reader)
    database.execute("INSERT INTO orders VALUES (1, 'a', repeat('x', 5000))")
    capture = pipeline.start()
    database.execute("ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
    assert_found(_inspect(pipeline), Level.FAIL, "table public.orders", "Row-level security", "bypassrls")
    database.execute("UPDATE orders SET note = 'b'")
    capture.expect_exit(3, 60)
    assert "row-level security" in capture.errors
    assert pipeline.records("orders") == []


def test_what_broke_while_capture_was_down(make_pipeline: MakePipeline, database: Database) -> None:
    """Check reports a broken publication, topic or slot before capture refuses to start."""
    pipeline = make_pipeline(source={"tables": ["public.orders"]})
    database.execute(SETUP)
    capture = pipeline.start()
    database.execute("INSERT INTO orders VALUES (1, 'a', 'b')")
    pipeline.assert_same("orders", while_running=capture)
    capture.terminate()
    capture.expect_exit(0)
    assert_no_fail(_inspect(pipeline))

    database.execute("ALTER PUBLICATION tailrace SET TABLE ONLY orders WHERE (id > 0)")
    found = _inspect(pipeline)
    assert_found(found, Level.FAIL, "publication tailrace", "altered since capture last read it")
    assert_found(found, Level.FAIL, "publication tailrace", "row filter")
    database.execute("DROP PUBLICATION tailrace")
    assert_found(_inspect(pipeline), Level.FAIL, "publication tailrace", "is gone")

    grow_topic(pipeline.bootstrap, pipeline.topic("orders"), 3)
    found = _inspect(pipeline)
    assert_found(found, Level.FAIL, "topics", "3 partitions, but it was created with 2")
    assert_found(found, Level.FAIL, f"topic {pipeline.topic('orders')}", "3 partitions")

    database.execute("SELECT pg_drop_replication_slot(%s)", [pipeline.slot_name])
    assert_found(_inspect(pipeline), Level.FAIL, f"slot {pipeline.slot_name}", "is gone; progress is at")


@pytest.mark.parametrize(
    "broken", ["ALTER TABLE keyless DROP COLUMN id", "ALTER TABLE keyless REPLICA IDENTITY NOTHING"]
)
def test_a_table_that_cannot_be_captured_does_not_hold_up_the_others(
    make_pipeline: MakePipeline, database: Database, broken: str
) -> None:
    """Check refuses a table without a key or with REPLICA IDENTITY NOTHING, and other tables are captured."""
    pipeline = make_pipeline()
    database.execute(SETUP)
    database.execute("CREATE TABLE keyless (id int PRIMARY KEY, v text)")
    database.execute(broken)
    assert_found(_inspect(pipeline), Level.FAIL, "table public.keyless", "alter table public.keyless")
    capture = pipeline.start()
    database.execute(
        "INSERT INTO keyless (v) VALUES ('x')" if "DROP" in broken else "INSERT INTO keyless VALUES (1, 'x')"
    )
    database.execute("INSERT INTO orders VALUES (1, 'a', 'b')")
    pipeline.assert_same("orders", while_running=capture)
    assert '"table_left_out"' in capture.errors
