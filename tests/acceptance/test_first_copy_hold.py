"""Capture before the first copy is through: it holds the snapshot, publishes nothing, and survives its own death."""

from __future__ import annotations

from tests.harness.first_copy import FIRST, copies, wait_for_hold
from tests.harness.pipeline import MakePipeline
from tests.harness.waiting import eventually


def test_empty_tables_need_no_copy(make_pipeline: MakePipeline) -> None:
    """A pipeline over empty tables streams at once, and readers find the tables' columns without a single row."""
    pipeline = make_pipeline(copy=FIRST)
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.start()
    assert [copy.state for copy in copies(pipeline)] == ["complete"]
    pipeline.database.execute("INSERT INTO t VALUES (1, 'a')")
    pipeline.assert_same("t")


def test_nothing_is_published_before_the_copy(make_pipeline: MakePipeline) -> None:
    """While the first copy is due, changes stay in the slot; a second capture waits as the standby."""
    pipeline = make_pipeline(copy=FIRST)
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.database.execute("INSERT INTO t VALUES (1, 'a')")
    capture = wait_for_hold(pipeline)
    (copy,) = copies(pipeline)
    assert (copy.kind, copy.state) == ("first", "open")
    pipeline.database.execute("INSERT INTO t VALUES (2, 'b')")
    standby = pipeline.launch()
    standby.wait_for_line('"standby"', 60)
    assert pipeline.end_offsets("t") == 0
    assert pipeline.progress_records()[-1]["state"] == "copying"
    assert capture.running


def test_death_before_any_chunk_begins_anew(make_pipeline: MakePipeline) -> None:
    """The snapshot dies with its capture; where nothing was copied, the next one makes a new slot and snapshot."""
    pipeline = make_pipeline(copy=FIRST)
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.database.execute("INSERT INTO t VALUES (1, 'a')")
    wait_for_hold(pipeline).kill()
    wait_for_hold(pipeline)
    eventually(lambda: [copy.state for copy in copies(pipeline)] == ["abandoned", "open"], 30, "the two copies")


def test_lost_connection_is_noticed(make_pipeline: MakePipeline) -> None:
    """The server ends the session that holds the snapshot: capture does not wait for ever for a copy that cannot be."""
    pipeline = make_pipeline(copy=FIRST)
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.database.execute("INSERT INTO t VALUES (1, 'a')")
    capture = wait_for_hold(pipeline)
    pipeline.database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE backend_type = 'walsender' AND datname = current_database()"
    )
    eventually(lambda: len(copies(pipeline)) == 2, 60, "a new copy")
    assert capture.errors.count('"waiting_for_first_copy"') == 2
