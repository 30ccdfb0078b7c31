"""The re-select during a commit that is streamed before it is visible, and during a migration that locks its table."""

from __future__ import annotations

import pytest

from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.postgres.slow_commits import SlowCommits
from tests.harness.processes.waiting import eventually

TOASTED = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 300))"


@pytest.mark.parametrize("released", ["standby given up", "cancelled"])
def test_an_invisible_commit_is_waited_for(
    make_pipeline: MakePipeline, slow_commits: SlowCommits, released: str
) -> None:
    """The re-select waits until a commit is visible, so that it never publishes an old value under the new version."""
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, big text)")
    database.execute(
        "CREATE TABLE d (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, who text);"
        "ALTER TABLE d REPLICA IDENTITY FULL"
    )
    capture = pipeline.start()
    database.execute(f"INSERT INTO t SELECT i, 1, {TOASTED} FROM generate_series(1, 3) i")
    database.execute("INSERT INTO d VALUES (1, 'x'), (2, 'y'), (3, 'z')")
    pipeline.fence(while_running=capture)
    before = len(pipeline.records("t"))

    slow_commits.begin()
    # The second update leaves the new long value out of the stream: a query that comes too early gets the old one.
    slow_commits.commit(f"UPDATE t SET big = {TOASTED} || id; UPDATE t SET n = 2; UPDATE d SET id = 4 - id")
    _wait_for_the_reselect(pipeline)
    assert len(pipeline.records("t")) == before, "nothing of it may be published yet"
    database.execute("INSERT INTO t VALUES (4, 4, 'after it')")
    release = slow_commits.cancel if released == "cancelled" else slow_commits.end
    release()

    pipeline.assert_same("t", "d", while_running=capture)


def test_stopping_does_not_wait_for_an_invisible_commit(make_pipeline: MakePipeline, slow_commits: SlowCommits) -> None:
    """SIGTERM ends a capture that waits for visibility; the next one waits again and publishes the right value."""
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, big text)")
    capture = pipeline.start()
    database.execute(f"INSERT INTO t VALUES (1, 1, {TOASTED})")
    pipeline.fence(while_running=capture)

    slow_commits.begin()
    slow_commits.commit(f"UPDATE t SET big = {TOASTED}; UPDATE t SET n = 2")
    _wait_for_the_reselect(pipeline)
    capture.terminate()
    capture.expect_exit(0, 30)
    again = pipeline.start()
    _wait_for_the_reselect(pipeline)
    assert len(pipeline.records("t")) == 1
    slow_commits.end()

    pipeline.assert_same("t", while_running=again)


@pytest.mark.parametrize("migration", ["ALTER TABLE t RENAME big TO body", "ALTER TABLE t RENAME TO u", "DROP TABLE t"])
def test_a_migration_under_a_waiting_re_select_stops_nothing(make_pipeline: MakePipeline, migration: str) -> None:
    """The re-select waits for the migration's lock, then queries the migrated table, in one capture session."""
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, big text); CREATE TABLE other (id int PRIMARY KEY)")
    capture = pipeline.start()
    database.execute(f"INSERT INTO t VALUES (1, 1, {TOASTED})")
    pipeline.fence(while_running=capture)

    capture.freeze()
    database.execute("UPDATE t SET n = 2")
    migrating = database.connect(autocommit=False)
    migrating.execute(migration)
    capture.thaw()
    waiting = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND query ILIKE '%from only%'"
    )
    capture.wait_for(lambda: database.execute(waiting), 30, "the question to wait for the migration")
    migrating.commit()

    database.execute("INSERT INTO other VALUES (1)")
    pipeline.assert_same("other", while_running=capture)
    assert pipeline.sessions(capture) == 1


def _wait_for_the_reselect(pipeline: Pipeline) -> None:
    """The re-select's session is one that takes a snapshot and rolls back repeatedly."""
    query = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND (query ILIKE 'ROLLBACK%' OR query ILIKE '%pg_current_snapshot%')"
    )
    eventually(lambda: pipeline.database.execute(query), 30, "the re-select to ask")
