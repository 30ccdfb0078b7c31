"""A topic that Kafka has really compacted keeps the last record of every key, and that is enough to build a store."""

from __future__ import annotations

from tests.harness.kafka.records import Record
from tests.harness.kafka.topics import alter_topic
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.processes.waiting import eventually

# Rolls a segment at almost every append, and cleans whatever is dirty.
_EAGER = {"segment.ms": "50", "min.cleanable.dirty.ratio": "0.001", "max.compaction.lag.ms": "100"}


def test_the_last_value_of_each_key_survives_compaction(make_pipeline: MakePipeline) -> None:
    """After X=1, Y=2, X=3, Z=4, X=5 and a delete of Y, compaction leaves X=5, Z=4 and the tombstone of Y."""
    pipeline = make_pipeline(kafka={"partitions": 1})
    database = pipeline.database
    database.execute("CREATE TABLE t (key text PRIMARY KEY, value int)")
    capture = pipeline.start()
    for statement in (
        "INSERT INTO t VALUES ('X', 1)",
        "INSERT INTO t VALUES ('Y', 2)",
        "UPDATE t SET value = 3 WHERE key = 'X'",
        "INSERT INTO t VALUES ('Z', 4)",
        "UPDATE t SET value = 5 WHERE key = 'X'",
        "DELETE FROM t WHERE key = 'Y'",
    ):
        database.execute(statement)
    pipeline.fence(while_running=capture)
    assert [_latest(record) for record in pipeline.records("t")] == [
        ("X", 1),
        ("Y", 2),
        ("X", 3),
        ("Z", 4),
        ("X", 5),
        ("Y", None),  # the delete event
        ("Y", None),  # its tombstone
    ]

    _compact(pipeline, "t")

    left = [record for record in pipeline.records("t") if _latest(record)[0] != "filler"]
    assert [_latest(record) for record in left if record.value is not None] == [("Z", 4), ("X", 5)]
    assert [_latest(record)[0] for record in left if record.value is None] == ["Y"]
    assert all(record.version is not None for record in left)
    pipeline.assert_same("t", while_running=capture)

    capture.kill()
    again = pipeline.start()
    database.execute("INSERT INTO t VALUES ('Y', 6)")
    pipeline.assert_same("t", while_running=again)


def test_a_truncate_still_holds_after_compaction(make_pipeline: MakePipeline) -> None:
    """Compaction keeps the rows that TRUNCATE removed, because their keys have no tombstone, and the marker that ends
    them.
    """
    pipeline = make_pipeline(kafka={"partitions": 2})
    database = pipeline.database
    database.execute("CREATE TABLE t (key text PRIMARY KEY, value int)")
    capture = pipeline.start()
    database.execute("INSERT INTO t SELECT 'row ' || i, i FROM generate_series(1, 20) i")
    database.execute("TRUNCATE t")
    database.execute(
        "INSERT INTO t VALUES ('row 3', 33); TRUNCATE t; INSERT INTO t VALUES ('row 4', 44), ('row 5', 55)"
    )
    database.execute("UPDATE t SET value = value + 1")
    pipeline.fence(while_running=capture)

    _compact(pipeline, "t")

    records = pipeline.records("t")
    markers = [record for record in records if record.op == "t"]
    assert sorted(record.partition for record in markers) == [0, 1]
    assert len({record.version for record in markers}) == 1, (
        "the later TRUNCATE's markers took the place of the first's"
    )
    assert len([record for record in records if record.value and record.op != "t"]) > 3, "dead rows are still there"
    pipeline.assert_same("t", while_running=capture)


def _compact(pipeline: Pipeline, table: str) -> None:
    """Wait until a partition has one record per key; filler records roll the segments, since Kafka never cleans the
    last one.
    """
    topic = pipeline.topic(table)
    alter_topic(pipeline.bootstrap, topic, _EAGER)
    pipeline.database.execute(f"INSERT INTO {table} VALUES ('filler', 0), ('filler 2', 0), ('filler 3', 0)")

    def compacted() -> bool:
        pipeline.database.execute(f"UPDATE {table} SET value = value + 1 WHERE key LIKE 'filler%'")
        pipeline.fence()
        keys = [(record.partition, record.key) for record in pipeline.records(table) if b"filler" not in record.key]
        return len(keys) == len(set(keys))

    eventually(compacted, 120, f"{topic} to be compacted")


def _latest(record: Record) -> tuple[str, int | None]:
    """A key and the value that it has from here on."""
    key = record.key.decode().removeprefix('{"key":"').removesuffix('"}')
    after = record.value and record.value["after"]
    return ("filler" if key.startswith("filler") else key), after and after["value"]
