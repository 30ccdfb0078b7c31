"""Capture killed at critical moments loses no row, publishes none twice, and keeps each key's order."""

from __future__ import annotations

from collections.abc import Callable
from signal import SIGCONT, SIGKILL, SIGSTOP

import psycopg

from cdc.lsn import LSN
from cdc.names import Control, control_topic
from deploy.stack import Stack
from tests.harness.kafka.records import read_topic
from tests.harness.kafka.topics import list_topics
from tests.harness.network.proxy import Proxy
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline
from tests.harness.postgres.background_writer import SCHEMA, Writer
from tests.harness.postgres.database import Database
from tests.harness.processes.process import Process
from tests.harness.processes.waiting import eventually

_POWER_CUTS = 6
_ROWS_PER_CUT = 20_000


def _insert(database: Database, first: int, last: int) -> None:
    """Insert these rows in one transaction."""
    database.execute(
        "INSERT INTO items SELECT n, mod(n, 7), 'note ' || n FROM generate_series(%s::int, %s) AS n", [first, last]
    )


def _copy(database: Database, first: int, last: int) -> None:
    """COPY these rows in one transaction; the rows share LSNs, because COPY writes many rows with one WAL record."""
    with database.connect() as connection, connection.cursor().copy("COPY items FROM STDIN") as copy:
        for number in range(first, last + 1):
            copy.write_row((number, number % 7, f"note {number}"))


def test_killed_at_every_step_of_the_first_start(make_pipeline: MakePipeline) -> None:
    """Killed after each step of the first start (publication, topics, record, slot), capture continues at the next
    start.
    """
    pipeline = make_pipeline()
    database = pipeline.database
    database.execute(SCHEMA)
    steps: list[Callable[[], object]] = [
        lambda: f"{pipeline.prefix}.__progress" in list_topics(pipeline.bootstrap),
        lambda: database.execute("SELECT 1 FROM pg_publication"),
        lambda: pipeline.topic("items") in list_topics(pipeline.bootstrap),
        pipeline.progress_records,
        lambda: database.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", [pipeline.slot_name]),
        pipeline.published_to,
    ]
    for number, step in enumerate(steps):
        capture = pipeline.launch()
        capture.wait_for(step, what=f"step {number}")
        capture.kill()
        _insert(database, number, number)
    capture = pipeline.start()
    database.execute("UPDATE items SET grp = grp + 1")
    pipeline.assert_same("items", while_running=capture)


def test_killed_in_the_middle_of_a_transaction(
    make_pipeline: MakePipeline, stack: Stack, start_proxy: Callable[[str, int], Proxy]
) -> None:
    """After `kill -9` while a transaction is published, readers see none of its rows in any topic, and later all of
    them.

    Capture cannot have received COMMIT: the connection is slow, and the proxy freezes it after the first rows.
    """
    postgres = stack.server("postgres")
    proxy = start_proxy(postgres.host, postgres.port)
    pipeline = make_pipeline(proxy=proxy)
    pipeline.database.execute(SCHEMA)
    pipeline.database.execute("CREATE TABLE others (id int PRIMARY KEY)")
    capture = pipeline.start()
    proxy.limit(400_000)
    with pipeline.database.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO others SELECT generate_series(1, 20000)")
        connection.execute("INSERT INTO items SELECT n, 0, 'first' FROM generate_series(1, 20000) n")
    capture.wait_for(lambda: pipeline.end_offsets("others") > 0, what="rows on their way")
    proxy.blackhole()
    capture.kill()
    assert 0 < pipeline.end_offsets("others") + pipeline.end_offsets("items") < 40_000
    assert [pipeline.rows_published(table) for table in ("others", "items")] == [0, 0]
    proxy.cut()
    proxy.restore()
    pipeline.database.execute("UPDATE items SET note = 'again' WHERE id <= 1000")
    capture = pipeline.start()
    records = pipeline.assert_same("others", "items", while_running=capture)
    assert (len(records["others"]), len(records["items"])) == (20_000, 21_000)


def test_killed_or_stopped_inside_one_copy(
    make_pipeline: MakePipeline, stack: Stack, start_proxy: Callable[[str, int], Proxy]
) -> None:
    """Rows of one COPY share an LSN: when capture ends after k of n of them, the rest follow, none skipped and none
    twice.
    """
    postgres = stack.server("postgres")
    proxy = start_proxy(postgres.host, postgres.port)
    pipeline = make_pipeline(proxy=proxy, capture={"transaction_events": 1000})
    pipeline.database.execute(SCHEMA)
    capture = pipeline.start()
    proxy.limit(500_000)  # about five seconds for the whole COPY, so that capture ends inside it
    _copy(pipeline.database, 1, 30_000)
    for end in (Process.kill, Process.terminate, Process.kill):
        before, reached = pipeline.rows_published("items"), pipeline.end_offsets("items")
        # Three transactions' worth of records: at least one transaction is committed.
        capture.wait_for(lambda: pipeline.end_offsets("items") > reached + 3000, what="more rows")  # noqa: B023
        end(capture)
        capture.wait()
        assert before < pipeline.rows_published("items") < 30_000, "capture did not end inside the COPY"
        capture = pipeline.start()
    proxy.restore()
    records = pipeline.assert_same("items", while_running=capture)
    assert len(records["items"]) == 30_000


def test_killed_between_kafkas_commit_and_the_slots_confirmation(
    make_pipeline: MakePipeline, stack: Stack, start_proxy: Callable[[str, int], Proxy]
) -> None:
    """The slot is confirmed only after Kafka's commit, and what the slot sends again is not published again."""
    postgres = stack.server("postgres")
    proxy = start_proxy(postgres.host, postgres.port)
    # No heartbeat but the first: nothing but our own rows moves the slot.
    pipeline = make_pipeline(proxy=proxy, source={"heartbeat_seconds": 3600})
    pipeline.database.execute(SCHEMA)
    capture = pipeline.start()
    # What asks the source is through before: the first heartbeat, and the table's first row.
    positions = control_topic(pipeline.prefix, Control.POSITIONS)
    capture.wait_for(lambda: read_topic(pipeline.bootstrap, positions), what="the first heartbeat")
    _insert(pipeline.database, 0, 0)
    pipeline.fence(while_running=capture)
    stack.stop("kafka", SIGSTOP)
    try:
        for first in (1, 101, 201):
            _insert(pipeline.database, first, first + 99)
        lsn = pipeline.database.lsn()
        capture.wait_for(lambda: _sent(pipeline) >= lsn, what="the server to have sent the rows")
        _round_trip(pipeline, proxy)
        assert pipeline.slot().confirmed < lsn, "the slot was confirmed while Kafka was frozen"
        proxy.blackhole()  # the rows are through; no confirmation will be
    finally:
        stack.stop("kafka", SIGCONT)
    capture.wait_for(lambda: pipeline.rows_published("items") == 301, what="the rows in the topic")
    unconfirmed = pipeline.slot().confirmed
    capture.kill()
    proxy.cut()
    proxy.restore()
    assert unconfirmed < lsn
    assert pipeline.slot().confirmed == unconfirmed
    capture = pipeline.start()
    pipeline.database.execute("DELETE FROM items WHERE id BETWEEN 1 AND 50")
    records = pipeline.assert_same("items", while_running=capture)
    assert len(records["items"]) == 301 + 2 * 50


def test_a_long_transaction_commits_after_a_short_one_with_a_crash_between(make_pipeline: MakePipeline) -> None:
    """Confirming a short transaction does not skip the earlier rows of a long one that is still open."""
    pipeline = make_pipeline()
    pipeline.database.execute(SCHEMA)
    capture = pipeline.start()
    long = pipeline.database.connect(autocommit=False)
    long.execute("INSERT INTO items VALUES (1, 0, 'long'), (2, 0, 'long')")
    _insert(pipeline.database, 3, 10)
    pipeline.fence(while_running=capture)
    capture.kill()
    long.execute("UPDATE items SET note = 'long after the crash' WHERE id = 2")
    long.commit()
    capture = pipeline.start()
    records = pipeline.assert_same("items", while_running=capture)
    assert len(records["items"]) == 8 + 3


def test_killed_again_and_again_under_load(make_pipeline: MakePipeline) -> None:
    """Killed at random moments while clients write, capture ends with an equal topic and each event in it once."""
    pipeline = make_pipeline(capture={"transaction_events": 20})
    pipeline.database.execute(SCHEMA)
    capture = pipeline.start()
    pipeline.fence(while_running=capture)  # rows that are older than the slot would not be in the topic
    with Writer(pipeline.database) as writer:
        for number in range(3):
            writer.wait_for_more(20 + 37 * number)
            capture.kill()
            capture = pipeline.start()
    pipeline.assert_same("items", while_running=capture)


def test_power_cut_of_capture_and_server(
    make_pipeline: MakePipeline, stack: Stack, start_proxy: Callable[[str, int], Proxy]
) -> None:
    """After a crash the server's slot is behind what was confirmed; progress does not fall, and no row is published
    twice.
    """
    postgres = stack.server("postgres")
    proxy = start_proxy(postgres.host, postgres.port)
    pipeline = make_pipeline(proxy=proxy, capture={"transaction_events": 1000})
    pipeline.database.execute(SCHEMA)
    # The server writes its slots to disk about every 15 seconds; a cut right after that throws nothing back.
    rows = 0
    for _ in range(_POWER_CUTS):
        confirmed = _cut_power(pipeline, stack, proxy, rows + 1)
        rows += _ROWS_PER_CUT
        if eventually(lambda: _slot_after_restart(pipeline)) < confirmed:
            break
        proxy.restore()
    else:
        raise AssertionError(f"the slot did not fall back in {_POWER_CUTS} power cuts: no test")
    # Slowly again: what is sent again arrives in pieces, and each piece is a chance to write a wrong progress.
    known = len(pipeline.progress_records())
    capture = pipeline.start()
    _insert(pipeline.database, rows + 1, rows + 10)
    capture.wait_for(lambda: len(pipeline.progress_records()) > known + 1, what="more progress")
    capture.kill()
    proxy.restore()
    capture = pipeline.start()
    records = pipeline.assert_same("items", while_running=capture)
    assert len(records["items"]) == rows + 10


def _cut_power(pipeline: Pipeline, stack: Stack, proxy: Proxy, first: int) -> LSN:
    """Confirm small transactions, publish part of a large one, kill capture and the server; returns the confirmed
    LSN.
    """
    capture = pipeline.start()
    for number in range(first, first + 50):
        _insert(pipeline.database, number, number)
    lsn = pipeline.fence(while_running=capture)
    capture.wait_for(lambda: pipeline.slot().confirmed >= lsn, what="the slot to be confirmed")
    proxy.limit(400_000)
    _insert(pipeline.database, first + 50, first + _ROWS_PER_CUT - 1)
    capture.wait_for(lambda: pipeline.rows_published("items") > first + 50, what="part of the large transaction")
    capture.kill()
    confirmed = pipeline.slot().confirmed
    stack.stop("postgres", SIGKILL)
    stack.start("postgres")
    return confirmed


def _sent(pipeline: Pipeline) -> LSN:
    query = "SELECT sent_lsn::text FROM pg_stat_replication WHERE pid = %s"
    ((lsn,),) = pipeline.database.execute(query, [pipeline.slot().pid])
    return LSN.parse(lsn)


def _round_trip(pipeline: Pipeline, proxy: Proxy) -> None:
    """Wait until the proxy has forwarded everything that it received before this call."""
    with psycopg.connect(pipeline.database.dsn, host=proxy.host, port=proxy.port) as connection:
        for _ in range(3):
            connection.execute("SELECT 1")


def _slot_after_restart(pipeline: Pipeline) -> LSN:
    try:
        return pipeline.slot().confirmed
    except psycopg.OperationalError:
        raise AssertionError("the old connection is gone") from None
