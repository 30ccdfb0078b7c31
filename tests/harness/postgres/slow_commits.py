"""Commits that are streamed before they are visible, because a synchronous standby does not answer."""

from __future__ import annotations

import threading

import psycopg

from tests.harness.postgres.database import Database
from tests.harness.processes.waiting import eventually


class SlowCommits:
    """Until the block ends, a commit is in the log and streamed, but invisible until it is released."""

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
        """Returns when the commit is in the log and waits for the standby."""
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
        """Cancel the wait as an operator would: the commit stays, although no standby has it."""
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
