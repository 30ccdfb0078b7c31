"""After unusual but valid changes, the topics hold what the tables hold."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from cdc.names import Control, control_topic
from tests.harness.kafka.records import read_topic
from tests.harness.pipeline.pipeline import MakePipeline, peak_memory_bytes
from tests.harness.postgres.database import Database
from tests.harness.processes.process import StartProcess

# Random text does not compress, so that Postgres keeps it outside the row and leaves it out of updates.
TOASTED = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, {}))"
MEGABYTE = TOASTED.format(32_768)


def test_an_untouched_megabyte_is_in_every_event(make_pipeline: MakePipeline) -> None:
    """An update that does not touch a TOASTed value still publishes it, under either replica identity."""
    pipeline = make_pipeline()
    database = pipeline.database
    for table in ("usual", "whole"):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int, big text, other text, list int[])")
    database.execute("ALTER TABLE whole REPLICA IDENTITY FULL")
    capture = pipeline.start()
    for table in ("usual", "whole"):
        database.execute(
            f"INSERT INTO {table} SELECT i, 1, {MEGABYTE}, {TOASTED.format(300)},"
            " (SELECT array_agg((random() * 1e9)::int) FROM generate_series(1, 5000)) FROM generate_series(1, 3) i"
        )
        database.execute(f"UPDATE {table} SET n = n + 1; UPDATE {table} SET n = n + 1 WHERE id = 2")
        database.execute(
            f"UPDATE {table} SET other = 'small now' WHERE id = 1; UPDATE {table} SET id = 30 WHERE id = 3"
        )
        database.execute(f"BEGIN; UPDATE {table} SET n = 9 WHERE id = 2; DELETE FROM {table} WHERE id = 2; COMMIT")
    pipeline.assert_same("usual", "whole", while_running=capture)
    for table in ("usual", "whole"):
        events = [record for record in pipeline.records(table) if record.op in ("c", "u")]
        assert {record.key for record in events} == {b'{"id":1}', b'{"id":2}', b'{"id":3}', b'{"id":30}'}
        assert all(len(record.value["after"]["big"]) > 1_000_000 for record in events)
        assert all(record.value["after"]["list"] for record in events)


def test_a_truncate_amid_inserts_is_in_every_partition(make_pipeline: MakePipeline) -> None:
    """Rows inserted before a TRUNCATE are removed, rows inserted after it stay, and each partition has one marker."""
    pipeline = make_pipeline(kafka={"partitions": 4})
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = pipeline.start()
    database.execute(
        "INSERT INTO t SELECT i, 'before' FROM generate_series(1, 50) i;"
        "INSERT INTO t VALUES (51, 'the same transaction'); TRUNCATE t;"
        "INSERT INTO t VALUES (1, 'after'), (60, 'after')"
    )
    database.execute("TRUNCATE t RESTART IDENTITY")
    database.execute("BEGIN; INSERT INTO t VALUES (2, 'x'); SAVEPOINT a; TRUNCATE t; ROLLBACK TO a; COMMIT")
    pipeline.assert_same("t", while_running=capture)
    markers = [record for record in pipeline.records("t") if record.op == "t"]
    assert sorted(record.partition for record in markers) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len({record.version for record in markers}) == 2, "one version for each TRUNCATE"
    assert len({(record.partition, record.key) for record in markers}) == 4, "a marker replaces the one before"


def test_one_truncate_of_several_tables_reaches_each(make_pipeline: MakePipeline) -> None:
    """One TRUNCATE empties every named table and those that CASCADE adds, under one version, and no other table."""
    pipeline = make_pipeline(source={"tables": ["public.a", "public.b", "public.child", "public.other"]})
    database = pipeline.database
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY);"
        "CREATE TABLE other (id int PRIMARY KEY);"
        "CREATE TABLE child (id int PRIMARY KEY, a int REFERENCES a); CREATE TABLE unpublished (a int REFERENCES a)"
    )
    capture = pipeline.start()
    fill = "".join(f"INSERT INTO {table} VALUES (1), (2);" for table in ("a", "b", "child", "other", "unpublished"))
    database.execute(fill)
    database.execute("BEGIN; TRUNCATE a, b CASCADE; INSERT INTO a VALUES (7); INSERT INTO child VALUES (8, 7); COMMIT")
    tables = ("a", "b", "child", "other")
    pipeline.assert_same(*tables, while_running=capture)
    markers = {table: {r.version for r in pipeline.records(table) if r.op == "t"} for table in tables}
    assert markers["a"] == markers["b"] == markers["child"]
    assert len(markers["a"]) == 1
    assert not markers["other"]


def test_before_rows_are_there_where_the_replica_identity_gives_them(make_pipeline: MakePipeline) -> None:
    """Under REPLICA IDENTITY FULL `before` is the whole old row, TOASTed values included; otherwise only a delete has
    the key.
    """
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute(
        "CREATE TABLE whole (id int PRIMARY KEY, n int, big text); ALTER TABLE whole REPLICA IDENTITY FULL;"
        "CREATE TABLE usual (id int PRIMARY KEY, n int, big text)"
    )
    capture = pipeline.start()
    for table in ("whole", "usual"):
        database.execute(f"INSERT INTO {table} VALUES (1, 1, {TOASTED.format(300)})")
        database.execute(f"UPDATE {table} SET n = 2; UPDATE {table} SET id = 2; DELETE FROM {table}")
    pipeline.assert_same("whole", "usual", while_running=capture)
    events = {table: [r.value for r in pipeline.records(table) if r.value] for table in ("whole", "usual")}
    big = events["whole"][0]["after"]["big"]
    assert [event["before"] for event in sorted(events["whole"], key=_order)] == [
        None,
        {"id": 1, "n": 1, "big": big},
        {"id": 1, "n": 2, "big": big},
        None,
        {"id": 2, "n": 2, "big": big},
    ]
    key_only = [event["before"] for event in events["usual"] if event["op"] == "d"]
    assert sorted(row["id"] for row in key_only) == [1, 2]
    assert all(event["before"] is None for event in events["usual"] if event["op"] != "d")


def test_what_is_rolled_back_is_never_published(make_pipeline: MakePipeline) -> None:
    """Rolled-back savepoints, subtransactions and prepared transactions publish nothing; COMMIT PREPARED publishes
    all.
    """
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = pipeline.start()
    database.execute(
        "BEGIN; INSERT INTO t VALUES (1, 'kept'); SAVEPOINT a; INSERT INTO t VALUES (2, 'never');"
        "SAVEPOINT b; UPDATE t SET v = 'never'; RELEASE b; ROLLBACK TO a; INSERT INTO t VALUES (3, 'kept'); COMMIT"
    )
    database.execute(
        "DO $$ BEGIN INSERT INTO t VALUES (4, 'kept');"
        "BEGIN INSERT INTO t VALUES (5, 'never'), (4, 'never'); EXCEPTION WHEN unique_violation THEN NULL; END; END $$"
    )
    gid = database.name
    database.execute(f"BEGIN; INSERT INTO t VALUES (6, 'never'); PREPARE TRANSACTION '{gid} 1'")
    database.execute(
        "BEGIN; INSERT INTO t VALUES (7, 'kept'); UPDATE t SET v = 'kept, 2' WHERE id = 1;"
        f"PREPARE TRANSACTION '{gid} 2'"
    )
    database.execute("INSERT INTO t VALUES (8, 'kept')")
    database.execute(f"ROLLBACK PREPARED '{gid} 1'")
    database.execute(f"COMMIT PREPARED '{gid} 2'")
    pipeline.assert_same("t", while_running=capture)
    values = {record.value["after"]["v"] for record in pipeline.records("t")}
    assert values == {"kept", "kept, 2"}


def test_clients_that_race_on_one_key_leave_the_topic_like_the_table(make_pipeline: MakePipeline) -> None:
    """After concurrent writes to one key, the topic has the row of the last commit."""
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text, big text)")
    database.execute(f"INSERT INTO t VALUES (1, 'start', {TOASTED.format(300)})")
    capture = pipeline.start()
    clients = [threading.Thread(target=_race, args=(database, number)) for number in range(3)]
    for client in clients:
        client.start()
    for client in clients:
        client.join(60)
    pipeline.assert_same("t", while_running=capture)
    assert len(pipeline.records("t")) > 200


def test_a_row_over_the_size_limit_is_parked_and_the_others_flow(make_pipeline: MakePipeline) -> None:
    """A row over the size limit is parked with its key, version and reason, its own topic gets a tombstone, and other
    rows flow.

    Its delete is published in spite of its size, and settles it. test_parked_rows.py has the other cases.
    """
    pipeline = make_pipeline(kafka={"max_message_bytes": 100_000})
    database = pipeline.database
    database.execute("CREATE TABLE t (id text PRIMARY KEY, v text); ALTER TABLE t REPLICA IDENTITY FULL")
    capture = pipeline.start()
    database.execute(
        f"BEGIN; INSERT INTO t VALUES ('a', 'small'); INSERT INTO t VALUES ('large', {TOASTED.format(4000)});"
        "INSERT INTO t VALUES ('b', 'small'); COMMIT"
    )
    database.execute(f"INSERT INTO t VALUES ('deleted later', {TOASTED.format(4000)})")
    database.execute("DELETE FROM t WHERE id = 'deleted later'; UPDATE t SET v = 'still small' WHERE id = 'a'")
    pipeline.fence(while_running=capture)
    last = {record.key: record.value for record in pipeline.records("t")}
    assert last[b'{"id":"a"}']["after"]["v"] == "still small"
    assert last[b'{"id":"b"}']["after"]["v"] == "small"
    assert last[b'{"id":"deleted later"}'] is None, "the tombstone"
    assert last[b'{"id":"large"}'] is None, "the tombstone"
    parked = read_topic(pipeline.bootstrap, control_topic(pipeline.prefix, Control.PARKED))
    assert [record.value["key"] for record in parked if record.value["topic"] == pipeline.topic("t")] == [
        '{"id":"large"}',
        '{"id":"deleted later"}',
        '{"id":"deleted later"}',
    ]
    for record in parked:
        assert record.version is not None
        assert record.value["version"] == str(record.version)
    assert ["max_message_bytes" in record.value.get("reason", "") for record in parked] == [True, True, False]
    assert parked[2].value["settled"]


def test_a_row_of_many_megabytes_is_parked_and_its_memory_is_not_kept(make_pipeline: MakePipeline) -> None:
    """A row of many megabytes passes through capture once, and its memory is released."""
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = pipeline.start()
    database.execute("INSERT INTO t VALUES (1, 'small'); INSERT INTO t VALUES (2, repeat('x\"', 25000000))")
    database.execute("INSERT INTO t VALUES (3, 'small')")
    pipeline.fence(while_running=capture)
    assert {record.key for record in pipeline.records("t") if record.op == "c"} == {b'{"id":1}', b'{"id":3}'}
    (parked,) = read_topic(pipeline.bootstrap, control_topic(pipeline.prefix, Control.PARKED))
    assert parked.value["key"] == '{"id":2}'
    assert peak_memory_bytes(capture) < 600 << 20


def test_rows_of_every_size_around_the_limit_pass_or_are_parked(make_pipeline: MakePipeline) -> None:
    """No row size or key length near the limit makes a record that the broker refuses."""
    limit = 20_000
    pipeline = make_pipeline(kafka={"max_message_bytes": limit})
    database = pipeline.database
    database.execute("CREATE TABLE t (id text PRIMARY KEY, v text)")
    capture = pipeline.start()
    # The envelope takes about 700 bytes; random keys of 1,200 characters travel in the headers of a key change too.
    database.execute(
        f"INSERT INTO t SELECT i || {TOASTED.format('38 + i * 0')}, left({TOASTED.format(900)}, 15000 + i * 50)"
        " FROM generate_series(1, 100) i"
    )
    database.execute("UPDATE t SET id = reverse(id)")
    # Longer than any record may be, yet it compresses enough to be indexed.
    database.execute(f"INSERT INTO t VALUES (repeat('k', {limit + 1}), 'small')")
    database.execute(f"UPDATE t SET v = 'other' WHERE id = repeat('k', {limit + 1})")
    database.execute(f"DELETE FROM t WHERE id = repeat('k', {limit + 1})")
    database.execute("INSERT INTO t VALUES ('the end', 'small')")
    pipeline.fence(while_running=capture)
    keys = {record.key for record in pipeline.records("t") if record.op == "c"}
    parked = read_topic(pipeline.bootstrap, control_topic(pipeline.prefix, Control.PARKED))
    assert b'{"id":"the end"}' in keys
    assert 10 < len({key for key in keys if len(key) > 1000}) < 190
    assert len(parked) > 10


@pytest.mark.parametrize("shift_seconds", [86_400, -86_400], ids=["a day ahead", "a day behind"])
def test_a_clock_that_is_wrong_changes_neither_order_nor_content(
    make_pipeline: MakePipeline, tailrace: StartProcess, tmp_path: Path, shift_seconds: int
) -> None:
    """When capture's clock jumps by a day, the order and content of events stay correct, because order comes from the
    log.
    """
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = pipeline.start()
    database.execute("INSERT INTO t SELECT i, 'first' FROM generate_series(1, 20) i")
    pipeline.fence(while_running=capture)
    capture.kill()
    (tmp_path / "sitecustomize.py").write_text(_WRONG_CLOCK.format(shift=shift_seconds))
    wrong = tailrace("capture", "--config", str(pipeline.config), env={"PYTHONPATH": str(tmp_path)})
    database.execute("UPDATE t SET v = 'second'; DELETE FROM t WHERE id > 15")
    pipeline.fence(while_running=wrong)
    wrong.kill()
    capture = pipeline.start()
    database.execute("UPDATE t SET v = 'third' WHERE id <= 10; INSERT INTO t VALUES (20, 'again')")
    pipeline.assert_same("t", while_running=capture)
    stamps = [record.value["ts_ms"] for record in pipeline.records("t") if record.value]
    assert max(stamps) - min(stamps) > 80_000_000, "the wrong clock was in use"
    assert '"compiled": false' in wrong.errors, wrong.transcript()


# For the whole process: Python's clock, and the time that librdkafka puts on records, which asks the kernel by itself.
# (Rows on the compiled way past `produce` would have the right time. So this is also capture without compiled loops.)
_WRONG_CLOCK = """
import sys, time, confluent_kafka
sys.modules["cdc.kafka.direct_produce"] = None
_time, _time_ns, _Producer = time.time, time.time_ns, confluent_kafka.Producer
time.time = lambda: _time() + {shift}
time.time_ns = lambda: _time_ns() + {shift} * 1_000_000_000

class Producer(_Producer):
    def produce(self, topic, value=None, key=None, partition=-1, **more):
        super().produce(topic, value, key, partition, timestamp=int(time.time() * 1000), **more)

confluent_kafka.Producer = Producer
"""


def _order(event: dict[str, Any]) -> tuple[int, int]:
    return event["source"]["commit_lsn"], event["transaction"]["total_order"]


def _race(database: Database, number: int) -> None:
    chance = random.Random(number)
    connection = database.connect()
    for turn in range(100):
        if chance.random() < 0.1:
            connection.execute(
                "DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (1, 'again', 'x') ON CONFLICT DO NOTHING"
            )
        else:
            connection.execute("UPDATE t SET v = %s WHERE id = 1", [f"client {number}, turn {turn}"])


def test_a_raised_size_limit_holds_for_topics_that_exist(make_pipeline: MakePipeline) -> None:
    """The remedy for parked rows, a larger max_message_bytes, works without touching the topics by hand."""
    pipeline = make_pipeline(kafka={"max_message_bytes": 50_000})
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = pipeline.start()
    database.execute(f"INSERT INTO t VALUES (1, {TOASTED.format(3000)})")
    pipeline.fence(while_running=capture)
    assert [record.op for record in pipeline.records("t")] == ["d", None]
    capture.kill()
    pipeline.configure(kafka={"max_message_bytes": 20_000_000})
    capture = pipeline.start()
    database.execute("UPDATE t SET id = 2")
    database.execute("INSERT INTO t VALUES (3, repeat('x', 14000000))")  # more than the producer's queue usually holds
    pipeline.assert_same("t", while_running=capture)


@pytest.mark.parametrize("partitions", [2, 8])
def test_another_number_of_partitions_is_refused(make_pipeline: MakePipeline, partitions: int) -> None:
    """Capture refuses to start when the config has fewer or more partitions than the topic, and publishes nothing."""
    pipeline = make_pipeline(kafka={"partitions": 4})
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pipeline.start().kill()
    pipeline.configure(kafka={"partitions": partitions})
    again = pipeline.launch()
    again.expect_exit(3, 60)
    assert "partitions" in again.errors
