"""An incremental snapshot during streaming loses no row, replaces no newer one and restores no deleted one.

These tests read chunks one by one, as Spark tasks do, so that they can make changes at the critical moments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import msgspec
import psycopg
import pytest

from cdc.logical_messages.signed import read_secret
from cdc.lsn import LSN
from cdc.names import Control, control_topic
from cdc.postgres import catalog
from cdc.snapshot.incremental import chunk as incremental_chunk
from cdc.snapshot.incremental import watermarks
from cdc.snapshot.incremental.announced import announce
from cdc.snapshot.incremental.chunk import read_incremental_chunk
from cdc.snapshot.log import SnapshotLog
from tests.harness.kafka.records import read_topic
from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.postgres.slow_commits import SlowCommits
from tests.harness.snapshot.incremental_chunks import ChunkwiseSnapshot


def _during_read(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Run an action between reading the rows and writing the high watermark."""
    flush = incremental_chunk._Rows.flush

    def flush_later(rows: incremental_chunk._Rows) -> None:
        act()
        flush(rows)

    monkeypatch.setattr(incremental_chunk._Rows, "flush", flush_later)


def test_rows_from_before_capture_arrive_and_others_are_removed(make_pipeline: MakePipeline) -> None:
    """Rows from before capture arrive by the snapshot, and keys that only the topic has are removed."""
    pipeline = make_pipeline()
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.database.execute("INSERT INTO t SELECT n, 'row ' || n FROM generate_series(1, 500) n")
    pipeline.start()
    pipeline.database.execute("UPDATE t SET v = 'changed' WHERE id = 7")
    found = ChunkwiseSnapshot.of(pipeline, "t").whole()
    assert (found.done, found.rows) == (True, 500)
    pipeline.assert_same("t")


def test_change_while_the_chunk_is_read(make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows updated, deleted, re-keyed and inserted between the reading and the high watermark keep their newer
    state.
    """
    pipeline = make_pipeline()
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.database.execute("INSERT INTO t SELECT n, 'old' FROM generate_series(1, 50) n")
    pipeline.start()
    # The first row of a table brings its columns along; while a chunk is read, that would look like other columns.
    pipeline.database.execute("UPDATE t SET v = 'seen' WHERE id = 50")
    pipeline.fence()

    def change() -> None:
        pipeline.database.execute("UPDATE t SET v = 'new' WHERE id BETWEEN 1 AND 10")
        pipeline.database.execute("DELETE FROM t WHERE id BETWEEN 11 AND 20")
        pipeline.database.execute("UPDATE t SET id = id + 1000 WHERE id BETWEEN 21 AND 30")
        pipeline.database.execute("INSERT INTO t VALUES (5000, 'fresh')")

    _during_read(monkeypatch, change)
    found = ChunkwiseSnapshot.of(pipeline, "t").whole()
    assert (found.done, found.rows) == (True, 20), "the overtaken rows give way"
    pipeline.assert_same("t")


@pytest.mark.parametrize(
    "statement", ["TRUNCATE t", "ALTER TABLE t ADD COLUMN w int DEFAULT 7", "ALTER TABLE t RENAME COLUMN v TO x"]
)
def test_chunk_that_no_longer_holds_is_read_again(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """After a TRUNCATE or a column change before its high watermark, a chunk is discarded and read again."""
    pipeline = make_pipeline()
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.database.execute("INSERT INTO t SELECT n, 'old' FROM generate_series(1, 50) n")
    pipeline.start()
    snapshot = ChunkwiseSnapshot.of(pipeline, "t")

    def alter() -> None:
        pipeline.database.execute(statement)
        pipeline.database.execute("INSERT INTO t (id) VALUES (100)")  # the stream tells of new columns with a row

    with monkeypatch.context() as patched:
        _during_read(patched, alter)
        found = snapshot.read(snapshot.chunk(1))
    assert not found.done
    assert found.repeat
    second = snapshot.read(snapshot.chunk(1), attempt=2)
    assert second.done
    snapshot.whole()
    pipeline.assert_same("t")


def test_capture_restarts_in_the_middle(make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk is read again when capture is killed between its two watermarks."""
    pipeline = make_pipeline()
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.database.execute("INSERT INTO t SELECT n, 'old' FROM generate_series(1, 50) n")
    capture = pipeline.start()
    snapshot = ChunkwiseSnapshot.of(pipeline, "t")

    def kill() -> None:
        pipeline.fence()
        capture.kill()
        pipeline.database.execute("DELETE FROM t WHERE id = 3")

    with monkeypatch.context() as patched:
        _during_read(patched, kill)
        read_incremental_chunk(snapshot.task(snapshot.chunk(1)))
    pipeline.start()
    assert snapshot.outcome(snapshot.chunk(1)).repeat
    assert snapshot.read(snapshot.chunk(1), attempt=2).done
    pipeline.assert_same("t")


def test_capture_restarts_while_a_published_commit_is_not_visible(
    make_pipeline: MakePipeline, slow_commits: SlowCommits
) -> None:
    """A chunk read without a published but invisible commit does not restore the old rows after a restart.

    The commit waits for a synchronous standby. A transaction that locks another table delays nothing.
    """
    pipeline = make_pipeline()
    database = pipeline.database
    for name in ("t", "other"):
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
        database.execute(f"INSERT INTO {name} SELECT n, 'old' FROM generate_series(1, 50) n")
    capture = pipeline.start()
    slow_commits.begin()
    slow_commits.commit("UPDATE t SET v = 'new' WHERE id < 9; DELETE FROM t WHERE id = 9")
    # Sessions from now on, the copy's, do not wait for the standby.
    database.execute(f"ALTER DATABASE {database.name} SET synchronous_commit = local")
    capture.wait_for(lambda: pipeline.rows_published("t") >= 9, 30, "the commit in the topic")
    pipeline.fence(while_running=capture)
    capture.stop()
    capture = pipeline.start()
    snapshot, elsewhere = ChunkwiseSnapshot.of(pipeline, "t"), ChunkwiseSnapshot.of(pipeline, "other")
    assert snapshot.read(snapshot.chunk(1)).repeat
    assert elsewhere.read(elsewhere.chunk(2)).done
    slow_commits.end()
    assert snapshot.read(snapshot.chunk(3)).done
    pipeline.assert_same("t", "other", while_running=capture)


def test_writer_that_hammers_the_copied_rows(make_pipeline: MakePipeline) -> None:
    """While a writer changes the rows of many chunks, the topic ends equal to the table."""
    pipeline = make_pipeline()
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text, n int DEFAULT 0)")
    pipeline.database.execute("INSERT INTO t SELECT n, repeat('x', 200) FROM generate_series(1, 3000) n")
    pipeline.start()
    snapshot = ChunkwiseSnapshot.of(pipeline, "t")
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(pipeline.database.dsn, autocommit=True) as connection:
            turn = 0
            while not stop.is_set():
                turn += 1
                connection.execute("UPDATE t SET n = n + 1 WHERE id %% 37 = %s", [turn % 37])
                connection.execute("DELETE FROM t WHERE id = %s", [turn * 7 % 3000])
                connection.execute(
                    "INSERT INTO t VALUES (%s, 'again') ON CONFLICT (id) DO UPDATE SET v = 'kept'", [turn * 11 % 3000]
                )

    writer = threading.Thread(target=write)
    writer.start()
    try:
        ((blocks,),) = pipeline.database.execute("SELECT pg_relation_size('t') / 8192")
        bounds = [*range(0, blocks, 12), None]
        for number, (first, end) in enumerate(zip(bounds, [*bounds[1:], None], strict=True)):
            if first is not None:
                chunk = snapshot.chunk(number, first, end)
                attempt = 1
                while not snapshot.read(chunk, attempt).done:
                    attempt += 1
    finally:
        stop.set()
        writer.join()
    # The rows that were there before are all copied or changed by now.
    pipeline.assert_same("t")


def test_watermarks_of_another_or_unknown_snapshot_do_nothing(make_pipeline: MakePipeline) -> None:
    """Watermarks of another pipeline, an older version or an unknown snapshot publish no row, marker or record."""
    pipeline = make_pipeline()
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO t SELECT n, 'row ' || n FROM generate_series(1, 50) n")
    pipeline.assert_same("t", while_running=capture)
    before = pipeline.end_offsets("t")
    snapshot = ChunkwiseSnapshot.of(pipeline, "t")
    announce(snapshot.config.kafka, [snapshot.plan(LSN(1))])
    strange = replace(snapshot.config, kafka=replace(snapshot.config.kafka, prefix="another"))
    with psycopg.connect(pipeline.database.dsn, autocommit=True) as connection:
        now = catalog.current_lsn(connection)
        unknown = msgspec.structs.replace(snapshot.chunk(1), copy="unknown")
        read_incremental_chunk(replace(snapshot.task(snapshot.chunk(2)), chunk=unknown))
        for mark in (
            snapshot.end(now, "unknown"),
            snapshot.end(LSN(now + (1 << 40))),
            msgspec.structs.replace(snapshot.end(now), whole={snapshot.oid: int(now), "1259": int(now)}),
            msgspec.structs.replace(snapshot.end(now), pipeline=""),
            msgspec.structs.replace(snapshot.end(now), pipeline=watermarks.pipeline_of(strange)),
        ):
            watermarks.emit_watermark(connection, mark, read_secret(snapshot.config.kafka))
    pipeline.fence(while_running=capture)
    assert pipeline.end_offsets("t") == before, "not a record, not even a commit's"
    with SnapshotLog(snapshot.config.kafka) as copies:
        copies.refresh()
    assert [copy.state for copy in copies.copies.values()] == ["planned"]
    assert "unknown" not in copies.chunks
    assert snapshot.whole().done, "its own goes through"
    pipeline.assert_same("t", while_running=capture)


def test_a_row_that_is_too_large_is_parked(make_pipeline: MakePipeline) -> None:
    """A row that is too large is parked; the rest of its chunk is published, and the snapshot completes."""
    pipeline = make_pipeline(kafka={"max_message_bytes": 20_000})
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.database.execute("INSERT INTO t VALUES (1, 'small'), (2, repeat('x', 100000)), (3, repeat('y', 19500))")
    pipeline.start()
    chunk = ChunkwiseSnapshot.of(pipeline, "t").whole()
    assert chunk.done
    assert [record.key for record in pipeline.records("t") if record.op == "r"] == [b'{"id":1}']
    parked = read_topic(pipeline.bootstrap, control_topic(pipeline.prefix, Control.PARKED))
    assert {record.value["key"] for record in parked} == {'{"id":2}', '{"id":3}'}
