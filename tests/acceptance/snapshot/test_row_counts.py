"""Capture counts the rows that a snapshot announces, and notices missing ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest

from cdc.config import load_config
from cdc.snapshot.chunk_attempt import AttemptOutcome
from cdc.snapshot.incremental import chunk as incremental_chunk
from cdc.snapshot.incremental.announced import announce
from cdc.snapshot.initial_chunk import run_chunk
from tests.harness.pipeline.pipeline import MakePipeline
from tests.harness.pipeline.table_states import states
from tests.harness.processes.command import run_command
from tests.harness.snapshot.incremental_chunks import ChunkwiseSnapshot
from tests.harness.snapshot.incremental_snapshot import copy_due
from tests.harness.snapshot.initial_snapshot import WITH_INITIAL_SNAPSHOT, chunks, prepared, wait_for_hold
from tests.harness.stores.store_pipeline import StorePipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_chunk_with_fewer_rows_than_announced_is_read_again(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk of which some rows are missing on `__copy` is read again."""
    pipeline = make_pipeline()
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.database.execute("INSERT INTO t SELECT n, 'row ' || n FROM generate_series(1, 50) n")
    capture = pipeline.start()
    snapshot = ChunkwiseSnapshot.of(pipeline, "t")
    flush = incremental_chunk._Rows.flush

    def flush_and_claim_more(rows: incremental_chunk._Rows) -> None:
        flush(rows)
        rows.count += 1

    with monkeypatch.context() as patched:
        patched.setattr(incremental_chunk._Rows, "flush", flush_and_claim_more)
        found = snapshot.read(snapshot.chunk(1))
    assert not found.done
    assert "50 of 51 rows" in found.repeat
    assert snapshot.read(snapshot.chunk(1), attempt=2).done
    pipeline.assert_same("t", while_running=capture)


def test_rows_of_another_run_of_the_same_attempt_are_not_its_own(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that an earlier run of the same task attempt still writes do not count for the later run."""
    pipeline = make_pipeline()
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.database.execute("INSERT INTO t SELECT n, 'old' FROM generate_series(1, 20) n")
    capture = pipeline.start()
    pipeline.database.execute("UPDATE t SET v = 'seen' WHERE id = 1")
    pipeline.fence(while_running=capture)
    snapshot = ChunkwiseSnapshot.of(pipeline, "t")
    task = snapshot.task(snapshot.chunk(1))
    flush = incremental_chunk._Rows.flush
    with incremental_chunk.at_snapshot(task.config.source.conninfo(), None) as frozen:
        frozen.execute("SELECT count(*) FROM t")
        pipeline.database.execute("UPDATE t SET v = 'new'")
        pipeline.fence(while_running=capture)

        def flush_around_the_other(rows: incremental_chunk._Rows) -> None:
            """The other run's rows come to lie between its own."""
            flush(rows)
            other = incremental_chunk._Rows(task)
            other.send_all(frozen)
            flush(other)
            headers = [("topic", pipeline.topic("t").encode()), ("chunk", rows._tag)]
            rows._produce(b'{"id":20}', b'{"id":20,"v":"new"}', headers)
            rows.count += 1
            flush(rows)

        monkeypatch.setattr(incremental_chunk._Rows, "flush", flush_around_the_other)
        incremental_chunk.read_incremental_chunk(replace(task, where="id < 20"))
        assert snapshot.outcome(snapshot.chunk(1)).done
    pipeline.assert_same("t", while_running=capture)


def test_acknowledged_rows_that_are_gone_before_streaming_begins(make_pipeline: MakePipeline) -> None:
    """Capture refuses to stream when a topic ends before the offset that the snapshot's chunks recorded."""
    pipeline = make_pipeline(snapshot=WITH_INITIAL_SNAPSHOT)
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline.database.execute("INSERT INTO t SELECT n, 'row ' || n FROM generate_series(1, 50) n")
    capture = wait_for_hold(pipeline)
    copy = prepared(pipeline)
    (chunk,) = copy.chunks
    capture.freeze()
    assert run_chunk(copy.task(chunk)).ending is AttemptOutcome.DONE
    (done,) = chunks(pipeline)
    ends = done.end_offsets[pipeline.topic("t")]
    assert len(ends) == 2
    assert sum(ends) >= 50
    # As it is after a broker has lost the last of them: the record says more than there is.
    lost = {pipeline.topic("t"): [end + 100 for end in ends]}
    announce(load_config(pipeline.config).kafka, [msgspec.structs.replace(done, end_offsets=lost)])
    capture.thaw()
    capture.expect_exit(3, 60)
    assert "lost records that it had acknowledged" in capture.errors
    assert "tailrace recover" in capture.errors
    again = pipeline.launch()
    again.expect_exit(3, 60)
    assert pipeline.progress_records()[-1]["state"] == "copying"


def test_a_pipeline_without_an_initial_snapshot_is_not_complete(
    make_pipeline: MakePipeline, spark: SparkSession, redis_url: str
) -> None:
    """Tables that had rows are incomplete until they are copied, as a bootstrap, `check` and the status report."""
    pipeline = make_pipeline()
    for name in ("t", "u"):
        pipeline.database.execute(f"CREATE TABLE {name} (key text PRIMARY KEY, value int)")
    pipeline.database.execute("INSERT INTO t SELECT 'row ' || n, n FROM generate_series(1, 50) n")
    stores = StorePipeline(pipeline, spark, {"cache": {"kind": "redis", "url": redis_url}})
    capture = pipeline.start()
    pipeline.database.execute("INSERT INTO t VALUES ('new', 1)")
    pipeline.database.execute("INSERT INTO u VALUES ('new', 1)")
    pipeline.fence(while_running=capture)
    assert list(states(pipeline).pending) == [pipeline.topic("t")]
    verdict = stores.bootstrap("cache").verdict
    assert not verdict.complete
    assert "never copied" in str(verdict)
    status = run_command("capture", pipeline.config, "--status").stdout
    assert "never copied" in status
    assert "--table public.t" in run_command("check", pipeline.config).stdout
    assert not copy_due(pipeline, spark).is_complete, "it was said that it is not to be copied"
    assert list(states(pipeline).pending) == [pipeline.topic("t")]
    assert copy_due(pipeline, spark, "public.t").is_complete
    pipeline.assert_same("t", "u", while_running=capture)
    assert stores.bootstrap("cache").verdict.complete
