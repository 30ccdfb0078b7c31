"""Rows that capture cannot publish are absent instead of stale, counted everywhere, and settled when they fit.

`tests/acceptance/monitoring/test_parked_in_stores.py` tests how stores, audits and bootstraps show them.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from cdc.check.all_checks import inspect
from cdc.check.findings import Finding, Level
from cdc.config import load_config
from cdc.kafka.control_topics import write_records
from cdc.names import Control, control_topic
from cdc.tables.state_reader import read_recorded_states
from spark_jobs.tasks.parked_rows import read_parked
from tests.acceptance.snapshot.test_incremental_snapshot import ChunkwiseSnapshot
from tests.harness.kafka.records import Record
from tests.harness.kafka.topics import delete_topic
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.processes.process import Process, StartProcess
from tests.harness.processes.waiting import eventually

LIMIT = {"max_message_bytes": 20_000}
LARGE = "repeat('x', 100000)"
V1 = "0000000000000001.00000001"


def _parked(pipeline: Pipeline) -> list[tuple[str, str]]:
    """Topic and key of the parked rows, oldest first."""
    return [(row.topic, row.key) for row in read_parked(load_config(pipeline.config)) if not row.store]


def _keys(pipeline: Pipeline) -> list[str]:
    return [key for _, key in _parked(pipeline)]


def _last(pipeline: Pipeline, table: str) -> dict[bytes, Record]:
    return {record.key: record for record in pipeline.records(table)}


def _fenced(pipeline: Pipeline, capture: Process, sql: str) -> None:
    pipeline.database.execute(sql)
    pipeline.fence(while_running=capture)


def _copied(pipeline: Pipeline, capture: Process) -> None:
    """Run an incremental snapshot of table t."""
    assert ChunkwiseSnapshot.of(pipeline, "t").whole().done
    pipeline.fence(while_running=capture)


def _recorded(pipeline: Pipeline) -> dict[str, int]:
    """The parked rows that the progress record counts, by topic."""
    found: dict[str, int] = pipeline.progress_records()[-1]["parked"]
    return found


@pytest.fixture
def limited(make_pipeline: MakePipeline) -> Pipeline:
    """Table t with three small rows, not captured yet; records of more than 20,000 bytes are parked."""
    pipeline = make_pipeline(kafka=LIMIT)
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    return pipeline


def test_a_row_that_grows_too_large_is_absent_and_comes_back_when_it_fits(limited: Pipeline) -> None:
    """A parked row's old state is removed: its key gets a delete with the reason `parked` and a tombstone, at its
    version.
    """
    capture = limited.start()
    _fenced(limited, capture, "INSERT INTO t SELECT i, 'small' FROM generate_series(1, 3) i")
    _fenced(limited, capture, f"UPDATE t SET v = {LARGE} WHERE id = 2; INSERT INTO t VALUES (4, {LARGE})")
    assert _keys(limited) == ['{"id":2}', '{"id":4}']
    assert _recorded(limited) == {limited.topic("t"): 2}
    marker, tombstone = [record for record in limited.records("t") if record.key == b'{"id":2}'][-2:]
    assert (marker.op, marker.value["after"], marker.value["source"]["parked"]) == ("d", None, True)
    assert marker.value["source"]["seq"] == 1
    assert tombstone.value is None
    assert tombstone.version == marker.version
    capture.kill()
    capture = limited.start()
    assert _keys(limited) == ['{"id":2}', '{"id":4}'], "a restart forgets nothing"
    # In one transaction, so that rows come in one run: what fits after what does not, and the other way round.
    _fenced(
        limited,
        capture,
        f"BEGIN; UPDATE t SET v = {LARGE} WHERE id = 2; UPDATE t SET v = 'fits' WHERE id = 2; COMMIT;"
        f"BEGIN; UPDATE t SET v = 'fits' WHERE id = 4; UPDATE t SET v = {LARGE} WHERE id = 4; COMMIT",
    )
    assert _keys(limited) == ['{"id":4}']
    _fenced(limited, capture, "UPDATE t SET v = 'fits' WHERE id = 4")
    assert _keys(limited) == []
    assert _recorded(limited) == {}
    limited.assert_same("t", while_running=capture)


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_what_is_deleted_truncated_or_dropped_is_parked_no_longer(limited: Pipeline, identity: str) -> None:
    """A delete is published even if its `before` is too large, and a changed key leaves no parked row under the old
    key.
    """
    database = limited.database
    database.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}; CREATE TABLE gone (id int PRIMARY KEY, v text)")
    capture = limited.start()
    _fenced(limited, capture, f"INSERT INTO t SELECT i, {LARGE} FROM generate_series(1, 4) i")
    assert len(_keys(limited)) == 4
    _fenced(limited, capture, "DELETE FROM t WHERE id = 1; UPDATE t SET id = 20 WHERE id = 2")
    assert _keys(limited) == ['{"id":3}', '{"id":4}', '{"id":20}']
    assert _last(limited, "t")[b'{"id":2}'].value is None
    _fenced(limited, capture, f"BEGIN; TRUNCATE t; INSERT INTO t VALUES (4, {LARGE}), (5, 'small'); COMMIT")
    assert _keys(limited) == ['{"id":4}']
    _fenced(limited, capture, "UPDATE t SET v = 'fits' WHERE id = 4")
    assert _keys(limited) == []
    limited.assert_same("t", while_running=capture)
    _fenced(limited, capture, f"INSERT INTO gone VALUES (1, {LARGE})")
    assert _parked(limited) == [(limited.topic("gone"), '{"id":1}')]
    database.execute("DROP TABLE gone")
    capture.wait_for(lambda: _keys(limited) == [], 30, "the dropped table's row to be settled")


def test_a_key_that_is_too_long_for_a_record_is_settled_by_its_delete(limited: Pipeline) -> None:
    """Two keys that differ only after the first 512 bytes are two parked rows."""
    database = limited.database
    database.execute("CREATE TABLE k (id text PRIMARY KEY, v text)")
    capture = limited.start()
    _fenced(limited, capture, "INSERT INTO k SELECT repeat('k', 25000) || i, 'small' FROM generate_series(1, 2) i")
    assert len(_keys(limited)) == 2
    _fenced(limited, capture, "DELETE FROM k WHERE id LIKE '%1'")
    assert len(_keys(limited)) == 1
    capture.kill()
    capture = limited.start()
    _fenced(limited, capture, "DELETE FROM k; INSERT INTO k VALUES ('short', 'small')")
    assert _keys(limited) == []
    assert set(_last(limited, "k")) == {b'{"id":"short"}'}


def test_snapshots_park_and_settle(limited: Pipeline) -> None:
    """A snapshot parks a row that is too large and removes its stale state; a later one that finds it small or gone
    settles it.
    """
    database = limited.database
    database.execute(f"INSERT INTO t VALUES (1, 'small'), (2, {LARGE}), (3, repeat('y', 19500)), (4, 'small')")
    capture = limited.start()
    _copied(limited, capture)
    assert sorted(_keys(limited)) == ['{"id":2}', '{"id":3}']
    assert {key for key, record in _last(limited, "t").items() if record.value is not None and record.op == "r"} == {
        b'{"id":1}',
        b'{"id":4}',
    }
    # The changes themselves are taken away: the rows come by the copy alone.
    _fenced(limited, capture, "UPDATE t SET v = 'small' WHERE id = 2; DELETE FROM t WHERE id = 3")
    assert _keys(limited) == []
    _fenced(limited, capture, f"UPDATE t SET v = {LARGE} WHERE id = 4")
    _copied(limited, capture)
    assert _keys(limited) == ['{"id":4}']
    assert _last(limited, "t")[b'{"id":4}'].value is None


def test_a_raised_limit_and_a_retry_settle_them(limited: Pipeline, tailrace: StartProcess) -> None:
    """Parked rows are shown by `lag`, `check` and exit codes, and a retry publishes them once the limit is raised."""
    capture = limited.start()
    _fenced(limited, capture, f"INSERT INTO t VALUES (1, 'small'), (2, {LARGE}), (3, {LARGE})")
    where = ("--config", str(limited.config))
    listed = tailrace("parked", "list", *where)
    listed.expect_exit(1, 60)
    assert '{"id":2}' in listed.output
    lag = tailrace("lag", "--json", *where)
    lag.expect_exit(1, 60)
    record = json.loads(lag.output)
    assert record["topics"]["parked"] == 2
    assert record["topics"]["health"]["state"] == "parked"
    assert [table["parked"] for table in record["tables"]] == [2]
    (finding,) = _warnings(limited, "parked")
    assert "2 rows" in finding.what
    assert "tailrace parked" in (finding.remedy or "")
    still = tailrace("parked", "retry", *where)
    still.expect_exit(1, 60)
    assert still.output.count("still parked") == 2
    capture.stop()
    limited.configure(kafka={"max_message_bytes": 500_000})
    capture = limited.start()
    retried = tailrace("parked", "retry", "--json", *where)
    retried.expect_exit(0, 60)
    assert [each["settled"] for each in json.loads(retried.output)] == [True, True]
    tailrace("parked", "list", *where).expect_exit(0, 60)
    eventually(lambda: _lag(limited, tailrace) == (0, "ok"), 60, "all to be well")
    assert _warnings(limited, "parked") == []
    limited.assert_same("t", while_running=capture)


def _warnings(pipeline: Pipeline, word: str) -> list[Finding]:
    findings = inspect(load_config(pipeline.config))
    return [each for each in findings if each.level is Level.WARN and word in each.what]


def _lag(pipeline: Pipeline, tailrace: StartProcess) -> tuple[int, str]:
    process = tailrace("lag", "--json", "--config", str(pipeline.config))
    code = process.wait(60)
    record: dict[str, Any] = json.loads(process.output)
    return code, record["topics"]["health"]["state"]


def test_a_lost_log_of_parked_rows_makes_the_table_incomplete(limited: Pipeline) -> None:
    """Without the parked topic the missing rows are unknown, so the table is incomplete and the next snapshot parks
    them again.
    """
    capture = limited.start()
    _fenced(limited, capture, f"INSERT INTO t VALUES (1, 'small'), (2, {LARGE})")
    capture.stop()
    delete_topic(limited.bootstrap, control_topic(limited.prefix, Control.PARKED))
    capture = limited.start()
    limited.fence(while_running=capture)
    states = read_recorded_states(load_config(limited.config))
    assert states is not None
    assert "parked" in states.pending[limited.topic("t")].reason
    _copied(limited, capture)
    assert _keys(limited) == ['{"id":2}']


def test_what_an_older_tailrace_parked_is_counted_and_settled(limited: Pipeline) -> None:
    """An entry of release 0.1, which has no state, counts as parked until the row changes or is retried."""
    capture = limited.start()
    _fenced(limited, capture, "INSERT INTO t VALUES (1, 'small'), (2, 'small')")
    capture.stop()
    options = load_config(limited.config).kafka.client_options()
    old = {"format": 1, "topic": limited.topic("t"), "key": '{"id":2}', "reason": "record of 9 bytes", "version": V1}
    parked_topic = control_topic(limited.prefix, Control.PARKED)
    write_records(options, parked_topic, [(b'{"id":2}', json.dumps(old).encode())])
    progress = {**limited.progress_records()[-1], "format": 2}
    del progress["parked"]
    progress_topic = control_topic(limited.prefix, Control.PROGRESS)
    write_records(options, progress_topic, [(b"progress", json.dumps(progress).encode())])
    capture = limited.start()
    limited.fence(while_running=capture)
    assert _recorded(limited) == {limited.topic("t"): 1}
    _fenced(limited, capture, "UPDATE t SET v = 'changed' WHERE id = 2")
    assert _recorded(limited) == {}
    assert _keys(limited) == []


def test_a_table_that_is_removed_leaves_nothing_parked(limited: Pipeline, tailrace: StartProcess) -> None:
    """Removing a table settles its parked rows; a table that is added again starts with none."""
    limited.database.execute("CREATE TABLE kept (id int PRIMARY KEY)")
    limited.configure(kafka=LIMIT, source={"tables": ["public.t", "public.kept"]})
    capture = limited.start()
    _fenced(limited, capture, f"INSERT INTO t VALUES (1, {LARGE})")
    capture.stop()
    limited.configure(kafka=LIMIT, source={"tables": ["public.kept"]})
    removed = tailrace("remove", "--table", "public.t", "--yes", "--config", str(limited.config))
    removed.expect_exit(0, 60)
    assert _keys(limited) == []
    capture = limited.start()
    limited.fence(while_running=capture)
    assert _recorded(limited) == {}
