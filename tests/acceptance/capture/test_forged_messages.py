"""A message that another role writes into the log neither stalls nor misleads capture."""

from __future__ import annotations

import re

from cdc.logical_messages.heartbeat import PREFIX as HEARTBEAT
from cdc.names import Control, control_topic, message_topic
from cdc.snapshot.incremental import watermarks
from tests.harness.kafka.raw_records import RawRecord, read_raw, topics_under
from tests.harness.kafka.records import read_topic
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.postgres.database import Database
from tests.harness.snapshot.incremental_chunks import ChunkwiseSnapshot

EMIT = "SELECT pg_logical_emit_message(true, %s, %s::text)"


def _written(database: Database, slot: str, prefix: str) -> list[str]:
    """The messages of this name since the slot was made, as any role that may decode the log sees them."""
    rows = database.execute("SELECT data FROM pg_logical_slot_peek_changes(%s, NULL, NULL)", [slot])
    found = (
        re.match(rf"message: transactional: 1 prefix: {re.escape(prefix)}, sz: \d+ content:(.*)", row)
        for (row,) in rows
    )
    return [match[1] for match in found if match]


def test_replayed_watermarks_do_nothing(make_pipeline: MakePipeline) -> None:
    """Repeating the watermarks of a published snapshot, byte for byte, publishes nothing again."""
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO t SELECT n, 'old' FROM generate_series(1, 20) n")
    capture = pipeline.start()
    slot = f"{pipeline.slot_name}_spy"
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [slot])
    try:
        assert ChunkwiseSnapshot.of(pipeline, "t").whole().done
        written = _written(database, slot, watermarks.PREFIX)
    finally:
        database.execute("SELECT pg_drop_replication_slot(%s)", [slot])
    assert len(written) == 3
    database.execute("UPDATE t SET v = 'new'")
    pipeline.fence(while_running=capture)
    before = pipeline.end_offsets("t")
    for content in written:
        database.execute(EMIT, [watermarks.PREFIX, content])
    pipeline.fence(while_running=capture)
    assert pipeline.end_offsets("t") == before
    pipeline.assert_same("t", while_running=capture)


def test_forged_watermarks_are_skipped_without_a_kafka_request(make_pipeline: MakePipeline) -> None:
    """Thousands of watermarks of unknown snapshots give one log line, and later changes are published."""
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = pipeline.start()
    own = f"{pipeline.prefix}/{pipeline.slot_name}"
    chunk = """{"format":1,"copy":"' || n || '","number":1,"pieces":[],"size_bytes":1}"""
    mark = """{"type":"high","pipeline":"%s","chunk":%s,"attempt":1,"snapshot":"1:1:","first":0,"end":0}"""
    database.execute(
        f"SELECT count(pg_logical_emit_message(true, '{watermarks.PREFIX}', '{mark % (own, chunk)}'))"
        " FROM generate_series(1, 2000) n"
    )
    database.execute("INSERT INTO t VALUES (1, 'behind')")
    pipeline.assert_same("t", while_running=capture)
    assert 0 < capture.errors.count("message_ignored") < 5
    assert read_raw(pipeline.bootstrap, control_topic(pipeline.prefix, Control.COPIES)) == []


def test_forged_heartbeats_are_ignored(make_pipeline: MakePipeline) -> None:
    """A forged heartbeat does not make capture read the catalog and the topics, as its own heartbeats do."""
    pipeline = make_pipeline(source={"heartbeat_seconds": 3600})
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = pipeline.start()
    for number in range(50):
        database.execute(EMIT, [HEARTBEAT, f'{{"slot":"{pipeline.slot_name}"}}'])
        database.execute("INSERT INTO t VALUES (%s, 'x')", [number])
    pipeline.assert_same("t", while_running=capture)
    assert len(read_topic(pipeline.bootstrap, control_topic(pipeline.prefix, Control.POSITIONS))) <= 1


def _messages(pipeline: Pipeline, topic: str) -> list[RawRecord]:
    return read_raw(pipeline.bootstrap, topic)


def test_messages_make_no_more_topics_than_allowed(make_pipeline: MakePipeline) -> None:
    """Names beyond the limit share one topic, in which each message has its name; configured names have their own
    topics.
    """
    pipeline = make_pipeline(source={"message_topics": 2, "message_names": ["orders", "made.up.*", "*"]})
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = pipeline.start()
    names = [f"made.up.{number}" for number in range(8)]
    for name in [*names, "orders", *names]:
        database.execute(EMIT, [name, f"of {name}"])
    pipeline.fence(while_running=capture)
    made = {name for name in topics_under(pipeline.bootstrap, pipeline.prefix) if name.count(".") == 1}
    own = {message_topic(pipeline.prefix, name) for name in (*names[:2], "orders")}
    rest = f"{pipeline.prefix}.--other"
    assert made - {control_topic(pipeline.prefix, each) for each in Control} == {*own, rest}
    for name in own:
        assert len(_messages(pipeline, name)) == (1 if name.endswith("orders") else 2)
    found = [(record.headers["name"].decode(), record.value.decode()) for record in _messages(pipeline, rest)]
    assert found[:12] == [(name, f"of {name}") for name in names[2:]] * 2
    assert "message_topics" in capture.errors


def test_only_messages_that_are_named_are_published(make_pipeline: MakePipeline) -> None:
    """With `message_names`, other messages make no topic and no record; a log line reports them."""
    pipeline = make_pipeline(source={"message_names": ["orders.*", "test.fence"]})
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = pipeline.start()
    for name in ("orders.paid", "stranger", "ordersXpaid"):
        database.execute(EMIT, [name, "x"])
    pipeline.fence(while_running=capture)
    made = {name for name in topics_under(pipeline.bootstrap, pipeline.prefix) if name.count(".") == 1}
    own = {message_topic(pipeline.prefix, name) for name in ("orders.paid", "test.fence")}
    assert made - {control_topic(pipeline.prefix, each) for each in Control} == own
    assert "stranger" in capture.errors
