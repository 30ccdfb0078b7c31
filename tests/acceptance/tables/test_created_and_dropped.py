"""Tables that are created, dropped, created again and renamed while capture runs, and tables that are not captured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cdc.config import load_config
from cdc.logical_messages.heartbeat import beat
from cdc.logical_messages.signed import read_secret
from cdc.names import Control, control_topic
from tests.harness.kafka.topics import delete_topic, list_topics
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.pipeline.table_states import markers, marks, rows_after, states, wait_for_look, wait_for_markers
from tests.harness.processes.command import run_command
from tests.harness.processes.process import Process
from tests.harness.processes.waiting import eventually
from tests.harness.snapshot.incremental_snapshot import copy_due

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = "CREATE TABLE {} (id int PRIMARY KEY, v text)"


def wait_for_added(capture: Process, table: str) -> None:
    capture.wait_for_line(f'"public.{table}".*"table_added"', 30)


def test_tables_that_come_and_go_are_followed(make_pipeline: MakePipeline) -> None:
    """A new empty table is complete, a dropped one empties its topic, and a new one with rows is incomplete.

    A table that is dropped and created again between two readings of the catalog counts as both.
    """
    pipeline = make_pipeline()
    database = pipeline.database
    for name in ("dropped", "again", "again_filled"):
        database.execute(TABLE.format(name))
        database.execute(f"INSERT INTO {name} VALUES (1, 'old'), (2, 'old')")
    capture = pipeline.start()
    for name in ("dropped", "again", "again_filled"):
        database.execute(f"INSERT INTO {name} VALUES (3, 'x'), (4, 'y')")
    database.execute(TABLE.format("second"))
    wait_for_added(capture, "second")
    database.execute("INSERT INTO second VALUES (1, 'in time')")
    database.execute(TABLE.format("third") + "; INSERT INTO third VALUES (1, 'too early')")
    database.execute("DROP TABLE dropped")
    database.execute("DROP TABLE again; " + TABLE.format("again"))
    database.execute("DROP TABLE again_filled; " + TABLE.format("again_filled"))
    database.execute("INSERT INTO again_filled VALUES (5, 'too early')")
    for name in ("again", "again_filled", "third"):
        wait_for_added(capture, name)
    for name in ("dropped", "again", "again_filled"):
        wait_for_markers(pipeline, name)
    database.execute("INSERT INTO again VALUES (4, 'new'), (6, 'new')")
    database.execute("INSERT INTO again_filled VALUES (4, 'new'), (6, 'new')")
    pipeline.assert_same("second", "again", while_running=capture)
    wait_for_look(pipeline, capture)
    reason = "it was added while rows were in it"
    assert marks(pipeline) == {"third": reason, "again_filled": reason}
    # What was in the table is missing, what is written now arrives, and nothing of the old table is left.
    database.execute("DELETE FROM again_filled WHERE id = 5")
    pipeline.assert_same("again_filled", while_running=capture)


def test_a_forged_nontransactional_heartbeat_is_ignored(make_pipeline: MakePipeline) -> None:
    """Capture ignores a forged heartbeat outside transactions, which has no place among the changes."""
    pipeline = make_pipeline()
    database = pipeline.database
    for name in ("first", "second"):
        database.execute(TABLE.format(name))
    capture = pipeline.start()
    for name in ("first", "second"):
        database.execute(f"INSERT INTO {name} VALUES (1, 'x')")
    pipeline.fence(while_running=capture)
    database.execute("DROP TABLE first")

    def emptied() -> bool:
        database.execute("SELECT pg_logical_emit_message(false, 'tailrace.heartbeat', 'not yours')")
        return markers(pipeline, "first") == 2

    capture.wait_for(emptied, 30, "the topic of the dropped table to be emptied")
    database.execute("INSERT INTO second VALUES (2, 'y')")
    pipeline.assert_same("second", while_running=capture)
    assert pipeline.sessions(capture) == 1


def test_renamed_tables_are_followed(make_pipeline: MakePipeline) -> None:
    """A rename empties the old topic and leaves the new one incomplete; a swap of two names does both for each.

    A table that gets its name back is incomplete, since its changes meanwhile went to another topic.
    """
    pipeline = make_pipeline()
    database = pipeline.database
    for name in ("plain", "left", "right", "back"):
        database.execute(TABLE.format(f'"{name}"'))
    database.execute("CREATE SCHEMA other")
    database.execute(TABLE.format("moved"))
    capture = pipeline.start()
    for name in ("plain", "left", "right", "moved"):
        database.execute(f"INSERT INTO \"{name}\" VALUES (1, '{name}')")
    pipeline.fence(while_running=capture)
    connection = database.connect(autocommit=False)
    for statement in (
        "INSERT INTO plain VALUES (2, 'before the rename')",
        "ALTER TABLE plain RENAME TO better",
        "INSERT INTO better VALUES (3, 'after the rename')",
        'ALTER TABLE "left" RENAME TO between',
        'ALTER TABLE "right" RENAME TO "left"',
        'ALTER TABLE between RENAME TO "right"',
        "INSERT INTO \"left\" VALUES (2, 'was right')",
        "ALTER TABLE moved SET SCHEMA other",
        "ALTER TABLE back RENAME TO away",
        "INSERT INTO away VALUES (1, 'meanwhile')",
        "ALTER TABLE away RENAME TO back",
    ):
        connection.execute(statement)
    connection.commit()
    for name in ("plain", "moved", "away"):
        wait_for_markers(pipeline, name)
    assert marks(pipeline) == dict.fromkeys(("better", "left", "right", "moved", "back"), "it was renamed")
    assert pipeline.topic("other.moved") in states(pipeline).pending
    assert [row["id"] for row in rows_after(pipeline, "plain")] == [1, 2]
    assert [row["v"] for row in rows_after(pipeline, "better")] == ["after the rename"]
    assert [row["v"] for row in rows_after(pipeline, "left")] == ["left", "was right"]
    assert [markers(pipeline, name) for name in ("better", "left", "right")] == [0, 0, 0]

    # Away and back: the name's topic serves the next table of that name.
    database.execute(TABLE.format("plain"))
    wait_for_added(capture, "plain")
    database.execute("INSERT INTO plain VALUES (2, 'of the new table')")
    pipeline.assert_same("plain", while_running=capture)


def test_rows_of_a_table_renamed_under_a_backlog_are_removed(make_pipeline: MakePipeline) -> None:
    """Heartbeats from before a rename do not end the old topic, since the table's last rows come after them."""
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute(TABLE.format("t"))
    database.execute(TABLE.format("other"))
    capture = pipeline.start()
    database.execute("INSERT INTO t VALUES (0, 'known')")
    pipeline.fence(while_running=capture)
    capture.freeze()
    for number in (1, 2):
        with database.connect() as connection:
            beat(connection, read_secret(load_config(pipeline.config).kafka), pipeline.slot_name)
        database.execute("INSERT INTO t VALUES (%s, 'x')", [number])
        # Enough for a batch of its own: capture looks at the catalog between the two heartbeats.
        database.execute("INSERT INTO other SELECT i + 40000 * %s FROM generate_series(1, 40000) i", [number])
    database.execute("ALTER TABLE t RENAME TO renamed")
    capture.thaw()
    wait_for_markers(pipeline, "t")
    pipeline.fence(while_running=capture)
    records = pipeline.records("t")
    line = max(record.version for record in records if record.op == "t" and record.version is not None)
    assert all(record.version is not None and record.version <= line for record in records)
    assert [row["id"] for row in rows_after(pipeline, "t")] == [0, 1, 2]


def test_a_table_with_an_open_writer_is_added_after_it(make_pipeline: MakePipeline) -> None:
    """A table is added only after a transaction that began before its publication, whose rows are not streamed, has
    ended.
    """
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute(TABLE.format("first"))
    capture = pipeline.start()
    writer = database.connect(autocommit=False)
    connection = database.connect(autocommit=False)
    connection.execute("LOCK TABLE pg_publication_rel IN SHARE MODE")  # holds capture up until the writer has begun
    database.execute(TABLE.format("written"))
    writer.execute("INSERT INTO written VALUES (1, 'before it is published')")
    connection.commit()
    capture.wait_for_line('public.written".*"table_busy"', 30)
    database.execute("INSERT INTO first VALUES (1, 'goes on')")
    pipeline.assert_same("first", while_running=capture)
    writer.execute("INSERT INTO written VALUES (2, 'still open')")
    writer.commit()
    wait_for_added(capture, "written")
    database.execute("UPDATE written SET v = v || '!'")
    pipeline.assert_same("written", while_running=capture)
    wait_for_look(pipeline, capture)
    assert marks(pipeline) == {"written": "it was added while rows were in it"}


@pytest.mark.parametrize("selected", ["public.*", "public.parent"])
def test_tables_that_cannot_be_published_are_ignored(make_pipeline: MakePipeline, selected: str) -> None:
    """Inheritance children are separate tables; unlogged and temporary tables and views are ignored."""
    pipeline = make_pipeline(source={"tables": [selected]})
    database = pipeline.database
    database.execute(TABLE.format("parent"))
    database.execute("CREATE TABLE child (extra int, PRIMARY KEY (id)) INHERITS (parent)")
    database.execute("CREATE TABLE keyless_child () INHERITS (parent)")
    capture = pipeline.start()
    database.execute("CREATE UNLOGGED TABLE loose (id int PRIMARY KEY, v text)")
    database.execute("CREATE TEMPORARY TABLE parent_copy (id int PRIMARY KEY, v text)")
    database.execute("CREATE TABLE late_child (PRIMARY KEY (id)) INHERITS (parent)")
    database.execute("CREATE MATERIALIZED VIEW seen AS SELECT * FROM parent; CREATE TABLE keyless (v text)")
    wait_for_look(pipeline, capture)
    for name in ("parent", "child", "keyless_child", "late_child", "loose", "parent_copy"):
        database.execute(f"INSERT INTO {name} (id, v) VALUES (1, '{name}')")
    database.execute("UPDATE parent SET v = v || '!'")
    database.execute("TRUNCATE child, loose")
    wait_for_look(pipeline, capture)
    database.execute("ALTER TABLE child NO INHERIT parent")
    database.execute("ALTER TABLE loose SET LOGGED; DROP TABLE loose")
    database.execute("INSERT INTO keyless VALUES ('x')")
    wait_for_look(pipeline, capture)
    expected = {"parent", "child", "late_child"} if selected == "public.*" else {"parent"}
    topics = {name for name in list_topics(pipeline.bootstrap) if name.startswith(f"{pipeline.prefix}.public.")}
    assert topics - {pipeline.topic("loose")} == {pipeline.topic(name) for name in expected}
    assert [row["v"] for row in rows_after(pipeline, "parent")] == ["parent", "parent!"]
    assert markers(pipeline, "parent") == 0
    if selected == "public.*":
        pipeline.assert_same("child", "late_child", while_running=capture)
    assert marks(pipeline) == {}


def test_a_table_that_is_empty_when_it_is_selected_again_loses_its_old_rows(
    make_pipeline: MakePipeline, spark: SparkSession
) -> None:
    """A table whose topic was left behind is incomplete until a snapshot removes the old rows.

    So is a new table on the topic of one that was removed before it was dropped.
    """
    pipeline = make_pipeline()
    database = pipeline.database
    for name in ("stays", "emptied", "replaced"):
        database.execute(TABLE.format(name))
    capture = pipeline.start()
    for name in ("stays", "emptied", "replaced"):
        database.execute(f"INSERT INTO {name} VALUES (1, 'old'), (2, 'old')")
    pipeline.fence(while_running=capture)
    capture.stop()
    pipeline.configure(source={"tables": ["public.stays"]})
    run_command("remove", pipeline.config, "--table", "public.emptied", "--table", "public.replaced", "--yes")
    database.execute("DELETE FROM emptied; DROP TABLE replaced; " + TABLE.format("replaced"))
    pipeline.configure()
    capture = pipeline.start()
    for name in ("emptied", "replaced"):
        wait_for_added(capture, name)
    wait_for_look(pipeline, capture)
    database.execute("INSERT INTO emptied VALUES (2, 'new')")
    assert marks(pipeline) == dict.fromkeys(("emptied", "replaced"), "its topic has rows from before it was added")
    report = copy_due(pipeline, spark)
    assert report.is_complete, report.incomplete
    pipeline.assert_same("stays", "emptied", "replaced", while_running=capture)
    assert marks(pipeline) == {}
    capture.stop()


def test_topics_from_before_the_first_start_lose_their_rows(make_pipeline: MakePipeline) -> None:
    """A first start removes rows of an earlier pipeline from the topics, also where no table has rows to copy."""
    pipeline = make_pipeline()
    pipeline.database.execute(TABLE.format("t") + "; " + TABLE.format("used"))
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO t VALUES (1, 'old'), (2, 'old')")
    pipeline.fence(while_running=capture)
    capture.stop()
    kept = pipeline.topic("t")
    _forget_pipeline(pipeline)
    assert kept in list_topics(pipeline.bootstrap)
    pipeline.database.execute("DELETE FROM t")
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO t VALUES (2, 'new')")
    pipeline.assert_same("t", "used", while_running=capture)


def _forget_pipeline(pipeline: Pipeline) -> None:
    """Remove slot, publication and records, but not the tables' topics, as a manual clean-up would."""
    drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s AND NOT active"
    eventually(lambda: pipeline.database.execute(drop, [pipeline.slot_name]), what="the slot to be free")
    pipeline.database.execute("DROP PUBLICATION tailrace")
    for control in Control:
        delete_topic(pipeline.bootstrap, control_topic(pipeline.prefix, control))
