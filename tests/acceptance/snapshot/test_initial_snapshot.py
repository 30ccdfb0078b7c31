"""The initial snapshot and the stream meet exactly at the slot's LSN, under writes and table rewrites."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc.config import load_config
from cdc.lsn import LSN
from cdc.monitoring.facts.kafka import KafkaFactsReader
from cdc.monitoring.facts.wal_clock import WalClock
from cdc.names import topic
from cdc.snapshot.chunk_attempt import AttemptOutcome
from cdc.snapshot.initial_chunk import run_chunk
from tests.harness.kafka.records import Record, read_topic
from tests.harness.pipeline.check_runs import as_role, forget_role, role
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.pipeline.table_states import marks
from tests.harness.postgres.background_writer import SCHEMA, Writer
from tests.harness.postgres.database import Database
from tests.harness.processes.waiting import eventually
from tests.harness.snapshot.incremental_snapshot import copy_due
from tests.harness.snapshot.initial_snapshot import (
    WITH_INITIAL_SNAPSHOT,
    Copying,
    chunks,
    copies,
    prepared,
    wait_for_hold,
)
from tests.harness.stores.clean_audit import assert_clean

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


HAMMERED = 30_000  # rows of `items`: several chunks


def copied(records: list[Record]) -> list[Record]:
    return [record for record in records if record.op == "r"]


def make_tables(pipeline: Pipeline) -> list[str]:
    """One large table and several small ones: TOAST, partitions, an empty table, odd names; none analysed."""
    for statement in (
        SCHEMA,
        f"INSERT INTO items SELECT i, i % 7, repeat('n', i % 200) FROM generate_series(0, {HAMMERED - 1}) i",
        "CREATE TABLE large (id int PRIMARY KEY, a text, b numeric, c timestamptz, d bytea)",
        "INSERT INTO large SELECT i, 'text ' || i, i / 7.0, '2024-01-01'::timestamptz + i * interval '1 s', "
        "  CASE WHEN i % 5 = 0 THEN NULL ELSE '\\x5c6e'::bytea END FROM generate_series(1, 60000) i",
        "CREATE TABLE wide (id int PRIMARY KEY, doc text)",
        "ALTER TABLE wide ALTER doc SET STORAGE EXTERNAL",
        "INSERT INTO wide SELECT i, repeat(md5(i::text), 300) FROM generate_series(1, 300) i",
        "CREATE TABLE parts (id int, region text, PRIMARY KEY (region, id)) PARTITION BY LIST (region)",
        "CREATE TABLE parts_a PARTITION OF parts FOR VALUES IN ('a')",
        "CREATE TABLE parts_b PARTITION OF parts FOR VALUES IN ('b')",
        "CREATE TABLE parts_empty PARTITION OF parts FOR VALUES IN ('c')",
        "INSERT INTO parts SELECT i, CASE i % 2 WHEN 0 THEN 'a' ELSE 'b' END FROM generate_series(1, 1000) i",
        "CREATE TABLE nothing (id int PRIMARY KEY)",
        'CREATE TABLE "Odd.;--" ("k""1" text PRIMARY KEY, "%s" text)',
        """INSERT INTO "Odd.;--" VALUES (E'a\\tb\\\\c\\nd', NULL), ('', ''), ('\\N', '\\.')""",
    ):
        pipeline.database.execute(statement)
    return ["items", "large", "wide", "parts", "nothing"]


def test_snapshot_and_stream_meet_exactly(make_pipeline: MakePipeline, spark: SparkSession) -> None:
    """Under writes, each event is published once and in its key's partition, and the topics equal the source.

    One transaction writes before the slot's LSN and commits after it.
    """
    pipeline = make_pipeline(snapshot=WITH_INITIAL_SNAPSHOT)
    tables = make_tables(pipeline)
    first, second, third = (pipeline.database.connect() for _ in range(3))
    first.execute("BEGIN; INSERT INTO nothing VALUES (1)")
    capture = pipeline.launch()
    capture.wait_for_line('"waiting_for_open_transactions"', 60)
    second.execute("BEGIN; INSERT INTO nothing VALUES (2)")
    # The server waits for those that were open when it began, then once more for those that came meanwhile. What begins
    # in that second wait may write before the point and commit after it.
    first.execute("COMMIT")
    eventually(lambda: _waits_for(pipeline, second.info.backend_pid), 60, "the second wait")
    third.execute("BEGIN; INSERT INTO nothing VALUES (3); UPDATE large SET a = 'third' WHERE id = 7")
    third.execute("DELETE FROM large WHERE id = 8")
    second.execute("COMMIT")
    capture.wait_for_line('"waiting_for_initial_snapshot"', 60)
    with Writer(pipeline.database, keys=HAMMERED) as writer, Copying(pipeline, spark) as copying:
        copying.wait_for_chunks(1)
        third.execute("COMMIT")
        pipeline.database.execute("UPDATE parts SET region = 'c' WHERE id <= 10")
        pipeline.database.execute("UPDATE wide SET id = id + 1000 WHERE id <= 20")
        pipeline.database.execute("DELETE FROM large WHERE id % 100 = 0")
        report = copying.report()
        writer.wait_for_more()
    assert report.is_complete
    assert report.progress is not None
    assert (report.progress.chunks, report.progress.seconds_left) == (report.progress.total_chunks, 0.0)
    assert report.progress.percent == 100.0
    ((items,),) = pipeline.database.execute("SELECT 'items'::regclass::oid::int8")
    assert sum(piece.relation == items for chunk in chunks(pipeline) for piece in chunk.pieces) > 2
    records = pipeline.assert_same(*tables, while_running=capture)
    point = LSN(copies(pipeline)[0].point)
    for each in records.values():
        for record in copied(each):
            assert record.version is not None
            assert (record.version.position, record.version.seq) == (int(point), 0)
    assert len(copied(records["large"])) == 60_000
    assert {record.value["after"]["id"] for record in copied(records["nothing"])} == {1, 2}
    for table in tables:
        _assert_one_partition_per_key(records[table])
    _assert_where_java_puts_them(spark, records["items"])
    odd = read_topic(pipeline.bootstrap, topic(pipeline.prefix, "public", "Odd.;--"))
    assert sorted((record.value["after"]['k"1'], record.value["after"]["%s"]) for record in odd) == [
        ("", ""),
        ("\\N", "\\."),
        ("a\tb\\c\nd", None),
    ]
    assert_clean(pipeline.config, spark)


def _waits_for(pipeline: Pipeline, pid: int) -> bool:
    """Whether a session waits for that transaction to end."""
    query = "SELECT pid FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
    return bool(pipeline.database.execute(query, [pid]))


def _assert_one_partition_per_key(records: list[Record]) -> None:
    places: dict[bytes, set[int]] = {}
    for record in records:
        if record.op != "t":
            places.setdefault(record.key, set()).add(record.partition)
    assert all(len(found) == 1 for found in places.values())


def _assert_where_java_puts_them(spark: SparkSession, records: list[Record]) -> None:
    """A Java client finds the same partition for a key, for snapshot and streamed records."""
    assert spark._jvm is not None
    utils = spark._jvm.org.apache.kafka.common.utils.Utils
    for record in [record for record in records if record.op != "t"][:300]:
        assert utils.toPositive(utils.murmur2(record.key)) % 2 == record.partition


def test_what_is_rewritten_meanwhile_is_marked(make_pipeline: MakePipeline, spark: SparkSession) -> None:
    """Tables that are rewritten, truncated, dropped or altered meanwhile are marked incomplete; every other table is
    complete.
    """
    pipeline = make_pipeline(snapshot=WITH_INITIAL_SNAPSHOT)
    database = pipeline.database
    names = ["full_vacuum", "retyped", "emptied", "dropped", "renamed_column", "same", "added_column"]
    for name in names:
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text, n int)")
        database.execute(f"INSERT INTO {name} SELECT i, 'v', i FROM generate_series(1, 100) i")
    capture = wait_for_hold(pipeline)
    prepared(pipeline)
    database.execute("DELETE FROM full_vacuum WHERE id > 50")
    database.execute("VACUUM FULL full_vacuum")
    database.execute("ALTER TABLE retyped ALTER n TYPE bigint USING n + 1")
    database.execute("TRUNCATE emptied")
    database.execute("DROP TABLE dropped")
    database.execute("ALTER TABLE renamed_column RENAME v TO w")
    database.execute("ALTER TABLE added_column ADD COLUMN more int DEFAULT 7")
    with Copying(pipeline, spark) as copying:
        report = copying.report()
    assert not report.is_complete
    found = {table["table"].removeprefix("public.") for table in report.incomplete}
    assert {"full_vacuum", "retyped", "emptied", "renamed_column"} <= found
    assert "same" not in found
    pipeline.fence(while_running=capture)
    for name in ("full_vacuum", "retyped", "emptied", "renamed_column"):
        assert copied(pipeline.records(name)) == [], name
    assert len(copied(pipeline.records("added_column"))) == 100
    pipeline.assert_same("same", while_running=capture)
    assert copy_due(pipeline, spark).is_complete
    pipeline.assert_same(*(name for name in names if name != "dropped"), while_running=capture)
    assert_clean(pipeline.config, spark)


def test_dead_capture_leaves_what_is_finished(make_pipeline: MakePipeline, spark: SparkSession) -> None:
    """When capture dies in the snapshot, finished chunks stay, the table is incomplete, and deleted rows do not
    stay.
    """
    pipeline = make_pipeline(snapshot={**WITH_INITIAL_SNAPSHOT, "rows_per_second": 8000, "connections": 2})
    database = pipeline.database
    database.execute("CREATE TABLE large (id int PRIMARY KEY, a text)")
    database.execute("INSERT INTO large SELECT i, repeat('x', 100) FROM generate_series(1, 60000) i")
    database.execute("CREATE TABLE small (id int PRIMARY KEY)")
    database.execute("INSERT INTO small VALUES (1), (2)")
    capture = wait_for_hold(pipeline)
    with Copying(pipeline, spark) as copying:
        copying.wait_for_chunks(1)
        capture.kill()
        database.execute("DELETE FROM large WHERE id % 2 = 0")
        again = pipeline.start(90)
        report = copying.report()
    (copy,) = copies(pipeline)
    assert copy.state == "abandoned"
    assert not report.is_complete
    assert "large" in marks(pipeline)
    pipeline.fence(while_running=again)
    records = pipeline.records("large")
    rows = copied(records)
    assert 0 < len(rows) < 60_000
    assert len({record.key for record in rows}) == len(rows)
    last = {record.key: record for record in records if record.op != "t"}
    alive = [record for record in last.values() if record.value is not None and record.op != "d"]
    assert alive
    assert all(record.value["after"]["id"] % 2 == 1 for record in alive)


def test_login_replication_and_select_are_enough(
    make_pipeline: MakePipeline, database: Database, postgres_url: str
) -> None:
    """A role with only these rights can copy; a partition that it may not read is refused with the missing GRANT."""
    with role(postgres_url, "LOGIN", "REPLICATION") as reader:
        pipeline = make_pipeline(source={"dsn": as_role(database.dsn, reader)}, snapshot=WITH_INITIAL_SNAPSHOT)
        for statement in (
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 100) i",
            "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
            "CREATE TABLE p_low PARTITION OF p FOR VALUES FROM (0) TO (100)",
            "INSERT INTO p VALUES (1)",
            "CREATE PUBLICATION tailrace FOR TABLE t, p",
            f"GRANT SELECT ON t, p TO {reader}",
        ):
            database.execute(statement)
        wait_for_hold(pipeline)
        copy = prepared(pipeline)
        (task,) = (copy.task(chunk) for chunk in copy.chunks)
        refused = run_chunk(task)
        assert (refused.ending, refused.remedy) == (
            AttemptOutcome.REFUSED,
            "Run: grant select on public.p_low to the role;",
        )
        database.execute(f"GRANT SELECT ON p_low TO {reader}")
        assert run_chunk(task).ending is AttemptOutcome.DONE
        eventually(lambda: pipeline.progress_records()[-1]["state"] == "streaming", 60, "the stream")
        pipeline.assert_same("t", "p")
        forget_role(database.dsn, reader)


def test_tables_that_only_the_publication_has_are_copied_too(make_pipeline: MakePipeline, spark: SparkSession) -> None:
    """A table that is in the publication but not in the config is captured, and therefore copied, without blocking
    others.
    """
    pipeline = make_pipeline(snapshot=WITH_INITIAL_SNAPSHOT, source={"tables": ["public.chosen"]})
    for name in ("chosen", "other"):
        pipeline.database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
        pipeline.database.execute(f"INSERT INTO {name} SELECT i, 'v' FROM generate_series(1, 100) i")
    pipeline.database.execute("CREATE PUBLICATION tailrace FOR TABLE chosen, other")
    capture = wait_for_hold(pipeline)
    with Copying(pipeline, spark) as copying:
        assert copying.report().is_complete
    pipeline.database.execute("UPDATE other SET v = 'w' WHERE id < 9")
    records = pipeline.assert_same("chosen", "other", while_running=capture)
    assert len(copied(records["other"])) == 100


def test_connections_and_rate_are_kept_to(make_pipeline: MakePipeline, spark: SparkSession) -> None:
    """The number of concurrent sessions and the rows per second stay within the configured limits.

    Meanwhile the dashboard's reader sees the progress.
    """
    rows, rate = 20_000, 5_000
    pipeline = make_pipeline(snapshot={**WITH_INITIAL_SNAPSHOT, "connections": 2, "rows_per_second": rate})
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.database.execute("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, %s) i", [rows])
    capture = wait_for_hold(pipeline)
    sessions: list[int] = []
    percents: list[float] = []
    reader = KafkaFactsReader(load_config(pipeline.config), WalClock())
    with Copying(pipeline, spark) as copying:
        while copying.is_running:
            found = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tailrace copy' AND datname = %s"
            ((count,),) = pipeline.database.execute(found, [pipeline.database.name])
            sessions.append(count)
            percents += [seen.percent for seen in reader.read().snapshot_progress.values()]
        report = copying.report()
    assert report.is_complete
    assert report.progress is not None
    assert report.progress.total_chunks > 2
    reader.close()
    assert max(sessions) == 2
    assert any(0 < percent < 100 for percent in percents)
    assert report.progress.rows_per_second < rate * 1.5, "chunks of a moment count as they end"
    pipeline.assert_same("t", while_running=capture)


def test_rows_that_a_policy_would_hide_are_refused(
    make_pipeline: MakePipeline, database: Database, postgres_url: str
) -> None:
    """Row-level security without BYPASSRLS is refused, since an incomplete snapshot would look complete."""
    with role(postgres_url, "LOGIN", "REPLICATION") as reader:
        pipeline = make_pipeline(source={"dsn": as_role(database.dsn, reader)}, snapshot=WITH_INITIAL_SNAPSHOT)
        for statement in (
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            "INSERT INTO t VALUES (1, 'a')",
            "CREATE PUBLICATION tailrace FOR TABLE t",
            f"GRANT SELECT ON t TO {reader}",
        ):
            database.execute(statement)
        wait_for_hold(pipeline)
        copy = prepared(pipeline)
        (task,) = (copy.task(chunk) for chunk in copy.chunks)
        database.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
        refused = run_chunk(task)
        assert (refused.ending, "BYPASSRLS" in (refused.remedy or "")) == (AttemptOutcome.REFUSED, True), refused
        database.execute("ALTER TABLE t DISABLE ROW LEVEL SECURITY")
        assert run_chunk(task).ending is AttemptOutcome.DONE
        forget_role(database.dsn, reader)
