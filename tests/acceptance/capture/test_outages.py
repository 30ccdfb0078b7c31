"""Servers that die, freeze, stop or are cut off under capture: it waits and goes on, and holds nobody up."""

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
    """For the replication connections to this database that are made from now on."""
    database.execute(f"ALTER DATABASE {database.name} SET wal_sender_timeout = '{value}'")


def _insert(database: Database, rows: int) -> None:
    """One transaction."""
    database.execute("INSERT INTO items SELECT n, mod(n, 7), 'note ' || n FROM generate_series(1, %s) AS n", [rows])


def _wait_for_reply_after(pipeline: Pipeline, capture: Process, seconds: int) -> None:
    """Until a status update of capture reaches the server that was sent at least so long from now."""
    ((later,),) = pipeline.database.execute("SELECT clock_timestamp() + make_interval(secs => %s)", [seconds])
    query = "SELECT count(*) FROM pg_stat_replication WHERE pid = %s AND reply_time >= %s"
    pid = pipeline.slot().pid
    capture.wait_for(
        lambda: pipeline.database.execute(query, [pid, later]) == [(1,)], seconds + 30, "a late status update"
    )


def test_large_transaction_with_a_broker_slower_than_the_servers_patience(
    make_pipeline: MakePipeline, stack: Stack
) -> None:
    """The broker stands still for longer than `wal_sender_timeout`: the server is answered, and stays connected."""
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
    """A transaction of any size flows through: 2 million rows need no more memory than 200,000.

    In both a broker that hangs for a while fills every queue that there is.
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
    assert pipeline.lives(capture) == 1, capture.transcript()
    assert large < _LARGEST_MEMORY_BYTES
    assert large < small * 1.1, f"{large >> 20} MB for 2 million rows, {small >> 20} MB for 200,000"
    # Each of them is there once. (Offsets count the ends of Kafka transactions, too.)
    assert arrivals.count("items", before) == 2_000_000
    pipeline.assert_progress_rises()


def test_broker_killed_and_restarted_under_load(make_pipeline: MakePipeline, stack: Stack) -> None:
    """`kill -9` of the broker: nothing that it acknowledged is lost, nothing is published twice."""
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
    """A stall that may cost the Kafka transaction: whether it does or not, its rows are published once."""
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
    """A connection to Postgres that stays open but carries nothing is given up within a bound, and made again."""
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
        pipeline.wait_for_life(capture, 2, 90)
        writer.wait_for_more()
    pipeline.assert_same("items", while_running=capture)


def test_connections_reset_under_load(
    make_pipeline: MakePipeline, stack: Stack, start_proxy: Callable[[str, int], Proxy]
) -> None:
    """Every connection to Postgres is reset, several times, and capture comes back by itself."""
    postgres = stack.server("postgres")
    proxy = start_proxy(postgres.host, postgres.port)
    pipeline = make_pipeline(proxy=proxy)
    pipeline.database.execute(SCHEMA)
    capture = pipeline.start()
    with Writer(pipeline.database) as writer:
        for life in range(2, 5):
            writer.wait_for_more(20)
            proxy.reset_connections()
            pipeline.wait_for_life(capture, life)
    pipeline.assert_same("items", while_running=capture)


@pytest.mark.slow
def test_a_row_that_takes_longer_than_the_longest_silence(
    make_pipeline: MakePipeline, stack: Stack, start_proxy: Callable[[str, int], Proxy]
) -> None:
    """7 MB at 200 kB a second: heard while they come, so capture does not begin anew in the middle of them for ever."""
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
    """`pg_ctl stop -m fast` ends although rows are on their way, Kafka up or down; afterwards nothing is missing."""
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
    """`kill -9` of all of Postgres: its slot may fall back to what was on disk; nothing is lost or doubled."""
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
    """SIGTERM ends capture although Kafka does not answer; what was on its way is published by the next start."""
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
    """The test's own connection does not know yet that the server was away."""

    def answers() -> bool:
        try:
            return database.execute("SELECT 1") == [(1,)]
        except psycopg.OperationalError:
            return False

    eventually(answers, what="Postgres to answer")
