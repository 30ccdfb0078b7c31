"""Capture stops with exit code 3, the reason and the remedy where continuing could lose changes silently."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from cdc.tables.recorded_state import KEY as STATES_KEY
from tests.harness.kafka.records import read_topic
from tests.harness.kafka.topics import alter_topic, create_topic, delete_topic, grow_topic, list_topics
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.postgres.background_writer import SCHEMA, Writer
from tests.harness.postgres.database import Database
from tests.harness.processes.command import run_command
from tests.harness.processes.process import Process, StartProcess


def _stopped_pipeline(make_pipeline: MakePipeline) -> Pipeline:
    """A pipeline that captured three rows and was stopped with SIGTERM."""
    pipeline = make_pipeline()
    pipeline.database.execute(SCHEMA)
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO items VALUES (1, 0, 'a'), (2, 0, 'b'), (3, 0, 'c')")
    pipeline.assert_same("items", while_running=capture)
    capture.stop()
    return pipeline


def _assert_refused(pipeline: Pipeline, capture: Process, *words: str) -> None:
    """Capture exits with code 3, these words and the repair command, and publishes nothing."""
    before = pipeline.published_to()
    capture.expect_exit(3, 60)
    for word in (*words, "tailrace recover"):
        assert word in capture.errors, capture.transcript()
    assert pipeline.published_to() == before


def test_slot_dropped_and_recreated_while_down(make_pipeline: MakePipeline) -> None:
    """Capture makes no new slot, and refuses a slot of the same name that starts after its progress."""
    pipeline = _stopped_pipeline(make_pipeline)
    pipeline.database.execute("SELECT pg_drop_replication_slot(%s)", [pipeline.slot_name])
    for _ in range(2):  # a supervisor that starts it again changes nothing
        _assert_refused(pipeline, pipeline.launch(), f"Slot {pipeline.slot_name} is gone")
    assert pipeline.database.execute("SELECT 1 FROM pg_replication_slots WHERE database = current_database()") == []
    # There were no writes meanwhile, but capture cannot know that.
    pipeline.database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [pipeline.slot_name])
    _assert_refused(pipeline, pipeline.launch(), "re-created or advanced")


def test_slot_advanced_by_someone_else(make_pipeline: MakePipeline) -> None:
    """A slot that `pg_replication_slot_advance` moved past capture's progress is refused."""
    pipeline = _stopped_pipeline(make_pipeline)
    pipeline.database.execute("DELETE FROM items WHERE id = 2")
    pipeline.database.execute(
        "SELECT pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())", [pipeline.slot_name]
    )
    _assert_refused(pipeline, pipeline.launch(), "re-created or advanced")


@pytest.mark.parametrize(
    ("made_by", "words"),
    [
        ("pg_create_logical_replication_slot(%s, 'pgoutput')", "plugin pgoutput, database postgres"),
        ("pg_create_physical_replication_slot(%s, true)", "a physical slot"),
    ],
    ids=["another database", "physical"],
)
@pytest.mark.parametrize("is_new", [True, False], ids=["new", "running before"])
def test_slot_of_another_program(
    make_pipeline: MakePipeline, postgres_url: str, made_by: str, words: str, is_new: bool
) -> None:
    """A slot of our name that another program uses is left alone, and the remedy is another name."""
    pipeline = make_pipeline() if is_new else _stopped_pipeline(make_pipeline)
    if is_new:
        pipeline.database.execute(SCHEMA)
    else:
        pipeline.database.execute("SELECT pg_drop_replication_slot(%s)", [pipeline.slot_name])
    with psycopg.connect(postgres_url, autocommit=True) as elsewhere:
        elsewhere.execute(f"SELECT {made_by}", [pipeline.slot_name])
        try:
            capture = pipeline.launch()
            capture.expect_exit(3, 60)
            for each in (f"Slot {pipeline.slot_name} belongs to something else", words, "another [source] slot"):
                assert each in capture.errors, capture.transcript()
        finally:  # it does not belong to the test's database, so dropping the database does not remove it
            elsewhere.execute("SELECT pg_drop_replication_slot(%s)", [pipeline.slot_name])


@pytest.mark.parametrize(
    ("encoding", "state"), [("SQL_ASCII", "22021"), ("WIN1252", "22P05")], ids=["no encoding", "no such character"]
)
def test_a_value_that_the_server_cannot_send(
    postgres_url: str,
    kafka_bootstrap: str,
    prefix: str,
    tmp_path: Path,
    tailrace: StartProcess,
    encoding: str,
    state: str,
) -> None:
    """A value that fails to decode at every attempt is refused with the reason, instead of letting WAL accumulate."""
    database = Database(postgres_url, "unsendable", encoding=encoding)
    try:
        pipeline = Pipeline(
            database=database, bootstrap=kafka_bootstrap, prefix=prefix, folder=tmp_path, start=tailrace
        )
        pipeline.configure()
        database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        capture = pipeline.start()
        database.execute("INSERT INTO t VALUES (1, 'plain')")
        pipeline.fence(while_running=capture)
        database.execute(f"INSERT INTO t VALUES (2, convert_from('\\x81', '{encoding}'))")
        _assert_refused(pipeline, capture, "cannot send a change from its WAL", state)
    finally:
        database.drop()


BY_CODE = "ALTER TABLE {0} REPLICA IDENTITY USING INDEX {0}_code_key"


def test_identity_by_an_index_without_the_key(make_pipeline: MakePipeline) -> None:
    """A replica identity without the key is refused for a named table, and the table is left out under `schema.*`."""
    pipeline = make_pipeline(source={"tables": ["public.coded"]})
    for name in ("coded", "other"):
        pipeline.database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, code int NOT NULL UNIQUE)")
    pipeline.database.execute(BY_CODE.format("coded"))
    capture = pipeline.launch()
    capture.expect_exit(3, 60)
    for words in ("public.coded", "index without the whole primary key", "alter table public.coded replica identity"):
        assert words in capture.errors, capture.transcript()
    pipeline.configure(source={"tables": ["public.*"]})
    capture = pipeline.start()
    assert '"table_left_out"' in capture.errors, capture.transcript()
    pipeline.database.execute("INSERT INTO coded VALUES (1, 10); INSERT INTO other VALUES (1, 10)")
    pipeline.assert_same("other", while_running=capture)
    assert pipeline.topic("coded") not in list_topics(pipeline.bootstrap)


def test_identity_altered_to_an_index_without_the_key(make_pipeline: MakePipeline) -> None:
    """A replica identity changed to one without the key is refused before a row is published, also once it is changed
    back.
    """
    pipeline = make_pipeline()
    pipeline.database.execute("CREATE TABLE coded (id int PRIMARY KEY, code int NOT NULL UNIQUE)")
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO coded VALUES (1, 10), (2, 20)")
    pipeline.assert_same("coded", while_running=capture)
    pipeline.database.execute(BY_CODE.format("coded"))
    pipeline.database.execute("DELETE FROM coded WHERE id = 1")
    capture.expect_exit(3, 60)
    pipeline.database.execute("ALTER TABLE coded REPLICA IDENTITY DEFAULT")
    _assert_refused(
        pipeline, pipeline.launch(), "public.coded", "lacks the key column 'id'", "REPLICA IDENTITY DEFAULT"
    )
    assert {record.key for record in pipeline.records("coded")} == {b'{"id":1}', b'{"id":2}'}


@pytest.mark.parametrize(
    ("publication", "words"),
    [
        ("FOR TABLE t WITH (publish = 'insert')", "does not publish update, delete, truncate"),
        ("FOR TABLE t WHERE (id > 5)", "has a row filter"),
    ],
    ids=["inserts only", "row filter"],
)
def test_publication_that_keeps_changes_back(make_pipeline: MakePipeline, publication: str, words: str) -> None:
    """A publication with a row filter or without some operations is refused, since their changes would be missing."""
    pipeline = make_pipeline()
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.database.execute(f"CREATE PUBLICATION tailrace {publication}")
    capture = pipeline.launch()
    capture.expect_exit(3, 60)
    assert words in capture.errors, capture.transcript()
    assert pipeline.database.execute("SELECT 1 FROM pg_replication_slots WHERE database = current_database()") == []


def test_topic_deleted_and_recreated_while_down(make_pipeline: MakePipeline) -> None:
    """A topic that was deleted and created again is refused, since the slot cannot supply its records."""
    pipeline = _stopped_pipeline(make_pipeline)
    delete_topic(pipeline.bootstrap, pipeline.topic("items"))
    _assert_refused(pipeline, pipeline.launch(), pipeline.topic("items"), "is gone")
    assert pipeline.topic("items") not in list_topics(pipeline.bootstrap)
    create_topic(pipeline.bootstrap, pipeline.topic("items"), 2, cleanup_policy="compact")
    _assert_refused(pipeline, pipeline.launch(), pipeline.topic("items"), "was re-created")


@pytest.mark.parametrize("recreated", [False, True])
def test_topic_deleted_under_load(make_pipeline: MakePipeline, recreated: bool) -> None:
    """A topic deleted while capture runs is refused, whether or not it was created again."""
    pipeline = make_pipeline()
    pipeline.database.execute(SCHEMA)
    capture = pipeline.start()
    with Writer(pipeline.database) as writer:
        writer.wait_for_more()
        delete_topic(pipeline.bootstrap, pipeline.topic("items"))
        if recreated:
            create_topic(pipeline.bootstrap, pipeline.topic("items"), 2, cleanup_policy="compact")
        capture.expect_exit(3, 90)
    assert pipeline.topic("items") in capture.errors
    assert "tailrace recover" in capture.errors, capture.transcript()


def test_progress_topic_deleted_while_down(make_pipeline: MakePipeline) -> None:
    """Without the progress record capture refuses to start a new one on an old slot."""
    pipeline = _stopped_pipeline(make_pipeline)
    delete_topic(pipeline.bootstrap, f"{pipeline.prefix}.__progress")
    _assert_refused(pipeline, pipeline.launch(), "there is no progress record")


def test_schema_topic_deleted_while_down(make_pipeline: MakePipeline) -> None:
    """Capture refuses to start without the schema topic, which records incomplete tables; recovery writes it again."""
    pipeline = _stopped_pipeline(make_pipeline)
    name = f"{pipeline.prefix}.__schema"
    delete_topic(pipeline.bootstrap, name)
    _assert_refused(pipeline, pipeline.launch(), f"Topic {name} has lost its records")
    assert f"{name} has lost its records" in run_command("check", pipeline.config, code=1).stdout
    run_command("recover", pipeline.config, "--yes")
    capture = pipeline.start()
    pipeline.database.execute("UPDATE items SET note = 'd' WHERE id = 2")
    pipeline.assert_same("items", while_running=capture)
    keys = b" ".join(record.key for record in read_topic(pipeline.bootstrap, name))
    assert STATES_KEY in keys
    assert pipeline.topic("items").encode() in keys, "the schema of the table"


def test_cleanup_policy_changed_while_down(make_pipeline: MakePipeline) -> None:
    """A topic with another cleanup policy is refused, since the broker may have deleted current rows."""
    pipeline = _stopped_pipeline(make_pipeline)
    for policy in ("delete", "compact,delete"):
        alter_topic(pipeline.bootstrap, pipeline.topic("items"), {"cleanup.policy": policy})
        _assert_refused(pipeline, pipeline.launch(), pipeline.topic("items"), f"cleanup.policy={policy}")


def test_cleanup_policy_changed_while_running(make_pipeline: MakePipeline) -> None:
    """A changed cleanup policy is noticed at the next heartbeat, also on an idle database."""
    pipeline = make_pipeline()
    pipeline.database.execute(SCHEMA)
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO items VALUES (1, 0, 'a')")
    pipeline.fence(while_running=capture)
    alter_topic(pipeline.bootstrap, pipeline.topic("items"), {"cleanup.policy": "delete"})
    capture.expect_exit(3, 60)
    assert "cleanup.policy=delete" in capture.errors, capture.transcript()


def test_partitions_added_while_down(make_pipeline: MakePipeline) -> None:
    """A topic with added partitions is refused, since a key's events would be in two partitions."""
    pipeline = _stopped_pipeline(make_pipeline)
    grow_topic(pipeline.bootstrap, pipeline.topic("items"), 3)
    capture = pipeline.launch()
    capture.expect_exit(3)
    assert "3 partitions" in capture.errors, capture.transcript()
