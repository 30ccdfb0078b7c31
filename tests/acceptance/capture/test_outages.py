"""When servers die, freeze, stop or lose the network, capture waits and continues, and does not block a server's
shutdown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from signal import SIGCONT, SIGINT, SIGKILL, SIGSTOP

import psycopg
import pytest

from deploy.stack import Stack
from tests.bench.arrivals import Arrivals
from tests.harness.network.proxy import Proxy
from tests.harness.pipeline.pipeline import MakePipeline, Pipeline, peak_memory_bytes
from tests.harness.postgres.background_writer import SCHEMA, Writer
from tests.harness.postgres.database import Database
from tests.harness.processes.process import Process
from tests.harness.processes.waiting import eventually

_LARGEST_MEMORY_BYTES = 256 << 20


@contextmanager
def _frozen(stack: Stack, name: str) -> Iterator[None]:
    stack.stop(name, SIGSTOP)
    try:
        yield
    finally:
        stack.stop(name, SIGCONT)


def _set_wal_sender_timeout(database: Database, value: str) -> None:
    """Set it for replication connections to this database that are opened from now on."""
    database.execute(f"ALTER DATABASE {database.name} SET wal_sender_timeout = '{value}'")


def _insert(database: Database, rows: int) -> None:
    """Insert these rows in one transaction."""
    database.execute("INSERT INTO items SELECT n, mod(n, 7), 'note ' || n FROM generate_series(1, %s) AS n", [rows])


def _wait_for_reply_after(pipeline: Pipeline, capture: Process, seconds: int) -> None:
    """Wait until the server has a status update from capture that was sent at least this long from now."""
    ((later,),) = pipeline.database.execute("SELECT clock_timestamp() + make_interval(secs => %s)", [seconds])
    query = "SELECT count(*) FROM pg_stat_replication WHERE pid = %s AND reply_time >= %s"
    pid = pipeline.slot().pid
    capture.wait_for(
        lambda: pipeline.database.execute(query, [pid, later]) == [(1,)], seconds + 30, "a late status update"
    )


def test_a_broker_stalled_past_wal_sender_timeout(make_pipeline: MakePipeline, stack: Stack) -> None:
    """While the broker stalls for longer than `wal_sender_timeout`, capture answers the server and stays connected."""
    pipeline = make_pipeline()
    pipeline.database.execute(SCHEMA)
    _set_wal_sender_timeout(pipeline.database, "2s")
    capture = pipeline.start()
    walsender = pipeline.slot().pid
    _insert(pipeline.database, 110_000)  # more than go into one Kafka transaction
    capture.wait_for(lambda: pipeline.end_offsets("items") > 0, what="rows on their way")
    with _frozen(stack, "kafka"):
        _wait_for_reply_after(pipeline, capture, 5)
    records = pipeline.assert_same("items", while_running=capture)
    assert pipeline.slot().pid == walsender, "the server hung up"
    assert len(records["items"]) == 110_000
    assert peak_memory_bytes(capture) < _LARGEST_MEMORY_BYTES


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_stays_flat_for_two_million_rows_in_one_transaction(make_pipeline: MakePipeline, stack: Stack) -> None:
    """A transaction of 2 million rows needs no more memory than one of 200,000.

    In both a stalled broker fills every queue.
    """
    pipeline = make_pipeline()
    pipeline.database.execute(SCHEMA)
    _set_wal_sender_timeout(pipeline.database, "5s")
    capture = pipeline.start()

    def peak_after(rows: int) -> int:
        before = pipeline.end_offsets("items")
        _insert(pipeline.database, rows)
        capture.wait_for(lambda: pipeline.end_offsets("items") > before, 120, "rows on their way")
        with _frozen(stack, "kafka"):
            _wait_for_reply_after(pipeline, capture, 12)
        pipeline.fence(400, capture)
        return peak_memory_bytes(capture)

    small = peak_after(200_000)
    pipeline.database.execute("TRUNCATE items")
    pipeline.fence(60, capture)
    arrivals = Arrivals(pipeline.bootstrap, pipeline.prefix, lambda: None)
    before = arrivals.ends("items", committed=True)
    large = peak_after(2_000_000)
    assert pipeline.sessions(capture) == 1, capture.transcript()
    assert large < _LARGEST_MEMORY_BYTES
    assert large < small * 1.1, f"{large >> 20} MB for 2 million rows, {small >> 20} MB for 200,000"
    # Each of them is there once. (Offsets count the ends of Kafka transactions, too.)
    assert arrivals.count("items", before) == 2_000_000
    pipeline.assert_progress_rises()


def test_broker_killed_and_restarted_under_load(make_pipeline: MakePipeline, stack: Stack) -> None:
    """After `kill -9` of the broker nothing that it acknowledged is lost or published twice."""
    pipeline = make_pipeline()
    pipeline.database.execute(SCHEMA)
    capture = pipeline.start()
    with Writer(pipeline.database) as writer:
        writer.wait_for_more()
        stack.stop("kafka", SIGKILL)
        try:
            writer.wait_for_more()
        finally:
            stack.start("kafka")
    pipeline.assert_same("items", deadline_seconds=120, while_running=capture)


def test_broker_frozen_past_the_transaction_timeout(make_pipeline: MakePipeline, stack: Stack) -> None:
    """When a stall outlasts the Kafka transaction timeout, the rows are published once."""
    pipeline = make_pipeline(capture={"transaction_timeout_seconds": 5})
    pipeline.database.execute(SCHEMA)
    capture = pipeline.start()
    with Writer(pipeline.database) as writer:
        writer.wait_for_more()
        with _frozen(stack, "kafka"):
            until = time.monotonic() + 7
            # Not for a reply to the server: a commit that was at its very end is given up after five seconds.
            capture.wait_for(lambda: time.monotonic() > until, what="the stall to last longer")
        writer.wait_for_more()
    pipeline.assert_same("items", deadline_seconds=120, while_running=capture)


def test_network_cut_without_a_reset(
    make_pipeline: MakePipeline, stack: Stack, start_proxy: Callable[[str, int], Proxy]
) -> None:
    """Capture closes a Postgres connection that is open but silent within a limit, and reconnects."""
    postgres = stack.server("postgres")
    proxy = start_proxy(postgres.host, postgres.port)
    pipeline = make_pipeline(proxy=proxy)
    pipeline.database.execute(SCHEMA)
    capture = pipeline.start()
    with Writer(pipeline.database) as writer:
        writer.wait_for_more()
        proxy.blackhole()
        writer.wait_for_more()
        capture.wait_for_line('"retrying"', 90)
        proxy.restore()
        pipeline.wait_for_session(capture, 2, 90)
        writer.wait_for_more()
    pipeline.assert_same("items", while_running=capture)


def test_connections_reset_under_load(
    make_pipeline: MakePipeline, stack: Stack, start_proxy: Callable[[str, int], Proxy]
) -> None:
    """After every Postgres connection is reset several times, capture reconnects without intervention."""
    postgres = stack.server("postgres")
    proxy = start_proxy(postgres.host, postgres.port)
    pipeline = make_pipeline(proxy=proxy)
    pipeline.database.execute(SCHEMA)
    capture = pipeline.start()
    with Writer(pipeline.database) as writer:
        for session in range(2, 5):
            writer.wait_for_more(20)
            proxy.reset_connections()
            pipeline.wait_for_session(capture, session)
    pipeline.assert_same("items", while_running=capture)


@pytest.mark.slow
def test_a_row_that_takes_longer_than_the_longest_silence(
    make_pipeline: MakePipeline, stack: Stack, start_proxy: Callable[[str, int], Proxy]
) -> None:
    """A row that takes longer than the silence limit to arrive counts as traffic, and does not cause a reconnect."""
    postgres = stack.server("postgres")
    proxy = start_proxy(postgres.host, postgres.port)
    pipeline = make_pipeline(proxy=proxy)
    pipeline.database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    capture = pipeline.start()
    walsender = pipeline.slot().pid
    proxy.limit(200_000)
    pipeline.database.execute(
        "INSERT INTO t SELECT 1, string_agg(md5(n::text), '') FROM generate_series(1, 7000000 / 32) AS n"
    )
    pipeline.assert_same("t", while_running=capture, deadline_seconds=120)
    assert pipeline.slot().pid == walsender, "it hung up"


@pytest.mark.parametrize("kafka", ["up", "frozen", pytest.param("killed", marks=pytest.mark.slow)])
def test_a_server_that_stops_is_not_held_up(make_pipeline: MakePipeline, stack: Stack, kafka: str) -> None:
    """`pg_ctl stop -m fast` ends while rows are being sent, with Kafka up or down; afterwards nothing is missing."""
    pipeline = make_pipeline()
    pipeline.database.execute(SCHEMA)
    # A server that waited for capture would wait for ever, and not until it loses patience.
    _set_wal_sender_timeout(pipeline.database, "0")
    capture = pipeline.start()
    with Writer(pipeline.database, survives=True) as writer:
        writer.wait_for_more()
        try:
            if kafka != "up":
                stack.stop("kafka", {"frozen": SIGSTOP, "killed": SIGKILL}[kafka])
                writer.wait_for_more(500)
            try:
                stack.stop("postgres", SIGINT)
            finally:
                stack.start("postgres")
            writer.wait_for_more()
        finally:
            stack.stop("kafka", SIGCONT)
            stack.start("kafka")
    _reconnect(pipeline.database)
    pipeline.assert_same("items", deadline_seconds=120, while_running=capture)


def test_server_killed_under_load(make_pipeline: MakePipeline, stack: Stack) -> None:
    """After `kill -9` of Postgres, whose slot may fall back to its state on disk, nothing is lost or published
    twice.
    """
    pipeline = make_pipeline()
    pipeline.database.execute(SCHEMA)
    capture = pipeline.start()
    with Writer(pipeline.database, survives=True) as writer:
        writer.wait_for_more()
        try:
            stack.stop("postgres", SIGKILL)
        finally:
            stack.start("postgres")
        writer.wait_for_more()
    _reconnect(pipeline.database)
    pipeline.assert_same("items", deadline_seconds=120, while_running=capture)


def test_asked_to_stop_while_kafka_is_frozen(make_pipeline: MakePipeline, stack: Stack) -> None:
    """SIGTERM ends capture while Kafka does not answer; the next start publishes what was pending."""
    pipeline = make_pipeline()
    pipeline.database.execute(SCHEMA)
    capture = pipeline.start()
    with _frozen(stack, "kafka"):
        _insert(pipeline.database, 1000)
        _wait_for_reply_after(pipeline, capture, 1)
        capture.terminate()
        capture.expect_exit(0, 30)
    capture = pipeline.start()
    records = pipeline.assert_same("items", while_running=capture)
    assert len(records["items"]) == 1000


def _reconnect(database: Database) -> None:
    """Replace the test's own connection, which the outage has closed."""

    def answers() -> bool:
        try:
            return database.execute("SELECT 1") == [(1,)]
        except psycopg.OperationalError:
            return False

    eventually(answers, what="Postgres to answer")
