"""Capture killed, cut off and starved at the worst moments: every row arrives, and none arrives twice."""

from __future__ import annotations

from collections.abc import Callable
from signal import SIGCONT, SIGINT, SIGKILL, SIGSTOP

from deploy.stack import Stack
from tests.harness.database import Database
from tests.harness.pipeline import MakePipeline, Pipeline
from tests.harness.process import Process
from tests.harness.proxy import Proxy
from tests.harness.waiting import eventually

_TABLE = "CREATE TABLE items (id int PRIMARY KEY, grp int NOT NULL, note text)"


def _insert(database: Database, first: int, last: int) -> None:
    """One transaction."""
    database.execute(
        "INSERT INTO items SELECT n, n % 7, 'note ' || n FROM generate_series(%s::int, %s) AS n", [first, last]
    )


def _copy(database: Database, first: int, last: int) -> None:
    """One transaction whose rows share LSNs: COPY writes many rows with one WAL record."""
    with database.connect() as connection, connection.cursor().copy("COPY items FROM STDIN") as copy:
        for number in range(first, last + 1):
            copy.write_row((number, number % 7, f"note {number}"))


def test_killed_in_the_middle_of_a_transaction(make_pipeline: MakePipeline) -> None:
    """`kill -9` while a transaction is being published: readers see nothing of it, and after a restart all of it."""
    pipeline = make_pipeline()
    pipeline.database.execute(_TABLE)
    capture = pipeline.start()
    _insert(pipeline.database, 1, 50_000)
    capture.wait_for(lambda: _unconfirmed_bytes(pipeline) > 0, what="rows on their way")
    capture.kill()
    assert pipeline.rows_published("items") in (0, 50_000)
    pipeline.database.execute("UPDATE items SET note = 'again' WHERE id <= 1000")
    capture = pipeline.start()
    pipeline.assert_same("items", while_running=capture)
    assert pipeline.rows_published("items") == 51_000


def test_killed_inside_one_copy_again_and_again(make_pipeline: MakePipeline) -> None:
    """Rows of one COPY share an LSN: killed after k of n of them, the rest follow, none skipped and none twice."""
    pipeline = make_pipeline(capture={"transaction_events": 1000})
    pipeline.database.execute(_TABLE)
    capture = pipeline.start()
    _copy(pipeline.database, 1, 30_000)
    seen = 0
    for _ in range(3):
        capture.wait_for(lambda: pipeline.rows_published("items") > seen, what="more rows")  # noqa: B023
        capture.kill()
        seen = pipeline.rows_published("items")
        capture = pipeline.start()
    pipeline.assert_same("items", while_running=capture)
    assert pipeline.rows_published("items") == 30_000


def _unconfirmed_bytes(pipeline: Pipeline) -> int:
    """What the server has sent on the slot beyond what capture has confirmed."""
    query = (
        "SELECT sent_lsn - confirmed_flush_lsn FROM pg_stat_replication JOIN pg_replication_slots ON active_pid = pid"
        " WHERE slot_name = %s"
    )
    rows = pipeline.database.execute(query, [pipeline.slot_name])
    return int(rows[0][0]) if rows and rows[0][0] is not None else 0
