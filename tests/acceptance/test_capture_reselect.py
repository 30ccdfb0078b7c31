"""The re-select, while a commit is streamed that nobody can see yet: a synchronous standby does not answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from tests.harness.database import Database
from tests.harness.pipeline import MakePipeline, Pipeline
from tests.harness.waiting import eventually

TOASTED = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 300))"


class SlowCommits:
    """While they last, a commit is in the log (and streamed), but hidden from everybody until it is let go."""

    def __init__(self, postgres_url: str, database: Database) -> None:
        self._admin = psycopg.connect(postgres_url, autocommit=True)
        self._database = database
        self._threads: list[threading.Thread] = []
        # The test's own session must not wait; those of `commit` do.
        database.execute("SET synchronous_commit = local")

    def begin(self) -> None:
        self._admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        self._admin.execute("SELECT pg_reload_conf()")
        eventually(self._probe_waits, 30, "commits to wait for the standby")
        self.cancel()

    def commit(self, statements: str) -> None:
        """Comes back when the commit is in the log and waits."""
        self._start(f"BEGIN; {statements}; COMMIT")
        eventually(self._somebody_waits, 30, "the commit to wait")

    def _probe_waits(self) -> bool:
        """The setting takes effect a moment after the reload."""
        self._start("SELECT pg_logical_emit_message(true, 'test.probe', '')")
        eventually(lambda: self._somebody_waits() or not self._threads[-1].is_alive(), 30, "the probe")
        return self._somebody_waits()

    def _start(self, statements: str) -> None:
        self._threads.append(threading.Thread(target=self._database.connect().execute, args=(statements,)))
        self._threads[-1].start()

    def _somebody_waits(self) -> bool:
        query = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = current_database()"
        return bool(self._database.execute(query))

    def cancel(self) -> None:
        """As an operator would: the commit stands, although no standby has it."""
        self._admin.execute(
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = %s",
            [self._database.name],
        )
        self._join()

    def end(self) -> None:
        self._admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
        self._admin.execute("SELECT pg_reload_conf()")
        self._join()

    def close(self) -> None:
        self.end()
        self._admin.close()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), "the commit still waits"
        self._threads.clear()


@pytest.fixture
def slow_commits(postgres_url: str, database: Database) -> Iterator[SlowCommits]:
    slow = SlowCommits(postgres_url, database)
    yield slow
    slow.close()


@pytest.mark.parametrize("released", ["standby given up", "cancelled"])
def test_an_invisible_commit_is_waited_for(
    make_pipeline: MakePipeline, slow_commits: SlowCommits, released: str
) -> None:
    """Completing its event from before it is visible would publish the old value under the new version, for ever."""
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
    # The second update leaves the new long value out of the stream: whoever asks too early gets the old one.
    slow_commits.commit(f"UPDATE t SET big = {TOASTED} || id; UPDATE t SET n = 2; UPDATE d SET id = 4 - id")
    _wait_for_the_question(pipeline)
    assert len(pipeline.records("t")) == before, "nothing of it may be published yet"
    database.execute("INSERT INTO t VALUES (4, 4, 'after it')")
    release = slow_commits.cancel if released == "cancelled" else slow_commits.end
    release()

    pipeline.assert_same("t", "d", while_running=capture)


def test_stopping_does_not_wait_for_an_invisible_commit(make_pipeline: MakePipeline, slow_commits: SlowCommits) -> None:
    """SIGTERM ends a capture that waits; the next one waits again, and publishes the right value."""
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, big text)")
    capture = pipeline.start()
    database.execute(f"INSERT INTO t VALUES (1, 1, {TOASTED})")
    pipeline.fence(while_running=capture)

    slow_commits.begin()
    slow_commits.commit(f"UPDATE t SET big = {TOASTED}; UPDATE t SET n = 2")
    _wait_for_the_question(pipeline)
    capture.terminate()
    capture.expect_exit(0, 30)
    again = pipeline.start()
    _wait_for_the_question(pipeline)
    assert len(pipeline.records("t")) == 1
    slow_commits.end()

    pipeline.assert_same("t", while_running=again)


def _wait_for_the_question(pipeline: Pipeline) -> None:
    """The re-select's session is one that looks at its snapshot and rolls back, again and again."""
    query = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND (query ILIKE 'ROLLBACK%' OR query ILIKE '%pg_current_snapshot%')"
    )
    eventually(lambda: pipeline.database.execute(query), 30, "the re-select to ask")
